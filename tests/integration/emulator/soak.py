"""Random operations whose every result is predicted, by threads that may be killed at any moment.

Each thread owns one GPU of a node that all processes share, so the model (`dynamig.mig`) knows exactly what the GPU
holds and what each call must answer. Before a thread changes something it writes what the GPU will hold into memory
that its parent sees, and afterwards that it does: whenever it is killed, the GPU must hold the one or the other.
"""

from __future__ import annotations

import os
import random
import struct
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any

import pynvml

from dynamig.mig import CiProfileId, GiProfileId, Partition, Placement, Table, cuts, drivers_choice
from dynamig.testing.emulator import SeenGpu
from tests.integration.emulator.clients import IN_USE, NO_ROOM, Nvml, code_of

SLOT = struct.Struct("<QQQ")


class Slot:
    """What one thread has done, in memory that is shared with its parent: operations, what its GPU holds, what it will.

    Sets of partitions are bits over `Table.options`, those of filled ones above them.
    """

    def __init__(self, memory: mmap, number: int) -> None:
        self._memory, self._at = memory, number * SLOT.size

    def read(self) -> tuple[int, int, int]:
        return SLOT.unpack_from(self._memory, self._at)

    def _write(self, field_number: int, value: int) -> None:
        """One aligned word: a reader, or a kill, sees the old or the new one."""
        at = self._at + 8 * field_number
        self._memory[at : at + 8] = value.to_bytes(8, "little")

    def count(self, operations: int) -> None:
        self._write(0, operations)

    def intend(self, bits: int) -> None:
        self._write(2, bits)

    def settle(self, bits: int) -> None:
        self._write(1, bits)


def bits_of(table: Table, live: set[Partition], filled: set[Partition]) -> int:
    width = len(table.options)
    return sum(1 << table.index(p) for p in live) | sum(1 << width + table.index(p) for p in filled)


def bits_seen(table: Table, gpu: SeenGpu) -> int:
    """The same of what the state file says."""
    live = {Partition(GiProfileId(gi.profile_id), Placement(gi.start, gi.size)): gi for gi in gpu.gpu_instances}
    return bits_of(table, set(live), {p for p, gi in live.items() if gi.compute_instances})


def _filling(table: Table, profile: GiProfileId) -> CiProfileId:
    return max(cuts(table.geometry, profile).profiles, key=lambda one: one.multiprocessors).id


