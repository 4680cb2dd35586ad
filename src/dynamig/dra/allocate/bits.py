"""Sets of devices as integers: bit i is device i."""

from __future__ import annotations

from collections.abc import Iterable

from dynamig.mig.options import bit_numbers

__all__ = ["bit_numbers", "bits_of"]


def bits_of(numbers: Iterable[int]) -> int:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits
