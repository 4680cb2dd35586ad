"""The nodes of an expression."""

from __future__ import annotations

from collections.abc import Iterator

from dynamig.dra.cel.syntax import Call, Comprehension, Expr, ListLiteral, MapLiteral, Select


def children(node: Expr) -> tuple[Expr, ...]:
    match node:
        case Select(operand, _, _):
            return (operand,)
        case Call(_, arguments):
            return arguments
        case ListLiteral(elements, _):
            return elements
        case MapLiteral(entries):
            return tuple(part for key, value, _ in entries for part in (key, value))
        case Comprehension():
            return node.range, node.initial, node.condition, node.step, node.result
        case _:
            return ()


def walk(node: Expr) -> Iterator[Expr]:
    """The node and everything below it."""
    yield node
    for child in children(node):
        yield from walk(child)
