"""The order in which free devices are tried, which decides what is chosen.

`FIRST_FIT` is kube-scheduler's: the order of publishing. `FEWEST_LOST` is a total order of (memory, multiprocessors,
partitions that would become impossible, partitions that are possible on the GPU now, order of publishing): the
smallest device that will do, where it closes the fewest others, on the fuller of two GPUs.
For devices of one profile on one GPU this is `dynamig.mig.fewest_lost`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from dynamig.dra.allocate.bits import bit_numbers
from dynamig.dra.allocate.counters import MEMO, Shape
from dynamig.dra.allocate.node import NodeDevices
from dynamig.dra.read import PublishedDevice

Demand = Mapping[str, int]
"""Weight of a lost partition by the name of its profile; profiles that are not named weigh nothing."""

Amount = int | Fraction

Size = tuple[Amount, Amount]
"""Memory in bytes and multiprocessors, both 0 for devices without them."""

Rank = tuple[Size, int, int, int]
"""Size, weight of what would be lost, partitions possible on the GPU now, number of the device."""


class Score(NamedTuple):
    """What an allocation costs; smaller is better. `room`: partitions that were possible on the GPUs it uses."""

    memory: Amount
    multiprocessors: Amount
    lost: int
    room: int


class Policy(Enum):
    FIRST_FIT = "first-fit"
    FEWEST_LOST = "fewest-lost"


class Ranking:
    """Ranks of devices that share one shape and agree in size and weight, remembered by state."""

    def __init__(self, shape: Shape, sizes: tuple[Size, ...], weights: tuple[int, ...]) -> None:
        self._shape, self._sizes, self._weights = shape, sizes, weights
        self._even = all(weight == 1 for weight in weights)
        self._known: dict[tuple[int, int], tuple[Rank, ...]] = {}

    def ranked(self, left: int, candidates: int) -> tuple[Rank, ...]:
        """The candidates, best first; bits and numbers are those of the shape's own sequence."""
        key = left, candidates
        if (known := self._known.get(key)) is None:
            if len(self._known) >= MEMO:
                self._known.clear()
            known = self._known[key] = tuple(sorted(self._rank(left, i) for i in bit_numbers(candidates)))
        return known

    def lost(self, before: int, after: int, taken: int) -> int:
        """Weight of what fitted before, does not fit after and is not among the taken themselves."""
        closed = self._shape.fitting(before) & ~self._shape.fitting(after) & ~taken
        return closed.bit_count() if self._even else sum(self._weights[i] for i in bit_numbers(closed))

    def room(self, left: int) -> int:
        return self._shape.fitting(left).bit_count()

    def _rank(self, left: int, device: int) -> Rank:
        lost = self.lost(left, left - self._shape.takes[device], 1 << device)
        return self._sizes[device], lost, self.room(left), device


@lru_cache(maxsize=1024)
def _ranking(shape: Shape, sizes: tuple[Size, ...], weights: tuple[int, ...]) -> Ranking:
    return Ranking(shape, sizes, weights)


class FewestLost:
    """The order on one node. Made once per node and demand, by `fewest_lost`."""

    def __init__(self, node: NodeDevices, demand: Demand | None = None) -> None:
        self._node = node
        published = [device for _, device in node.devices]
        self._sizes = tuple(_size(device) for device in published)
        weights = [1 if demand is None else demand.get(device.profile or "", 0) for device in published]
        self._rankings = [
            _ranking(g.shape, tuple(self._sizes[d] for d in g.devices), tuple(weights[d] for d in g.devices))
            for g in node.groups
        ]
        self._grouped = sum(group.all for group in node.groups)

    def order(self, candidates: int, left: Sequence[int | None]) -> Iterator[int]:
        """The candidates, best first. All are sorted only if the best is not enough."""
        heads = [ranks[0] for ranks in self._by_group(candidates, left)]
        if not heads:
            return
        best = min(heads)[-1]
        yield best
        ranks = sorted(rank for ranks in self._by_group(candidates, left) for rank in ranks)
        yield from (device for *_, device in ranks if device != best)

    def _by_group(self, candidates: int, left: Sequence[int | None]) -> Iterator[list[Rank]]:
        """The ranks of the candidates of each group, best first, with their numbers on the node."""
        for group, ranking, rest in zip(self._node.groups, self._rankings, left, strict=True):
            if rest is not None and candidates & group.all:
                ranks = ranking.ranked(rest, group.local(candidates))
                yield [(size, lost, room, group.devices[i]) for size, lost, room, i in ranks]
        if alone := candidates & ~self._grouped:
            yield sorted((self._sizes[i], 0, 0, i) for i in bit_numbers(alone))

    def score(self, before: Sequence[int | None], after: Sequence[int | None], taken: int) -> Score:
        lost = room = 0
        for group, ranking, old, new in zip(self._node.groups, self._rankings, before, after, strict=True):
            if old is not None and new is not None and old != new:
                lost += ranking.lost(old, new, group.local(taken))
                room += ranking.room(old)
        sizes = [self._sizes[i] for i in bit_numbers(taken)]
        return Score(sum(memory for memory, _ in sizes), sum(count for _, count in sizes), lost, room)


def fewest_lost(node: NodeDevices, demand: frozenset[tuple[str, int]] | None) -> FewestLost:
    """The node's order for this demand (as pairs), made once."""
    return node.once(("fewest lost", demand), lambda: FewestLost(node, None if demand is None else dict(demand)))


def _size(device: PublishedDevice) -> Size:
    return _plain(device.capacity.get("memory", 0)), _plain(device.capacity.get("multiprocessors", 0))


def _plain(amount: Amount) -> Amount:
    """Whole numbers as `int`, which compares ten times faster."""
    return int(amount) if amount.denominator == 1 else amount
