"""This process, or another, as an NVML client of an emulated node."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from dynamig.testing.emulator import Emulator, find_library

NOT_SUPPORTED, INVALID_ARGUMENT, NO_PERMISSION, NOT_FOUND = 3, 2, 4, 6
IN_USE, NO_ROOM, LOST, VERSION_MISMATCH = 19, 23, 15, 25

CODE = """
import pynvml
def code(call, *arguments):
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return error.value
    return 0
"""
"""For scripts of other processes: what NVML answers to a call, 0 for success."""


def loaded(library: Path) -> Path:
    """The library is in this process: pynvml's own look-up by SONAME then finds it."""
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return library


@dataclass(frozen=True)
class Nvml:
    """What tests do most, over pynvml. GPUs by index, instances by handle."""

    def gpu(self, index: int = 0) -> Any:
        return pynvml.nvmlDeviceGetHandleByIndex(index)

    def create(self, profile_id: int, start: int, size: int, gpu: int = 0) -> Any:
        placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
        return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(self.gpu(gpu), profile_id, ctypes.byref(placement))

    def create_anywhere(self, profile_id: int, gpu: int = 0) -> Any:
        return pynvml.nvmlDeviceCreateGpuInstance(self.gpu(gpu), profile_id)

    def info(self, gi: Any) -> Any:
        return pynvml.nvmlGpuInstanceGetInfo(gi)

    def start(self, gi: Any) -> int:
        return int(self.info(gi).placement.start)

    def fill(self, gi: Any, profile_id: int | None = None) -> Any:
        """A compute instance; without a profile, the first of those with most multiprocessors."""
        if profile_id is None:
            kinds = self.ci_profiles(gi)
            self.info(gi)  # raises if another process destroyed it while we asked: the list is then cut short
            profile_id = max(kinds, key=lambda p: p.multiprocessorCount).id
        return pynvml.nvmlGpuInstanceCreateComputeInstance(gi, profile_id)

    def ci_profiles(self, gi: Any) -> list[Any]:
        return list(_until_invalid(lambda c: pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, c, 0)))

    def profiles(self, gpu: int = 0) -> list[Any]:
        handle = self.gpu(gpu)
        return list(_until_invalid(lambda c: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, c)))

    def placements(self, profile_id: int, gpu: int = 0) -> list[tuple[int, int]]:
        handle, count = self.gpu(gpu), ctypes.c_uint(0xDEAD)  # output only: what was in it must not matter
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
        found = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, found, ctypes.byref(count))
        return [(p.start, p.size) for p in found]

    def free(self, profile_id: int, gpu: int = 0) -> int:
        return int(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(self.gpu(gpu), profile_id))

    def mig_devices(self, gpu: int = 0) -> list[Any]:
        handle, found = self.gpu(gpu), []
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
            except pynvml.NVMLError_NotFound:
                break
        return found

    def uuid_of(self, ci: Any) -> str:
        """The UUID of a compute instance's MIG device, asked by ids: indices move while others destroy theirs."""
        info = pynvml.nvmlComputeInstanceGetInfo(ci)
        gi = pynvml.nvmlGpuInstanceGetInfo(info.gpuInstance)
        by_ids = f"MIG-{pynvml.nvmlDeviceGetUUID(info.device)}/{gi.id}/{info.id}"
        return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(by_ids)))


def _until_invalid(ask: Any) -> Iterator[Any]:
    constant = 0
    while True:
        try:
            yield ask(constant)
        except pynvml.NVMLError_InvalidArgument:
            return
        except pynvml.NVMLError_NotSupported:
            pass
        constant += 1


def code_of(call: Any, *arguments: Any) -> int:
    """NVML's return code of a call; 0 for success."""
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


@contextmanager
def open_nvml(emulator: Emulator) -> Iterator[Nvml]:
    """NVML is initialised on this node while the block lasts."""
    before = os.environ.get("DYNAMIG_EMULATOR_DIR")
    os.environ["DYNAMIG_EMULATOR_DIR"] = str(emulator.directory)
    try:
        pynvml.nvmlInit()
        try:
            yield Nvml()
        finally:
            pynvml.nvmlShutdown()
    finally:
        if before is None:
            del os.environ["DYNAMIG_EMULATOR_DIR"]
        else:
            os.environ["DYNAMIG_EMULATOR_DIR"] = before


def environment(emulator: Emulator, **more: str) -> dict[str, str]:
    """What a client process needs to run on the node."""
    library = str(find_library().parent)
    return {**os.environ, "LD_LIBRARY_PATH": library, "DYNAMIG_EMULATOR_DIR": str(emulator.directory), **more}


def run_python(emulator: Emulator, script: str, *arguments: str, under: Sequence[str] = (), **more: str) -> str:
    """Standard output of a Python client in a process of its own; its failure is the test's. `under`: what runs it."""
    done = subprocess.run(
        [*under, sys.executable, "-c", script, *arguments],
        env=environment(emulator, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


HOLD = """
import sys
from dynamig.testing.emulator import Emulator
directory, *where = sys.argv[1:]
with Emulator(directory).hold(*map(int, where)):
    print("on", flush=True)
    sys.stdin.read()
"""


@contextmanager
def program_on(emulator: Emulator, *where: int) -> Iterator[int]:
    """A process of its own, whose pid this is, holds a GPU, GPU instance or compute instance while the block lasts."""
    program = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(emulator.directory), *map(str, where)],
        env=environment(emulator),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"on\n"
        yield program.pid
    finally:
        program.communicate(b"")


def nvml_list(emulator: Emulator, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(find_library().parent / "nvml-list"), *arguments]
    return subprocess.run(command, env=environment(emulator), capture_output=True, text=True, timeout=60, check=False)
