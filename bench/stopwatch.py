"""Where time goes: ports of the driver that behave as the one they wrap and note how long each call took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dynamig.mig import CiId, GiId, GpuUuid, Partition
from dynamig.protocol.gpus import GpuReading, Gpus, LiveInstance, MigMode
from dynamig.protocol.ports import CdiFiles, Journal
from dynamig.protocol.records import ClaimRecord

T = TypeVar("T")


@dataclass
class Stopwatch:
    """Seconds spent inside its blocks, and the names of the calls in order, since the last `take`."""

    seconds: float = 0.0
    calls: list[str] = field(default_factory=list)

    @contextmanager
    def on(self, call: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begun
            self.calls.append(call)

    def take(self) -> tuple[float, tuple[str, ...]]:
        """What has been noted; the watch starts again from nothing."""
        taken = self.seconds, tuple(self.calls)
        self.seconds, self.calls = 0.0, []
        return taken


@dataclass(frozen=True, slots=True)
class Lap:
    """One timed action, in seconds. `nvml`, `disk`: parts of `total`; `writes`: what was made durable, in order."""

    total: float
    nvml: float
    disk: float
    writes: tuple[str, ...]


def lap(act: Callable[[], T], nvml: Stopwatch, disk: Stopwatch) -> tuple[T, Lap]:
    """What `act` returned, and how long it took."""
    nvml.take()
    disk.take()
    begun = time.perf_counter()
    result = act()
    total = time.perf_counter() - begun
    (in_nvml, _), (on_disk, writes) = nvml.take(), disk.take()
    return result, Lap(total, in_nvml, on_disk, writes)


class TimedGpus:
    """Every call counts as NVML time: the wait for the GPU's thread and the walk through ctypes belong to it."""

    def __init__(self, gpus: Gpus, watch: Stopwatch) -> None:
        self._gpus, self._watch = gpus, watch

    def readings(self) -> Sequence[GpuReading]:
        with self._watch.on("readings"):
            return self._gpus.readings()

    def reading(self, gpu: GpuUuid) -> GpuReading:
        with self._watch.on("reading"):
            return self._gpus.reading(gpu)

    def minor(self, gpu: GpuUuid) -> int:
        with self._watch.on("minor"):
            return self._gpus.minor(gpu)

    def mig_mode(self, gpu: GpuUuid) -> MigMode:
        with self._watch.on("mig_mode"):
            return self._gpus.mig_mode(gpu)

    def instances(self, gpu: GpuUuid) -> Sequence[LiveInstance]:
        with self._watch.on("instances"):
            return self._gpus.instances(gpu)

    def create_gpu_instance(self, gpu: GpuUuid, partition: Partition) -> GiId:
        with self._watch.on("create_gpu_instance"):
            return self._gpus.create_gpu_instance(gpu, partition)

    def create_compute_instance(self, gpu: GpuUuid, gi: GiId) -> CiId:
        with self._watch.on("create_compute_instance"):
            return self._gpus.create_compute_instance(gpu, gi)

    def destroy_compute_instance(self, gpu: GpuUuid, gi: GiId, ci: CiId) -> None:
        with self._watch.on("destroy_compute_instance"):
            self._gpus.destroy_compute_instance(gpu, gi, ci)

    def destroy_gpu_instance(self, gpu: GpuUuid, gi: GiId) -> None:
        with self._watch.on("destroy_gpu_instance"):
            self._gpus.destroy_gpu_instance(gpu, gi)

    def set_mig_mode(self, gpu: GpuUuid, *, on: bool) -> None:
        with self._watch.on("set_mig_mode"):
            self._gpus.set_mig_mode(gpu, on=on)


class TimedJournal:
    """Writes count as disk time; reading is from memory and does not."""

    def __init__(self, journal: Journal, watch: Stopwatch) -> None:
        self._journal, self._watch = journal, watch

    def records(self) -> Mapping[str, ClaimRecord]:
        return self._journal.records()

    def unreadable(self) -> Mapping[str, str]:
        return self._journal.unreadable()

    def write(self, record: ClaimRecord) -> None:
        with self._watch.on("write journal"):
            self._journal.write(record)

    def restore(self, record: ClaimRecord) -> str | None:
        with self._watch.on("write journal"):
            return self._journal.restore(record)

    def forget(self, uid: str) -> None:
        with self._watch.on("remove journal"):
            self._journal.forget(uid)


class TimedCdi:
    """Writes count as disk time; looking does not, since it waits for nothing."""

    def __init__(self, files: CdiFiles, watch: Stopwatch) -> None:
        self._files, self._watch = files, watch

    def write(self, uid: str, spec: Mapping[str, Any]) -> None:
        with self._watch.on("write cdi"):
            self._files.write(uid, spec)

    def remove(self, uid: str) -> None:
        with self._watch.on("remove cdi"):
            self._files.remove(uid)

    def claims(self) -> Sequence[str]:
        return self._files.claims()

    def read(self, uid: str) -> Mapping[str, Any] | None:
        return self._files.read(uid)
