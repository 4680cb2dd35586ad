"""Device numbers: n of `gpu-<n>`, given once per GPU UUID and kept for ever on this node.

The minor at first sight if it is free, else the lowest free number. Minors move when MIG mode is switched or a
GPU is replaced; names that claims carry must not (case C-06).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from dynamig.disk import write_durably
from dynamig.errors import Refused
from dynamig.mig import GpuUuid
from dynamig.protocol.gpus import GpuReading


def assign(known: Mapping[GpuUuid, int], readings: Iterable[GpuReading]) -> dict[GpuUuid, int]:
    """`known` plus a number for each new GPU; numbers of GPUs that are gone stay taken."""
    numbers = dict(known)
    for reading in sorted(readings, key=lambda r: r.minor):
        if reading.uuid not in numbers:
            taken = set(numbers.values())
            lowest = next(n for n in range(len(taken) + 1) if n not in taken)
            numbers[reading.uuid] = reading.minor if reading.minor not in taken else lowest
    return numbers


class NumberFile:
    """The numbers of one node on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers = self._load()

    def of(self, readings: Iterable[GpuReading]) -> Mapping[GpuUuid, int]:
        """Numbers of all GPUs ever seen; new ones are on disk before this returns."""
        numbers = assign(self._numbers, readings)
        if numbers != self._numbers:
            write_durably(self._path, json.dumps({"v": 1, "numbers": numbers}, indent=1).encode())
            self._numbers = numbers
        return numbers

    def _load(self) -> dict[GpuUuid, int]:
        try:
            body = json.loads(self._path.read_bytes())
            return {GpuUuid(uuid): int(n) for uuid, n in body["numbers"].items()}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(
                "JOURNAL_DAMAGED",
                f"{self._path} is not readable as device numbers: {error}",
                "restore it; guessing would give running claims another GPU's name",
            ) from error
