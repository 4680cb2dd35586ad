"""Many processes on one node, some of them killed in the middle of a call: no reader ever sees half a change."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pickle
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pynvml
import pytest

from dynamig.errors import Unavailable
from dynamig.testing.emulator import Emulator, SeenGpu, node
from dynamig.testing.emulator.node import locked
from tests.integration.emulator.clients import (
    IN_USE,
    INVALID_ARGUMENT,
    NO_ROOM,
    NOT_FOUND,
    Nvml,
    code_of,
    open_nvml,
)
from tests.integration.emulator.conftest import Make

ROUNDS = 250


def forked(work: Callable[[], Any]) -> tuple[int, int]:
    """(pid, descriptor): a child that does the work on the NVML it inherited and sends what it returns."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 1
    try:
        os.close(reading)
        with os.fdopen(writing, "wb") as out:
            pickle.dump(work(), out)
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def result(pid: int, descriptor: int) -> Any:
    with os.fdopen(descriptor, "rb") as sent:
        data = sent.read()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return pickle.loads(data)


TAKEN_BY_THE_OTHER = {INVALID_ARGUMENT, NOT_FOUND, IN_USE, NO_ROOM}
"""What a writer may hear of instances that another writer has just destroyed, filled or crowded out."""


def churn(nvml: Nvml, seed: int) -> None:
    """Make, fill, empty and destroy for ever, on whatever is there."""
    dice = random.Random(seed)
    while True:
        try:
            gi = nvml.create_anywhere(dice.choice((19, 14, 9, 15)), gpu := dice.randrange(2))
            ci = nvml.fill(gi)
            if dice.random() < 0.8:
                pynvml.nvmlComputeInstanceDestroy(ci)
                pynvml.nvmlGpuInstanceDestroy(gi)
            else:
                sweep(nvml, gpu, dice)
        except pynvml.NVMLError as error:
            if error.value not in TAKEN_BY_THE_OTHER:
                raise


def sweep(nvml: Nvml, gpu: int, dice: random.Random) -> None:
    """Destroy some of what lives on the GPU, by id, as a restarted client would."""
    handle = nvml.gpu(gpu)
    for gi_id in range(15):
        if code_of(pynvml.nvmlDeviceGetGpuInstanceById, handle, gi_id) or dice.random() < 0.4:
            continue
        gi = pynvml.nvmlDeviceGetGpuInstanceById(handle, gi_id)
        for ci_id in range(8):
            if code_of(pynvml.nvmlGpuInstanceGetComputeInstanceById, gi, ci_id) == 0:
                pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(gi, ci_id))
        pynvml.nvmlGpuInstanceDestroy(gi)


def check_gpu(gpu: SeenGpu) -> None:
    """No memory slice twice, no id twice, no compute instance without its GPU instance, no UUID twice."""
    slices = [s for gi in gpu.gpu_instances for s in range(gi.start, gi.start + gi.size)]
    assert len(slices) == len(set(slices))
    assert all(s < gpu.memory_slices for s in slices)
    ids = [gi.gi_id for gi in gpu.gpu_instances]
    assert len(ids) == len(set(ids))
    uuids = [ci.mig_uuid for gi in gpu.gpu_instances for ci in gi.compute_instances]
    assert len(uuids) == len(set(uuids))


def check_tree(emulator: Emulator) -> None:
    """Capability files and nodes are exactly those of the living."""
    root, expected, numbers = emulator.directory, set(), {1, 2}
    for gpu in emulator.show().gpus:
        for gi in gpu.gpu_instances:
            base = 3 + gpu.minor * 135 + gi.gi_id * 9
            here = f"gpu{gpu.minor}/mig/gi{gi.gi_id}"
            expected |= {f"{here}/access"} | {f"{here}/ci{ci.ci_id}/access" for ci in gi.compute_instances}
            numbers |= {base} | {base + 1 + ci.ci_id for ci in gi.compute_instances}
    caps = root / "proc/driver/nvidia/capabilities"
    assert {str(p.relative_to(caps)) for p in caps.glob("gpu*/**/access")} == expected
    assert {int(p.name.removeprefix("nvidia-cap")) for p in (root / "dev/nvidia-caps").iterdir()} == numbers
    gpus = emulator.show().gpus
    busy = {f"gpu{gpu.index}" for gpu in gpus}
    for gpu in gpus:
        for gi in gpu.gpu_instances:
            name = f"gpu{gpu.index}-gi{gi.gi_id}"
            busy |= {name, *(f"{name}-ci{ci.ci_id}" for ci in gi.compute_instances)}
    assert {p.name for p in (root / "state/busy").iterdir()} == busy


