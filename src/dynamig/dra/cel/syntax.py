"""The checked expression as a tree of values, macros already expanded by the parser.

Source: cel-spec `proto/cel/expr/syntax.proto`; the numbers below are its field numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynamig.dra.cel.values import Uint
from dynamig.dra.cel.wire import Message

Literal = None | bool | int | Uint | float | str | bytes


@dataclass(frozen=True, slots=True)
class Const:
    value: Literal


@dataclass(frozen=True, slots=True)
class Ident:
    """A variable; qualified names (`device.attributes`) are one name."""

    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """`operand.field`, or with `test` the question `has(operand.field)`."""

    operand: Expr
    field: str
    test: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its arguments, the receiver of a member function first."""

    function: str
    arguments: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class ListLiteral:
    """`optional`: positions of elements written `?x`, left out where they have no value."""

    elements: tuple[Expr, ...]
    optional: frozenset[int]


@dataclass(frozen=True, slots=True)
class MapLiteral:
    """Entries as (key, value, written with `?`)."""

    entries: tuple[tuple[Expr, Expr, bool], ...]


@dataclass(frozen=True, slots=True)
class Comprehension:
    """What `all`, `exists`, `map`, `filter` and `cel.bind` expand to: a fold over a list or the keys of a map."""

    variable: str
    range: Expr
    accumulator: str
    initial: Expr
    condition: Expr
    step: Expr
    result: Expr


Expr = Const | Ident | Select | Call | ListLiteral | MapLiteral | Comprehension


def decode(serialized: bytes) -> Expr:
    """The tree in a serialized `google.protobuf.Any` with a `cel.expr.CheckedExpr` or `cel.expr.ParsedExpr`.

    Raises: ValueError for a node that an expression without messages cannot have.
    """
    envelope = Message(serialized)
    checked = envelope.text(1).endswith("CheckedExpr")
    return _expr(envelope.message(2).message(4 if checked else 2))


def _expr(node: Message) -> Expr:
    if 3 in node:
        return Const(_constant(node.message(3)))
    if 4 in node:
        return Ident(node.message(4).text(1))
    if 5 in node:
        return _select(node.message(5))
    if 6 in node:
        return _call(node.message(6))
    if 7 in node:
        literal = node.message(7)
        return ListLiteral(tuple(_expr(one) for one in literal.messages(1)), frozenset(literal.packed(2)))
    if 8 in node:
        return _map(node.message(8))
    if 9 in node:
        return _comprehension(node.message(9))
    raise ValueError("a node of no known kind")


def _select(node: Message) -> Expr:
    """Only the checker joins `device` and its field to one name; here that is done for parsed expressions too."""
    operand, field, test = _expr(node.message(1)), node.text(2), bool(node.unsigned(3))
    return Ident(f"device.{field}") if operand == Ident("device") else Select(operand, field, test)


def _constant(node: Message) -> Literal:
    if 2 in node:
        return bool(node.unsigned(2))
    if 3 in node:
        return node.signed(3)
    if 4 in node:
        return Uint(node.unsigned(4))
    if 5 in node:
        return node.double(5)
    if 6 in node:
        return node.text(6)
    if 7 in node:
        return node.raw(7)
    return None


def _call(node: Message) -> Call:
    """Functions with a qualified name (`sets.contains`) may still carry their first word as receiver."""
    function, arguments = node.text(2), tuple(_expr(one) for one in node.messages(3))
    if 1 not in node:
        return Call(function, arguments)
    receiver = _expr(node.message(1))
    if isinstance(receiver, Ident) and receiver.name in ("sets", "lists", "optional", "strings"):
        return Call(f"{receiver.name}.{function}", arguments)
    return Call(function, (receiver, *arguments))


def _map(node: Message) -> MapLiteral:
    if 1 in node:
        raise ValueError(f"a message of type {node.text(1)}")
    entries = node.messages(2)
    return MapLiteral(tuple((_expr(e.message(3)), _expr(e.message(4)), bool(e.unsigned(5))) for e in entries))


def _comprehension(node: Message) -> Comprehension:
    if 8 in node:
        raise ValueError("a comprehension with two variables")
    variable, accumulator = node.text(1), node.text(3)
    parts = [_expr(node.message(number)) for number in (2, 4, 5, 6, 7)]
    return Comprehension(variable, parts[0], accumulator, *parts[1:])
