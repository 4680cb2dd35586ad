"""What to say of a request whose selectors no device matches: which one says no, and what it could have asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import partial

from dynamig.dra import quantity
from dynamig.dra.allocate.bits import bit_numbers
from dynamig.dra.allocate.node import NodeDevices
from dynamig.dra.allocate.plan import Option, Question, expressions
from dynamig.dra.allocate.selection import reads_of
from dynamig.dra.cel import Read

QUOTED = 200
"""Characters of a selector that are quoted: an event has room for 1024 (core/v1)."""

NAMED = 12
"""Values of one attribute that are named."""


def unmatched(node: NodeDevices, asked: Question, option: Option) -> str:
    """For an option that no device of the node matches. Says nothing of the node, so that equal ones say the same."""
    return node.once(("unmatched", asked, option.choice), partial(_unmatched, node, asked, option))


def _unmatched(node: NodeDevices, asked: Question, option: Option) -> str:
    name = option.choice.device_class
    texts, of_class = expressions(asked, option.choice), len(asked.classes[name].selectors)
    empty = (i for i in range(len(texts)) if not node.catalog.select(texts[: i + 1]).matching)
    if (first := next(empty, None)) is None:
        return "there are no devices"
    if first < of_class:
        return f"no device is of class {name}: its selector {_quoted(texts[first])} matches none"
    devices = node.catalog.select(texts[:of_class]).matching
    return f"no device matches the selector {_quoted(texts[first])}; {_there_is(node, name, devices, texts[first])}"


def _quoted(text: str) -> str:
    words = " ".join(text.split())
    return f"`{words if len(words) <= QUOTED else words[:QUOTED] + '...'}`"


def _there_is(node: NodeDevices, device_class: str, devices: int, selector: str) -> str:
    """What devices of the class have where the selector reads, and their profiles in any case."""
    profiles = sorted({profile for i in bit_numbers(devices) if (profile := node.devices[i][1].profile)})
    has = [f"profile {_some(profiles)}"] if profiles else []
    reads = sorted(read for read in reads_of(selector) if not (profiles and read.name == "profile"))
    said = "; ".join([*(_values(node, devices, r) for r in reads), *has])
    return f"devices of class {device_class} have {said}" if said else f"there are devices of class {device_class}"


def _values(node: NodeDevices, devices: int, read: Read) -> str:
    found = [value for value, having in node.catalog.values(read).items() if value is not None and having & devices]
    plain = [value[1] for value in found if isinstance(value, tuple) and isinstance(value[0], type)]
    return f"{read.name} {_some(map(_text, sorted(plain, key=_order)))}" if plain else f"no {read.name}"


def _order(value: object) -> tuple[bool, Fraction, str]:
    """Numbers by size, then words."""
    number = isinstance(value, (int, Fraction))
    return (not number, Fraction(value) if isinstance(value, (int, Fraction)) else Fraction(0), str(value))


def _text(value: object) -> str:
    return quantity.written(value) if isinstance(value, Fraction) else str(value)


def _some(values: Iterable[str]) -> str:
    named: Sequence[str] = list(values)
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return ", ".join(named[:NAMED]) + more
