"""Values of CEL in Python, and the operations that every other part builds on.

null, bool, int (64 bits), double, string, bytes and list are Python's own; a map is a `dict`. What Python lacks is
here: unsigned numbers, Kubernetes' Quantity and Semver, optionals, types as values. Attribute lists may be tuples.

Equality follows cel-go (v0.29.2, common/types): unlike kinds are unequal, numbers compare across kinds, but a
Quantity or Semver on the *left* of another kind is an error, which `!=` turns into true and `in` skips.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import total_ordering
from itertools import zip_longest
from typing import Any, NoReturn

Value = Any
"""Any CEL value. The checker has seen the types; what it calls dyn is only known at run time."""

INT_MIN, INT_MAX, UINT_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1
MAX_SIZE = 1 << 12
"""Longest string, bytes or list that an expression may build. An attribute has 64 characters or elements at most; with
the limit on steps this bounds memory and time, as cost does in Kubernetes.
"""


class CelError(Exception):
    """An expression failed on a device. Kubernetes aborts the whole attempt for it, unless a device fits before."""


def no_such_overload(*_: Value) -> NoReturn:
    raise CelError("no such overload")


class Uint(int):
    """An unsigned 64-bit number, a kind of its own."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """A resource quantity, exact."""

    amount: Fraction


@total_ordering
@dataclass(frozen=True, slots=True)
class Semver:
    """A semantic version; build metadata is dropped, since nothing compares it."""

    numbers: tuple[int, int, int]
    pre: tuple[str, ...] = ()

    def __lt__(self, other: Semver) -> bool:
        return self.compare(other) < 0

    def compare(self, other: Semver) -> int:
        """Negative, 0 or positive, by semver.org 2.0.0 section 11."""
        if self.numbers != other.numbers:
            return -1 if self.numbers < other.numbers else 1
        if not self.pre or not other.pre:
            return bool(other.pre) - bool(self.pre)
        for mine, theirs in zip_longest(self.pre, other.pre):
            if mine != theirs:
                return -1 if _earlier(mine, theirs) else 1
        return 0


def _earlier(mine: str | None, theirs: str | None) -> bool:
    """Whether a pre-release identifier sorts first: shorter lists first, then numbers, then text."""
    if mine is None or theirs is None:
        return mine is None
    if mine.isdigit() and theirs.isdigit():
        return int(mine) < int(theirs)
    return mine.isdigit() if mine.isdigit() != theirs.isdigit() else mine < theirs


@dataclass(frozen=True, slots=True)
class Optional:
    """`optional.of(value)`, or `optional.none()`."""

    has: bool
    value: Value = None


NONE = Optional(False)


@dataclass(frozen=True, slots=True)
class TypeValue:
    """What `type(x)` returns."""

    name: str


class DomainMap(dict[str, dict[str, Value]]):
    """`device.attributes` and `device.capacity`: an unknown domain is an empty map, not an error.

    `in` still says no to it. Source: newStringInterfaceMapWithDefault in
    k8s.io/dynamic-resource-allocation v0.37.2, cel/compile.go.
    """

    __slots__ = ()


_NUMBERS = r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
_SEMVER = re.compile(_NUMBERS + r"(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?", re.ASCII)


def parse_semver(text: str) -> Semver:
    """As blang/semver v4 parses it. Raises: CelError."""
    found = _SEMVER.fullmatch(text)
    pre = tuple(found.group(4).split(".")) if found and found.group(4) else ()
    if not found or any(not one or (one.isdigit() and one[0] == "0" and one != "0") for one in pre):
        raise CelError(f"{text!r} is not a semantic version")
    numbers = int(found.group(1)), int(found.group(2)), int(found.group(3))
    if max(numbers) > UINT_MAX:
        raise CelError(f"{text!r} has a number out of range")
    return Semver(numbers, pre)


def is_number(value: Value) -> bool:
    return type(value) in (int, float, Uint)


def is_list(value: Value) -> bool:
    return type(value) in (list, tuple)


def is_map(value: Value) -> bool:
    return isinstance(value, dict)


def equal(left: Value, right: Value) -> bool:
    """`left == right`. Raises: CelError for a Quantity or Semver on the left of another kind."""
    kind, other = type(left), type(right)
    if kind is other and kind in (str, int, bool, bytes, float, Uint, TypeValue):
        return bool(left == right)
    if left is None or right is None:
        return left is right
    if is_number(left) and is_number(right):
        return bool(left == right)
    if kind in (Quantity, Semver):
        return bool(left == right) if kind is other else no_such_overload()
    if is_list(left) and is_list(right):
        return len(left) == len(right) and all(map(_not_unequal, left, right))
    if is_map(left) and is_map(right):
        return len(left) == len(right) and all(k in right and _not_unequal(v, right[k]) for k, v in left.items())
    if kind is Optional and other is Optional:
        return left.has == right.has and (not left.has or equal(left.value, right.value))
    return False


def _not_unequal(left: Value, right: Value) -> bool:
    """Inside lists and maps cel-go only asks whether elements are unequal, so an error passes."""
    try:
        return equal(left, right)
    except CelError:
        return True


def surely_equal(left: Value, right: Value) -> bool:
    """Equal, an error counting as no: what `in`, `!=` and the set functions ask."""
    try:
        return equal(left, right)
    except CelError:
        return False


def among_constants(item: Value, constants: list[Value]) -> bool:
    """`item in [...]` with nothing but constants, which Kubernetes turns into a set: a Semver cannot be looked up."""
    if isinstance(item, Semver):
        raise CelError("a Semver cannot be looked up in a list of constants")
    return contains(item, constants)


def contains(item: Value, container: Value) -> bool:
    """`item in container`."""
    if is_map(container):
        return _hashable(item) and item in container
    if is_list(container):
        return any(surely_equal(item, one) for one in container)
    no_such_overload()


def _hashable(key: Value) -> bool:
    return key is None or isinstance(key, (str, int, float, bool, bytes))


def find(container: Value, key: Value) -> Optional:
    """The element under a key or index, if it is there; a number or text has none. Optionals are looked into."""
    if isinstance(container, Optional):
        return find(container.value, key) if container.has else NONE
    if is_map(container):
        if _hashable(key) and key in container:
            return Optional(True, container[key])
        return Optional(True, {}) if isinstance(container, DomainMap) else NONE
    if is_list(container):
        if not is_number(key):
            no_such_overload()
        index = int(key) if key == int(key) else -1
        return Optional(True, container[index]) if 0 <= index < len(container) else NONE
    return NONE


def lookup(container: Value, key: Value) -> Value:
    """`container[key]`, and `container.key`. Raises: CelError if it is not there."""
    found = find(container, key)
    if isinstance(container, Optional):
        return found
    if not found.has:
        raise CelError(f"index out of bounds: {key}" if is_list(container) else f"no such key: {key}")
    return found.value


def checked_int(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise CelError("integer overflow")
    return value


def checked_uint(value: int) -> Uint:
    if not 0 <= value <= UINT_MAX:
        raise CelError("unsigned integer overflow")
    return Uint(value)


def checked_size(value: Value) -> Value:
    """The string, bytes or list itself, unless it has become too large to be meant."""
    if len(value) > MAX_SIZE:
        raise CelError(f"result with {len(value)} elements is too large")
    return value
