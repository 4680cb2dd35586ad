"""The node's GPUs through NVML: implements `protocol.gpus.Gpus`.

Each GPU has one thread that makes its NVML calls, with a deadline for each: a call that hangs in the kernel
leaves that one thread behind and its GPU unavailable, the other GPUs go on. Calls of one GPU are therefore never
concurrent; who needs several of them to be one step holds the driver's lock of that GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml
import structlog

from dynamig.errors import DynamigError, Unavailable
from dynamig.mig import CiId, GiId, GpuUuid, Partition
from dynamig.nvml import instances
from dynamig.nvml.errors import translated
from dynamig.nvml.reading import Handle, read_gpu, read_mig_mode, text
from dynamig.protocol.gpus import GpuReading, LiveInstance, MigMode

log = structlog.get_logger(__name__)

T = TypeVar("T")

CALL_DEADLINE: Final = 20.0
"""Seconds for one call. Making an instance takes about a second on hardware; the kubelet allows 45 for a pod."""

_SYSTEM: Final = GpuUuid("")


class NvmlGpus:
    """NVML, initialised for as long as this object is open. Use as a context manager."""

    def __init__(self, sys_root: Path = Path("/sys"), deadline: float = CALL_DEADLINE) -> None:
        self._sys_root = sys_root
        self._deadline = deadline
        self._workers: dict[GpuUuid, _Worker] = {}
        self._lock = threading.Lock()
        with translated("starting NVML (libnvidia-ml.so.1)"):
            pynvml.nvmlInit()

    def __enter__(self) -> NvmlGpus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for worker in self._workers.values():
            worker.stop()
        with translated("stopping NVML"):
            pynvml.nvmlShutdown()

    def readings(self) -> Sequence[GpuReading]:
        """Every GPU that answers, in NVML's order. Each is read on its own thread: one that hangs is only missing."""
        listed = ((index, gpu) for index in range(self._count()) if (gpu := self._uuid(index)) is not None)
        return tuple(r for index, gpu in listed if (r := self._read_known(index, gpu)) is not None)

    def unread(self) -> Mapping[int, str]:
        """GPUs that NVML lists and that do not answer, by its index, with the code of what was heard."""
        found: dict[int, str] = {}
        for index in range(self._count()):
            try:
                self.reading(self._opened(index))
            except DynamigError as error:
                found[index] = error.code
        return found

    def reading(self, gpu: GpuUuid) -> GpuReading:
        return self._on(gpu, "reading the GPU", self._read)

    def minor(self, gpu: GpuUuid) -> int:
        return self._on(gpu, "reading its minor", lambda h: int(pynvml.nvmlDeviceGetMinorNumber(h)))

    def mig_mode(self, gpu: GpuUuid) -> MigMode:
        return self._on(gpu, "reading its MIG mode", lambda h: read_mig_mode(h)[0])

    def instances(self, gpu: GpuUuid) -> Sequence[LiveInstance]:
        return self._on(gpu, "listing GPU instances", instances.list_instances)

    def create_gpu_instance(self, gpu: GpuUuid, partition: Partition) -> GiId:
        return self._on(gpu, "making a GPU instance", lambda h: instances.create_gpu_instance(h, partition))

    def create_compute_instance(self, gpu: GpuUuid, gi: GiId) -> CiId:
        return self._on(gpu, "making a compute instance", lambda h: instances.create_compute_instance(h, gi))

    def destroy_compute_instance(self, gpu: GpuUuid, gi: GiId, ci: CiId) -> None:
        self._on(gpu, "destroying a compute instance", lambda h: instances.destroy_compute_instance(h, gi, ci))

    def destroy_gpu_instance(self, gpu: GpuUuid, gi: GiId) -> None:
        self._on(gpu, "destroying a GPU instance", lambda h: instances.destroy_gpu_instance(h, gi))

    def set_mig_mode(self, gpu: GpuUuid, *, on: bool) -> None:
        """MIG mode is `on` afterwards: read back, since NVML may answer success and leave it pending."""
        self._on(gpu, "switching MIG mode", lambda h: _switch_mode(h, gpu, on))

    def _read(self, handle: Handle) -> GpuReading:
        return read_gpu(handle, int(pynvml.nvmlDeviceGetIndex(handle)), self._sys_root)

    def _count(self) -> int:
        return self._run(_SYSTEM, "counting GPUs", lambda: int(pynvml.nvmlDeviceGetCount()))

    def _opened(self, index: int) -> GpuUuid:
        """Raises what NVML says of one that is lost or denied, and NVML_TIMEOUT of one that hangs on the thread that
        this index has for it."""
        return self._run(GpuUuid(f"index {index}"), f"GPU {index}: opening it", lambda: _uuid_of(index))

    def _uuid(self, index: int) -> GpuUuid | None:
        """None for a GPU that cannot be opened."""
        try:
            return self._opened(index)
        except DynamigError as error:
            log.warning("gpu_unreadable", index=index, error=str(error))
            return None

    def _read_known(self, index: int, gpu: GpuUuid) -> GpuReading | None:
        """None for a GPU that NVML lists but that does not answer: the others are read all the same."""
        try:
            return self._on(gpu, "reading the GPU", self._read)
        except DynamigError as error:
            log.warning("gpu_unreadable", index=index, gpu=gpu, error=str(error))
            return None

    def _on(self, gpu: GpuUuid, what: str, call: Callable[[Handle], T]) -> T:
        def with_handle() -> T:
            return call(pynvml.nvmlDeviceGetHandleByUUID(gpu))

        return self._run(gpu, f"{gpu}: {what}", with_handle)

    def _run(self, gpu: GpuUuid, what: str, call: Callable[[], T]) -> T:
        def told() -> T:
            with translated(what):
                return call()

        with self._lock:
            worker = self._workers.setdefault(gpu, _Worker(gpu))
        return worker.run(told, what, self._deadline)


class _Worker:
    """The one thread of one GPU. `_stuck`: the call that outran its deadline and has not come back."""

    def __init__(self, gpu: GpuUuid) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"nvml-{gpu}")
        self._stuck: Future[Any] | None = None

    def run(self, call: Callable[[], T], what: str, deadline: float) -> T:
        if self._stuck is not None and not self._stuck.done():
            raise Unavailable("NVML_TIMEOUT", f"{what}: an earlier NVML call on this GPU hangs", _HANGS)
        future = self._pool.submit(call)
        try:
            return future.result(timeout=deadline)
        except TimeoutError:
            if future.done():  # the call itself raised a TimeoutError
                raise
            self._stuck = future
            raise Unavailable("NVML_TIMEOUT", f"{what}: no answer within {deadline:.0f} s", _HANGS) from None

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


_HANGS: Final = "see the kernel log for XID errors; other GPUs are not affected"


def _uuid_of(index: int) -> GpuUuid:
    return GpuUuid(text(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))))


def _switch_mode(handle: Handle, gpu: GpuUuid, on: bool) -> None:
    status = int(pynvml.nvmlDeviceSetMigMode(handle, int(on)))
    current, _ = read_mig_mode(handle)
    if current is not (MigMode.ON if on else MigMode.OFF):
        reason = str(pynvml.NVMLError(status)) if status else "the mode did not change"
        raise Unavailable(
            "MIG_MODE_SWITCHING",
            f"{gpu}: MIG mode is still {current.value}: {reason}",
            "a client may hold the GPU, or it needs a reset",
        )
