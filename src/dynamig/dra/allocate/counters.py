"""Shared counters as one integer per GPU.

A *shape* is what a set of devices takes from their counters, names aside: all GPUs of a model have the same one.
Each counter has a field in an integer, wide enough for its total, with a guard bit above it. What is left minus what
a device takes leaves every guard bit set exactly if the device fits: one subtraction instead of 15 comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm

from dynamig.dra.allocate.bits import bits_of

Counter = tuple[str, str]
"""Counter set and counter."""

MEMO = 1 << 16
"""Answers a shape keeps; an H100 has 2,319 states."""


class Shape:
    """Totals and consumptions of devices that share counters, packed.

    Bit i of every answer is device i of the sequence.
    """

    def __init__(self, totals: tuple[int, ...], takes: tuple[tuple[int, ...], ...]) -> None:
        widths = [max(total, *(take[i] for take in takes)).bit_length() + 1 for i, total in enumerate(totals)]
        self._shifts = [sum(widths[:i]) for i in range(len(widths))]
        self._guard = sum(1 << shift + width - 1 for shift, width in zip(self._shifts, widths, strict=True))
        self.totals = totals
        self.takes = tuple(self._pack(take) for take in takes)
        self._devices: dict[int, int] = {}
        for i, take in enumerate(self.takes):
            self._devices[take] = self._devices.get(take, 0) | 1 << i
        self._fitting: dict[int, int] = {}

    def left(self, used: Sequence[int]) -> int | None:
        """What is left after the given amounts, packed; None if more is used than there is of any counter."""
        rest = [total - amount for total, amount in zip(self.totals, used, strict=True)]
        return None if any(amount < 0 for amount in rest) else self._pack(rest)

    def fitting(self, left: int) -> int:
        """The devices that fit into what is left, each for itself."""
        known = self._fitting.get(left)
        return self._look(left) if known is None else known

    def _look(self, left: int) -> int:
        guard, filled = self._guard, left | self._guard
        found = sum(devices for take, devices in self._devices.items() if (filled - take) & guard == guard)
        if len(self._fitting) >= MEMO:
            self._fitting.clear()
        self._fitting[left] = found
        return found

    def _pack(self, amounts: Sequence[int]) -> int:
        return sum(amount << shift for amount, shift in zip(amounts, self._shifts, strict=True))


@lru_cache(maxsize=1024)
def _shape(totals: tuple[int, ...], takes: tuple[tuple[int, ...], ...]) -> Shape:
    return Shape(totals, takes)


class Group:
    """Devices of one pool that share counters, directly or through each other, usually those of one GPU.

    `devices`: their numbers on the node, ascending; `all`: the same as bits.
    """

    def __init__(
        self,
        devices: Sequence[int],
        totals: Mapping[Counter, Fraction],
        takes: Sequence[Mapping[Counter, Fraction]],
    ) -> None:
        self.devices = tuple(devices)
        self.all = bits_of(self.devices)
        self.number = {device: i for i, device in enumerate(self.devices)}
        self._first = self.devices[0]
        self._contiguous = self.devices[-1] - self._first + 1 == len(self.devices)
        self._counters = tuple(sorted(totals))
        columns = [_scaled([totals[c], *(take.get(c, Fraction(0)) for take in takes)]) for c in self._counters]
        self.amounts = tuple(zip(*(column[1:] for column in columns), strict=True))
        self.shape = _shape(tuple(column[0] for column in columns), self.amounts)

    def left(self, held: Sequence[int]) -> int | None:
        """What is left beside these devices of the group (their numbers on the node); None if it is overdrawn."""
        rows = [self.amounts[self.number[device]] for device in held]
        return self.shape.left(
            [sum(column) for column in zip(*rows, strict=True)] if rows else [0] * len(self._counters)
        )

    def fitting(self, left: int) -> int:
        """The devices that fit into what is left, as bits of the node."""
        local = self.shape.fitting(left)
        return local << self._first if self._contiguous else self._spread(local)

    def local(self, bits: int) -> int:
        """Bits of the node as bits of the group's own sequence."""
        if self._contiguous:
            return (bits & self.all) >> self._first
        return bits_of(i for i, device in enumerate(self.devices) if bits >> device & 1)

    def _spread(self, local: int) -> int:
        return bits_of(device for i, device in enumerate(self.devices) if local >> i & 1)

    def take(self, device: int) -> int:
        """What the device takes, packed as `left`."""
        return self.shape.takes[self.number[device]]


def _scaled(amounts: Sequence[Fraction]) -> list[int]:
    """The amounts in the largest unit in which all are whole."""
    scale = lcm(*(amount.denominator for amount in amounts))
    whole = [amount.numerator * (scale // amount.denominator) for amount in amounts]
    unit = gcd(*whole) or 1
    return [amount // unit for amount in whole]
