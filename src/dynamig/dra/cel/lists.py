"""List functions: cel-go's ext.Lists (version 3) and ext.Sets, and Kubernetes' own lists library."""

from __future__ import annotations

from collections.abc import Callable
from functools import cmp_to_key
from itertools import pairwise

from dynamig.dra.cel.values import (
    MAX_SIZE,
    CelError,
    Uint,
    Value,
    checked_size,
    equal,
    is_list,
    no_such_overload,
    surely_equal,
)

Compare = Callable[[Value, Value], int]
List = list[Value]


def _list(value: Value) -> List:
    return list(value) if is_list(value) else no_such_overload()


def index_of(items: Value, item: Value) -> int:
    return next((i for i, one in enumerate(_list(items)) if surely_equal(one, item)), -1)


def last_index_of(items: Value, item: Value) -> int:
    return max((i for i, one in enumerate(_list(items)) if surely_equal(one, item)), default=-1)


def includes(value: Value, item: Value) -> bool:
    """Whether the list has the item; anything that is no list counts as a list of itself."""
    return any(surely_equal(one, item) for one in value) if is_list(value) else equal(value, item)


def is_sorted(items: Value, compare: Compare) -> bool:
    values = _list(items)
    return all(compare(a, b) <= 0 for a, b in pairwise(values))


def total(items: Value, add: Callable[[Value, Value], Value]) -> Value:
    """Raises: CelError for items that cannot be added, text included."""
    values = _list(items)
    if any(type(value) not in (int, float, Uint) for value in values):
        no_such_overload()
    result: Value = values[0] if values else 0
    for value in values[1:]:
        result = add(result, value)
    return result


def extreme(items: Value, compare: Compare, sign: int) -> Value:
    """The largest item for `sign` 1, the smallest for -1."""
    values = _list(items)
    if not values:
        raise CelError("min or max of an empty list")
    best = values[0]
    for value in values[1:]:
        if compare(value, best) == sign:
            best = value
    return best


def ordered(items: Value, compare: Compare) -> List:
    values = _list(items)
    if any(type(value) is not type(values[0]) for value in values):
        raise CelError("list elements must have the same type")
    return sorted(values, key=cmp_to_key(compare))


def part(items: Value, start: Value, end: Value) -> List:
    values = _list(items)
    if not 0 <= start <= end <= len(values):
        raise CelError(f"cannot slice({start}, {end}), list is length {len(values)}")
    return values[start:end]


def flatten(items: Value, depth: int = 1) -> List:
    if depth < 0:
        raise CelError("level must be non-negative")
    flat: List = []
    for item in _list(items):
        flat += flatten(item, depth - 1) if depth and is_list(item) else [item]
    result: List = checked_size(flat)
    return result


def distinct(items: Value) -> List:
    seen: List = []
    for item in _list(items):
        if not any(surely_equal(item, one) for one in seen):
            seen.append(item)
    return seen


def backwards(items: Value) -> List:
    return _list(items)[::-1]


def numbers(count: int) -> List:
    if not 0 <= count <= MAX_SIZE:
        raise CelError(f"lists.range: size {count} is out of range")
    return list(range(count))


def contains_all(items: Value, wanted: Value) -> bool:
    """sets.contains: every wanted one is among the items."""
    have = _list(items)
    return all(any(surely_equal(one, item) for item in have) for one in _list(wanted))


def intersects(left: Value, right: Value) -> bool:
    have = _list(left)
    return any(any(surely_equal(item, one) for item in have) for one in _list(right))