@dataclass
class Owner:
    """A thread's picture of its GPU. Every operation checks NVML's answer against the model."""

    nvml: Nvml
    gpu: int
    table: Table
    slot: Slot
    dice: random.Random
    live: dict[Partition, Any] = field(default_factory=dict)
    filled: dict[Partition, Any] = field(default_factory=dict)
    whole: dict[GiProfileId, CiProfileId] = field(init=False)
    """The compute instance profile that fills a GPU instance."""

    def __post_init__(self) -> None:
        self.whole = {p.id: _filling(self.table, p.id) for p in self.table.geometry.profiles}

    def adopt(self) -> None:
        """What lives on the GPU, found by ids as a restarted client finds it."""
        handle = self.nvml.gpu(self.gpu)
        for gi_id in range(15):
            if code_of(pynvml.nvmlDeviceGetGpuInstanceById, handle, gi_id):
                continue
            gi = pynvml.nvmlDeviceGetGpuInstanceById(handle, gi_id)
            info = self.nvml.info(gi)
            at = Partition(GiProfileId(info.profileId), Placement(info.placement.start, info.placement.size))
            self.live[at] = gi
            if code_of(pynvml.nvmlGpuInstanceGetComputeInstanceById, gi, 0) == 0:
                self.filled[at] = pynvml.nvmlGpuInstanceGetComputeInstanceById(gi, 0)
        bits = bits_of(self.table, set(self.live), set(self.filled))
        assert bits == self.slot.read()[1], "another process sees another GPU"

    def step(self) -> None:
        operation = self.dice.choices(
            (self.create, self.create_anywhere, self.destroy, self.fill, self.empty, self.look), (5, 2, 3, 4, 3, 2)
        )[0]
        operation()

    def changing(self, live: set[Partition], filled: set[Partition], call: Callable[[], Any]) -> tuple[int, Any]:
        """The call's code and result, announced before and noted afterwards if it succeeds."""
        bits = bits_of(self.table, live, filled)
        self.slot.intend(bits)
        made: list[Any] = []
        code = code_of(lambda: made.append(call()))
        if code == 0:
            self.slot.settle(bits)
        return code, made[0] if made else None

    def create(self) -> None:
        wanted = self.dice.choice(self.table.options)
        fits = self.table.fits(self.live, wanted)
        at = wanted.placement
        code, gi = self.changing(
            {*self.live, wanted},
            set(self.filled),
            lambda: self.nvml.create(wanted.profile, at.start, at.size, self.gpu),
        )
        assert code == (0 if fits else NO_ROOM), (wanted, sorted(self.live))
        if code == 0:
            self.live[wanted] = gi

    def create_anywhere(self) -> None:
        profile = self.dice.choice(self.table.geometry.profiles).id
        chosen = drivers_choice(self.table, self.live, profile)
        after = {*self.live, chosen} if chosen else set(self.live)
        code, gi = self.changing(after, set(self.filled), lambda: self.nvml.create_anywhere(profile, self.gpu))
        assert code == (0 if chosen else NO_ROOM), (profile, sorted(self.live))
        if chosen:
            assert self.nvml.start(gi) == chosen.placement.start
            self.live[chosen] = gi

    def _one_of(self, some: dict[Partition, Any]) -> Partition | None:
        return self.dice.choice(sorted(some)) if some else None

    def destroy(self) -> None:
        if (gone := self._one_of(self.live)) is None:
            return
        code, _ = self.changing(
            self.live.keys() - {gone}, set(self.filled), lambda: pynvml.nvmlGpuInstanceDestroy(self.live[gone])
        )
        assert code == (IN_USE if gone in self.filled else 0)
        if code == 0:
            del self.live[gone]

    def fill(self) -> None:
        if (at := self._one_of(self.live)) is None:
            return
        code, ci = self.changing(
            set(self.live), {*self.filled, at}, lambda: self.nvml.fill(self.live[at], self.whole[at.profile])
        )
        assert code == (NO_ROOM if at in self.filled else 0)
        if code == 0:
            self.filled[at] = ci

    def empty(self) -> None:
        if (at := self._one_of(self.filled)) is None:
            return
        code, _ = self.changing(
            set(self.live),
            self.filled.keys() - {at},
            lambda: pynvml.nvmlComputeInstanceDestroy(self.filled[at]),
        )
        assert code == 0
        del self.filled[at]

    def look(self) -> None:
        profile = self.dice.choice(self.table.geometry.profiles).id
        assert self.nvml.free(profile, self.gpu) == self.table.remaining(self.live, profile)
        assert len(self.nvml.mig_devices(self.gpu)) == len(self.filled)
        for at, gi in self.live.items():
            assert self.nvml.start(gi) == at.placement.start


@dataclass(frozen=True)
class Gang:
    """One process with a thread for each of its GPUs. It ends by itself when `stop` says so, or is killed."""

    gpus: tuple[int, ...]
    pid: int

    @staticmethod
    def started(nvml: Nvml, table: Table, slots: list[Slot], stop: mmap, gpus: tuple[int, ...], seed: int) -> Gang:
        pid = os.fork()
        if pid:
            return Gang(gpus, pid)
        code = 1
        try:
            _run_threads(nvml, table, slots, stop, gpus, seed)
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)


def _run_threads(nvml: Nvml, table: Table, slots: list[Slot], stop: mmap, gpus: tuple[int, ...], seed: int) -> None:
    failed: list[BaseException] = []

    def run(gpu: int) -> None:
        try:
            owner = Owner(nvml, gpu, table, slots[gpu], random.Random(seed * 64 + gpu))
            owner.adopt()
            for count in _counting_from(slots[gpu].read()[0]):
                if stop[0] or failed:
                    return
                owner.step()
                owner.slot.count(count)
        except BaseException as error:  # noqa: BLE001  raised again below, in the process's first thread
            failed.append(error)

    threads = [threading.Thread(target=run, args=(gpu,)) for gpu in gpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def _counting_from(done: int) -> Iterator[int]:
    while True:
        done += 1
        yield done
