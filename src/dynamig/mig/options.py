"""Partitions of one GPU as bits, so that "what is still possible?" is a few integer operations.

Partition i of a given sequence is bit i of a *bit set*. The GPU's occupation is two integers: a mask of its
memory slices and the packed sum of what `Limits` counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dynamig.mig.geometry import Geometry, Partition
from dynamig.mig.limits import Limits


class Occupied(NamedTuple):
    """What living instances take: bit i of `slices` is memory slice i, `taken` is packed as in `Limits`."""

    slices: int = 0
    taken: int = 0


class Options:
    """A fixed sequence of partitions of one GPU and the two look-ups that answer what remains of them."""

    def __init__(self, geometry: Geometry, limits: Limits, partitions: Sequence[Partition]) -> None:
        self.limits = limits
        self.partitions = tuple(partitions)
        self.index = {partition: i for i, partition in enumerate(self.partitions)}
        self.all = (1 << len(self.partitions)) - 1
        self._on_slice = [
            self.select(p for p in self.partitions if p.placement.mask >> i & 1) for i in range(geometry.memory_slices)
        ]
        self._taking = {
            take: self.select(p for p in self.partitions if limits.takes[p.profile] == take)
            for take in set(limits.takes.values())
            if take
        }

    def select(self, partitions: Iterable[Partition]) -> int:
        """The bit set of the given partitions, which belong to the sequence."""
        return sum(1 << self.index[partition] for partition in partitions)

    def pick(self, bits: int) -> tuple[Partition, ...]:
        """The partitions of a bit set, in the order of the sequence."""
        return tuple(self.partitions[i] for i in bit_numbers(bits))

    def occupied(self, live: Iterable[Partition]) -> Occupied:
        """A live placement need not be in the sequence, nor its profile listed: its memory slices count."""
        state = Occupied()
        for partition in live:
            state = self.after(state, partition)
        return state

    def after(self, before: Occupied, partition: Partition) -> Occupied:
        take = self.limits.taken_by(partition.profile)
        return Occupied(before.slices | partition.placement.mask, before.taken + take)

    def allows(self, state: Occupied, partition: Partition) -> bool:
        """Whether this one partition could be created now; the same answer as its bit in `possible`."""
        if state.slices & partition.placement.mask:
            return False
        return self.limits.allow(state.taken + self.limits.takes[partition.profile])

    def possible(self, state: Occupied) -> int:
        """The bit set of partitions that could be created now."""
        closed = 0
        for i, on_slice in enumerate(self._on_slice):
            if state.slices >> i & 1:
                closed |= on_slice
        for take, taking in self._taking.items():
            if not self.limits.allow(state.taken + take):
                closed |= taking
        return self.all & ~closed

    def closed_by(self, state: Occupied, partition: Partition) -> int:
        """The bit set of partitions, itself apart, that are possible now and would not be after
        `partition`.
        """
        lost = self.possible(state) & ~self.possible(self.after(state, partition))
        return lost & ~(1 << self.index[partition])


def bit_numbers(bits: int) -> Iterator[int]:
    """Positions of the set bits, lowest first."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
