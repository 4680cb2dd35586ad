"""Pure functions that remember what they computed, by the identity of what they were given.

For values that nobody changes, and that are too large to hash: objects of a watch, pools, all claims of a world. From
look to look most of them are the very same objects.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
R = TypeVar("R")


class _Same:
    """Values that equal only themselves. They are kept alive with the answer, so an identity is never given out twice
    while it counts."""

    __slots__ = ("values",)

    def __init__(self, values: tuple[object, ...]) -> None:
        self.values = values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and tuple(map(id, self.values)) == tuple(map(id, other.values))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.values)))


def by_identity(keep: int) -> Callable[[Callable[[*Ts], R]], Callable[[*Ts], R]]:
    """The function computes once for the same objects, as long as its answer is among the `keep` last used ones."""

    def decorate(compute: Callable[[*Ts], R]) -> Callable[[*Ts], R]:
        kept = lru_cache(maxsize=keep)(lambda same: compute(*same.values))

        @wraps(compute)
        def remembered(*values: *Ts) -> R:
            return kept(_Same(values))

        return remembered

    return decorate
