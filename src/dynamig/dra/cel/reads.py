"""What an expression reads of a device, where that can be told from its text.

Thousands of devices differ in nothing that a usual selector looks at, so its answer can be kept by what it reads.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from dynamig.dra.cel.evaluate import DEVICE
from dynamig.dra.cel.syntax import Call, Const, Expr, Ident, Select
from dynamig.dra.cel.walk import children


class Read(NamedTuple):
    """One attribute or capacity, by domain and short name."""

    kind: Literal["attributes", "capacity"]
    domain: str
    name: str


def reads(expression: Expr) -> frozenset[Read] | None:
    """The attributes and capacities that the expression names, or None if it takes a domain or the map as a whole,
    as in `cel.bind(gpu, device.attributes['gpu.nvidia.com'], ...)`. The driver is not counted.
    """
    found: set[Read] = set()
    todo = [expression]
    while todo:
        node = todo.pop()
        if read := _read(node):
            found.add(read)
        elif isinstance(node, Ident) and node.name in DEVICE and node.name != "device.driver":
            if node.name != "device.allowMultipleAllocations":
                return None
        else:
            todo += children(node)
    return frozenset(found)


def _read(node: Expr) -> Read | None:
    """`device.attributes['domain'].name`, also with `[...]`, `.?` or in `has(...)`."""
    match node:
        case Select(inner, name, _):
            return _in_domain(inner, name)
        case Call("_[_]" | "_?._" | "_[?_]", (inner, Const(str() as name))):
            return _in_domain(inner, name)
        case _:
            return None


def _in_domain(node: Expr, name: str) -> Read | None:
    match node:
        case Call("_[_]", (Ident("device.attributes"), Const(str() as domain))):
            return Read("attributes", domain, name)
        case Call("_[_]", (Ident("device.capacity"), Const(str() as domain))):
            return Read("capacity", domain, name)
        case _:
            return None