def test_kill_at_any_instant_leaves_a_whole_node(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:2", trace=False)
    dice = random.Random(20240607)
    with open_nvml(emulator) as nvml:
        for number in range(ROUNDS):
            writers = [forked(partial(churn, nvml, number * 2 + i)) for i in range(2)]
            deadline = time.monotonic() + dice.uniform(0, 0.02)
            while time.monotonic() < deadline:
                for gpu in emulator.show().gpus:
                    check_gpu(gpu)
                nvml.mig_devices(0)
            for pid, descriptor in writers:
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                os.close(descriptor)
                assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "the writer died by itself"
            for gpu in emulator.show().gpus:
                check_gpu(gpu)
                visible = nvml.mig_devices(gpu.index)
                assert len(visible) == sum(len(gi.compute_instances) for gi in gpu.gpu_instances)
            pynvml.nvmlDeviceSetMigMode(nvml.gpu(0), 1)  # any writer heals the tree
            check_tree(emulator)
        assert emulator.show().revision > ROUNDS


def owner(nvml: Nvml, seed: int, count: int) -> set[tuple[int, int, str]]:
    """Random operations; returns what this process has made and not destroyed: (GPU, start, MIG UUID)."""
    dice = random.Random(seed)
    mine: list[tuple[int, Any, Any, str]] = []
    for _ in range(count):
        if mine and dice.random() < 0.5:
            gpu, gi, ci, uuid = mine.pop(dice.randrange(len(mine)))
            assert nvml.uuid_of(ci) == uuid
            pynvml.nvmlComputeInstanceDestroy(ci)
            pynvml.nvmlGpuInstanceDestroy(gi)
            assert code_of(pynvml.nvmlGpuInstanceGetInfo, gi) == INVALID_ARGUMENT
            continue
        gpu = dice.randrange(2)
        try:
            gi = nvml.create(*dice.choice(((19, dice.randrange(7), 1), (14, 2 * dice.randrange(3), 2), (9, 4, 4))), gpu)
        except pynvml.NVMLError_InsufficientResources:
            continue
        ci = nvml.fill(gi)
        mine.append((gpu, gi, ci, nvml.uuid_of(ci)))
    return {(gpu, nvml.start(gi), uuid) for gpu, gi, _, uuid in mine}


def test_four_processes_never_take_from_each_other(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:2", trace=False)
    with open_nvml(emulator) as nvml:
        workers = [forked(partial(owner, nvml, seed, 700)) for seed in range(4)]
        owned = [result(*worker) for worker in workers]
    together = set().union(*owned)
    assert sum(map(len, owned)) == len(together)
    seen = {
        (gpu.index, gi.start, gi.compute_instances[0].mig_uuid)
        for gpu in emulator.show().gpus
        for gi in gpu.gpu_instances
    }
    assert seen == together
    check_tree(emulator)


def fork_in_the_middle_of_a_change(emulator: Emulator, nvml: Nvml, child: int) -> None:
    """A thread stops inside a change, with the lock: nobody reads the events. This one forks a sleeper and dies."""
    before = emulator.show().revision
    threading.Thread(target=nvml.create, args=(19, 0, 1), daemon=True).start()
    while emulator.show().revision == before:
        time.sleep(0.001)
    if pid := os.fork():
        os.write(child, pid.to_bytes(4, "little"))
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def test_a_fork_does_not_keep_the_lock_of_a_dead_writer(make: Make) -> None:
    emulator = make(trace=False)
    events = emulator.directory / "state/events"
    events.unlink()
    os.mkfifo(events)
    reading, writing = os.pipe()
    with open_nvml(emulator) as nvml:
        pid, descriptor = forked(partial(fork_in_the_middle_of_a_change, emulator, nvml, writing))
        os.waitpid(pid, 0)
    child = int.from_bytes(os.read(reading, 4), "little")
    for end in (reading, writing, descriptor):
        os.close(end)
    events.unlink()
    events.touch()
    try:
        wait_for_lock(emulator.directory / "state/lock")
    finally:
        os.kill(child, signal.SIGKILL)


def wait_for_lock(path: Path) -> None:
    """Fails if nobody lets go of it."""
    deadline = time.monotonic() + 30
    with path.open() as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                assert time.monotonic() < deadline, f"{path} stays locked"
                time.sleep(0.01)


def cloned() -> int:
    """The pid of a child that has copies of all descriptors, as clone(2) makes it: no handler of fork has run in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    stack = ctypes.create_string_buffer(1 << 16)
    top = (ctypes.addressof(stack) + len(stack)) & ~15
    pid = libc.clone(ctypes.cast(libc.pause, ctypes.c_void_p), ctypes.c_void_p(top), signal.SIGCHLD, None)
    assert pid > 0, os.strerror(ctypes.get_errno())
    return int(pid)


@contextmanager
def sleeping(pid: int) -> Iterator[None]:
    """The child lives while the block lasts."""
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def forked_sleeper() -> int:
    if (pid := os.fork()) == 0:
        time.sleep(600)
        os._exit(1)
    return pid


def test_a_writer_that_is_done_lets_go_of_the_lock_whoever_has_a_copy(make: Make) -> None:
    emulator = make(trace=False)
    events = emulator.directory / "state/events"
    events.unlink()
    os.mkfifo(events)
    with open_nvml(emulator) as nvml:
        before = emulator.show().revision
        writer = threading.Thread(target=nvml.create, args=(19, 0, 1))
        writer.start()  # it stops inside the change, with the lock: nobody reads the events
        while emulator.show().revision == before:
            time.sleep(0.001)
        with sleeping(cloned()):
            reader = os.open(events, os.O_RDONLY)
            writer.join()
            os.close(reader)
            wait_for_lock(emulator.directory / "state/lock")


def test_the_control_side_lets_go_of_its_locks_whoever_has_a_copy(make: Make) -> None:
    emulator = make(mig=False, trace=False)
    with locked(emulator.directory / "state/lock"):
        child = cloned()
    with sleeping(child):
        wait_for_lock(emulator.directory / "state/lock")
    with emulator.hold(0):
        child = forked_sleeper()
    with sleeping(child):
        emulator.reset(0)  # refused while a program runs


def test_a_program_that_ends_its_nvml_holds_nothing_though_its_child_lives(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator = make(mig=False, trace=False)
    monkeypatch.setenv("DYNAMIG_EMULATOR_HOLD", "1")
    with open_nvml(emulator):
        child = forked_sleeper()
        with pytest.raises(Unavailable, match="held"):
            emulator.reset(0)
    with sleeping(child):
        emulator.reset(0)


def open_files(pid: int) -> set[str]:
    folder = Path(f"/proc/{pid}/fd")
    return {os.readlink(one) for one in folder.iterdir() if os.path.lexists(one)}


def test_a_fork_does_not_keep_the_control_sides_lock(make: Make) -> None:
    emulator = make(trace=False)
    taken, release = threading.Event(), threading.Event()

    def hold_the_lock() -> None:
        with locked(emulator.directory / "state/lock"):
            taken.set()
            release.wait(60)

    holder = threading.Thread(target=hold_the_lock)
    holder.start()
    assert taken.wait(60)
    child = os.fork()
    if child == 0:
        time.sleep(600)
    try:
        lock = str(emulator.directory / "state/lock")
        assert lock in open_files(os.getpid())
        deadline = time.monotonic() + 60
        while lock in open_files(child):
            assert time.monotonic() < deadline, "the child keeps its copy"
            time.sleep(0.01)
    finally:
        release.set()
        holder.join()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_last_holder_of_a_lock_may_die_with_it(make: Make, tmp_path: Path) -> None:
    emulator = make()
    script = tmp_path / "locked"

    def hold_the_lock() -> None:
        with emulator.hold(0):
            script.touch()
            time.sleep(60)

    with open_nvml(emulator) as nvml:
        pid, descriptor = forked(hold_the_lock)
        while not script.exists():
            time.sleep(0.005)
        assert code_of(nvml.create, 19, 0, 1) == IN_USE
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(descriptor)
        assert code_of(nvml.create, 19, 0, 1) == 0


@pytest.mark.parametrize("operation", ["reset", "reboot", "remove_foreign"])
def test_the_control_side_does_not_hide_what_a_dead_writer_left(make: Make, operation: str) -> None:
    emulator = make("h100-80gb-sxm5:2", trace=False)
    gi = emulator.foreign(1, "1g.10gb", 0)
    access = emulator.directory / f"proc/driver/nvidia/capabilities/gpu1/mig/gi{gi}/ci0/access"
    access.unlink()  # as a writer killed just before the commit that ends ci0
    (emulator.directory / "dev/nvidia-caps/nvidia-cap200").touch()  # ... that makes an instance
    (emulator.directory / "state/busy/gpu1-gi14").touch()
    (emulator.directory / f"state/busy/gpu1-gi{gi}-ci1").touch()
    (emulator.directory / "state/tree.dirty").touch()
    getattr(emulator, operation)(*([] if operation == "reboot" else [0]))
    with open_nvml(emulator) as nvml:
        pynvml.nvmlDeviceSetMigMode(nvml.gpu(0), 1)
    check_tree(emulator)
    assert not (emulator.directory / "state/tree.dirty").exists()


def test_the_control_sides_own_mark_is_gone_before_it_lets_go_of_the_lock(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator = make(trace=False)
    emulator.foreign(0, "1g.10gb", 0)
    dirty: list[bool] = []
    let_go = node._close_lock

    def look_and_let_go(descriptor: int) -> None:
        dirty.append((emulator.directory / "state/tree.dirty").exists())
        let_go(descriptor)

    monkeypatch.setattr(node, "_close_lock", look_and_let_go)
    emulator.reset(0)
    assert set(dirty) == {False}  # the last is the node's, after those of looks at who is busy
