"""Faults and return codes: what the control side orders and reads while clients run."""

from __future__ import annotations

import ctypes
import os
import re
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from dynamig.errors import Refused
from dynamig.testing.emulator import layout
from dynamig.testing.emulator.node import append, files_of, locked


class NvmlReturn(IntEnum):
    """nvmlReturn_t (nvml.h), without its prefix."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999

    @staticmethod
    def parse(text: str) -> NvmlReturn:
        """A name with or without `NVML_ERROR_`, or a number. Raises Refused UNKNOWN_CODE."""
        name = text.upper().removeprefix("NVML_").removeprefix("ERROR_")
        try:
            return NvmlReturn(int(name)) if name.isdigit() else NvmlReturn[name]
        except (KeyError, ValueError):
            raise Refused(
                "UNKNOWN_CODE", f"no NVML return code {text!r}", "one of " + ", ".join(NvmlReturn.__members__)
            ) from None


@dataclass(frozen=True, slots=True)
class SeenFault:
    """An ordered fault. `kind`: fail, delay or hang; `seen`: matching calls so far; times in microseconds.

    `count` 0: all that follow; `gpu` None: any; `tail`: the jitter is the mean of an exponential tail.
    """

    kind: str
    call: str
    code: int
    nth: int
    count: int
    seen: int
    gpu: int | None
    after: bool
    delay_us: int
    jitter_us: int
    tail: bool

    def __str__(self) -> str:
        """`fail nvmlInit_v2 IN_USE: 2 calls from number 3 on, of GPU 1, after the work`."""
        does = {"fail": self._answer(), "hang": "until clear-faults", "delay": self._times()}[self.kind]
        which = "all calls" if self.count == 0 else f"{self.count} call" + "s" * (self.count > 1)
        where = "" if self.gpu is None else f", of GPU {self.gpu}"
        after = ", after the work" if self.after else ""
        return f"{self.kind} {self.call} {does}: {which} from number {self.nth} on{where}{after}"

    @property
    def spent(self) -> bool:
        """All calls that it was to hit have come."""
        return self.count > 0 and self.seen >= self.nth + self.count - 1

    def _answer(self) -> str:
        known = self.code in NvmlReturn._value2member_map_
        return NvmlReturn(self.code).name if known else str(self.code)

    def _times(self) -> str:
        spread = (
            f", {'a tail of mean' if self.tail else 'up to'} {duration(self.jitter_us)} more" if self.jitter_us else ""
        )
        return f"by {duration(self.delay_us)}{spread}"


_KINDS = {layout.FAULT_FAIL: "fail", layout.FAULT_DELAY: "delay", layout.FAULT_HANG: "hang"}


def seen_fault(fault: layout.Fault) -> SeenFault:
    return SeenFault(
        kind=_KINDS[fault.kind],
        call=fault.call.decode(),
        code=fault.code,
        nth=fault.nth,
        count=fault.count,
        seen=fault.seen,
        gpu=None if fault.gpu < 0 else fault.gpu,
        after=bool(fault.flags & layout.FAULT_AFTER),
        delay_us=fault.delay_us,
        jitter_us=fault.jitter_us,
        tail=bool(fault.flags & layout.FAULT_TAIL),
    )


_DURATION = re.compile(r"(?P<number>[0-9]{1,15}(\.[0-9]{1,15})?)(?P<unit>us|ms|s)")
_MICROSECONDS = {"us": 1, "ms": 1_000, "s": 1_000_000}


def parse_duration(text: str) -> float:
    """`800ms`, `1.5s`, `250us`, in seconds. Raises Refused BAD_DURATION."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise Refused("BAD_DURATION", f"{text!r} is not a duration", "write 800ms, 1.5s or 250us")
    return float(match["number"]) * _MICROSECONDS[match["unit"]] / 1_000_000


def duration(us: int) -> str:
    """As `parse_duration` takes it, exactly, with at most three decimals: `800ms`, `1.5s`, `250us`."""
    unit = "s" if us >= 10**6 and us % 1000 == 0 else "ms" if us >= 1000 or us == 0 else "us"
    return f"{us / _MICROSECONDS[unit]:.3f}".rstrip("0").rstrip(".") + unit


def order_fault(directory: Path, fault: layout.Fault) -> None:
    """The fault is in force for every call that begins after this one returns."""
    path = directory / "state" / "faults"
    size = ctypes.sizeof(layout.Fault)
    with locked(path) as descriptor:
        if os.fstat(descriptor).st_size > (layout.MAX_FAULTS - 1) * size:
            raise Refused(
                "TOO_MANY_FAULTS", f"{path} holds {layout.MAX_FAULTS} faults", "dynamig emulator clear-faults"
            )
        fault.id = time.time_ns()
        append(descriptor, bytes(fault))


def read_faults(directory: Path) -> list[layout.Fault]:
    """Raises Refused BAD_FAULTS if there is something else than faults."""
    path, size = directory / "state" / "faults", ctypes.sizeof(layout.Fault)
    with files_of(directory):
        data = path.read_bytes()
    found = [layout.Fault.from_buffer_copy(data, at) for at in range(0, len(data) - size + 1, size)]
    for number, fault in enumerate(found, 1):
        if fault.kind not in _KINDS or not fault.call.isascii():
            clear = f"dynamig emulator clear-faults {directory}"
            raise Refused("BAD_FAULTS", f"{path}: record {number} is not a fault", clear)
    return found


def clear_faults(directory: Path, with_flags: int = 0) -> None:
    """No fault is in force; with `with_flags`, none of those that have all of these."""
    with locked(directory / "state" / "faults") as descriptor:
        found = read_faults(directory) if with_flags else []  # all go, also what is no fault
        kept = [fault for fault in found if fault.flags & with_flags != with_flags]
        os.ftruncate(descriptor, 0)
        for fault in kept:
            append(descriptor, bytes(fault))
