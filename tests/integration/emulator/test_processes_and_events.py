"""Programs on instances (IN_USE), and events that clients wait for."""

import ctypes
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

from dynamig.errors import Refused, Unavailable
from dynamig.testing.emulator import Emulator, layout
from tests.integration.emulator.clients import (
    IN_USE,
    INVALID_ARGUMENT,
    LOST,
    Nvml,
    code_of,
    environment,
    open_nvml,
    program_on,
    run_python,
)
from tests.integration.emulator.conftest import Make
from tests.integration.emulator.test_unknown_models import entry, profile, write

Client = tuple[Emulator, Nvml]


def test_a_held_instance_cannot_be_destroyed_and_says_who_holds_it(nvml: Client) -> None:
    emulator, client = nvml
    gi = client.create(9, 4, 4)
    ci = client.fill(gi)
    [mig] = client.mig_devices()
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(mig) == []
    with emulator.hold(0, client.info(gi).id):
        assert code_of(pynvml.nvmlComputeInstanceDestroy, ci) == IN_USE
        assert [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(mig)] == [os.getpid()]
        assert [p.gpuInstanceId for p in pynvml.nvmlDeviceGetComputeRunningProcesses(client.gpu())] == [
            client.info(gi).id
        ]
    pynvml.nvmlComputeInstanceDestroy(ci)
    pynvml.nvmlGpuInstanceDestroy(gi)


def test_a_neighbour_is_not_busy(nvml: Client) -> None:
    emulator, client = nvml
    busy, idle = client.create(9, 4, 4), client.create(9, 0, 4)
    with emulator.hold(0, client.info(busy).id):
        assert code_of(pynvml.nvmlGpuInstanceDestroy, busy) == IN_USE
        assert code_of(pynvml.nvmlGpuInstanceDestroy, idle) == 0


def test_a_program_keeps_its_compute_instance_and_not_the_one_beside_it(nvml: Client) -> None:
    emulator, client = nvml
    gi = client.create(9, 4, 4)
    held, idle = client.fill(gi, 0), client.fill(gi, 0)
    number = client.info(gi).id
    ids = [pynvml.nvmlComputeInstanceGetInfo(ci).id for ci in (held, idle)]
    emulator.feed(["0 gpu0@4 used=600"])
    with program_on(emulator, 0, number, ids[0]) as pid:
        listed = [pynvml.nvmlDeviceGetComputeRunningProcesses(mig) for mig in client.mig_devices()]
        assert [[(p.pid, p.computeInstanceId) for p in each] for each in listed] == [[(pid, ids[0])], []]
        [seen] = pynvml.nvmlDeviceGetComputeRunningProcesses(client.gpu())
        assert (seen.pid, seen.gpuInstanceId, seen.computeInstanceId) == (pid, number, ids[0])
        assert seen.usedGpuMemory == 600 << 20
        assert code_of(pynvml.nvmlComputeInstanceDestroy, held) == IN_USE
        assert code_of(pynvml.nvmlComputeInstanceDestroy, idle) == 0
        with pytest.raises(Unavailable, match=f"held by process {pid}"):
            emulator.reset(0)
    assert code_of(pynvml.nvmlComputeInstanceDestroy, held) == 0


def test_who_holds_a_gpu_instance_runs_on_each_of_its_compute_instances(nvml: Client) -> None:
    emulator, client = nvml
    gi = client.create(9, 4, 4)
    inside = [client.fill(gi, 0), client.fill(gi, 0)]
    emulator.feed(["0 gpu0@4 used=600"])
    number = client.info(gi).id
    with program_on(emulator, 0, number) as all_of_it, program_on(emulator, 0, number, 1) as one:
        listed = [pynvml.nvmlDeviceGetComputeRunningProcesses(mig) for mig in client.mig_devices()]
        assert [sorted(p.pid for p in each) for each in listed] == [[all_of_it], sorted((all_of_it, one))]
        assert {p.usedGpuMemory >> 20 for each in listed for p in each} == {300}
        assert {code_of(pynvml.nvmlComputeInstanceDestroy, ci) for ci in inside} == {IN_USE}


def test_a_program_that_has_opened_a_device_twice_is_listed_once(make: Make) -> None:
    emulator = make(mig=False)
    emulator.feed(["0 gpu0 used=600"])
    with open_nvml(emulator) as nvml, emulator.hold(0), emulator.hold(0):
        [process] = pynvml.nvmlDeviceGetComputeRunningProcesses(nvml.gpu())
        assert (process.pid, process.usedGpuMemory) == (os.getpid(), 600 << 20)


def test_what_cannot_be_looked_at_counts_as_held(nvml: Client) -> None:
    emulator, client = nvml
    gi = client.create(9, 4, 4)
    ci, busy = client.fill(gi), emulator.directory / "state/busy"
    number = client.info(gi).id
    for name, call in (
        (f"gpu0-gi{number}-ci0", lambda: pynvml.nvmlComputeInstanceDestroy(ci)),
        (f"gpu0-gi{number}", lambda: pynvml.nvmlGpuInstanceDestroy(gi)),
        ("gpu0", lambda: client.create(19, 0, 1)),
    ):
        (busy / name).unlink()
        (busy / name).symlink_to(busy / name)  # no open of it succeeds, and it is not absent
        assert code_of(call) == IN_USE, name
        (busy / name).unlink()
        (busy / name).touch()
        assert code_of(call) == 0, name


@pytest.mark.parametrize("inner", [True, False], ids=["compute instance", "GPU instance"])
def test_nobody_gets_hold_of_an_instance_while_it_is_being_destroyed(make: Make, inner: bool) -> None:
    emulator = make(trace=False)
    with open_nvml(emulator) as client:
        gi = client.create(9, 4, 4)
        ci = client.fill(gi) if inner else None
        name = f"gpu0-gi{client.info(gi).id}" + "-ci0" * inner
        before = emulator.show().revision
        events = emulator.directory / "state/events"
        events.unlink()
        os.mkfifo(events)
        with (emulator.directory / "state/busy" / name).open() as opened:  # before it is unlinked
            destroy = pynvml.nvmlComputeInstanceDestroy if inner else pynvml.nvmlGpuInstanceDestroy
            writer = threading.Thread(target=destroy, args=(ci if inner else gi,))
            writer.start()  # it stops inside the change: nobody reads the events
            try:
                deadline = time.monotonic() + 30
                while emulator.show().revision == before:
                    assert time.monotonic() < deadline
                    time.sleep(0.001)
                with pytest.raises(BlockingIOError):
                    fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            finally:
                reader = os.open(events, os.O_RDONLY | os.O_NONBLOCK)
                writer.join()
                os.close(reader)


def test_nothing_can_be_made_while_somebody_holds_the_whole_gpu(nvml: Client) -> None:
    emulator, client = nvml
    with emulator.hold(0):
        assert code_of(client.create, 19, 0, 1) == IN_USE
    assert code_of(client.create, 19, 0, 1) == 0


def test_a_client_that_behaves_like_cuda_holds_what_it_sees_until_it_dies(make: Make) -> None:
    emulator = make()
    script = "import pynvml, sys; pynvml.nvmlInit(); print('on', flush=True); sys.stdin.read()"
    with open_nvml(emulator) as nvml:
        gi = nvml.create(9, 4, 4)
        ci = nvml.fill(gi)
        program = subprocess.Popen(
            [sys.executable, "-c", script],
            env=environment(emulator, DYNAMIG_EMULATOR_HOLD="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert program.stdout is not None
        assert program.stdout.readline() == b"on\n"
        assert code_of(pynvml.nvmlComputeInstanceDestroy, ci) == IN_USE
        program.kill()
        program.communicate()
        assert code_of(pynvml.nvmlComputeInstanceDestroy, ci) == 0


def test_a_client_holds_every_instance_it_sees_on_however_many_gpus(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:10")
    script = "import pynvml, sys; pynvml.nvmlInit(); print('on', flush=True); sys.stdin.read()"
    with open_nvml(emulator) as nvml:
        filled = [nvml.fill(nvml.create(19, start, 1, gpu)) for gpu in range(10) for start in range(7)]
        program = subprocess.Popen(
            [sys.executable, "-c", script],
            env=environment(emulator, DYNAMIG_EMULATOR_HOLD="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert program.stdout is not None
        assert program.stdout.readline() == b"on\n"
        answers = [code_of(pynvml.nvmlComputeInstanceDestroy, ci) for ci in filled]
        program.communicate(b"")
        assert answers == [IN_USE] * 70


TWO_NODES_WITH_EQUAL_INODES = """
set -eu
cd "$TMPDIR"
for node in held free; do
    mkdir $node
    mount -t tmpfs none $node
done
exec "$@"
"""

WHO_RUNS = """
import os, sys
from pathlib import Path
from dynamig.testing.emulator import Emulator
from tests.integration.emulator.clients import open_nvml
import pynvml
held, free = (Emulator(Path(name) / "node") for name in ("held", "free"))
for node in (held, free):
    node.init("h100-80gb-sxm5")
    node.foreign(0, "1g.10gb", 0)
inodes = [{f.name: f.stat().st_ino for f in (n.directory / "state/busy").iterdir()} for n in (held, free)]
assert inodes[0] == inodes[1], inodes
with held.hold(0, held.show().gpus[0].gpu_instances[0].gi_id):
    for node in (held, free):
        with open_nvml(node) as nvml:
            print([p.pid == os.getpid() for p in pynvml.nvmlDeviceGetComputeRunningProcesses(nvml.gpu())])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: two file systems, mounted")
def test_a_program_on_another_node_is_not_listed_though_its_file_has_the_same_number(
    make: Make, tmp_path: Path
) -> None:
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", TWO_NODES_WITH_EQUAL_INODES, "sh"]
    done = subprocess.run(
        [*command, sys.executable, "-c", WHO_RUNS],
        env=environment(make(), TMPDIR=str(tmp_path), PYTHONPATH=os.pathsep.join([os.getcwd(), *sys.path[1:]])),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[True]", "[]"]


def test_too_small_a_list_says_how_many_there_are(nvml: Client) -> None:
    import ctypes

    emulator, client = nvml
    ask = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses_v3")
    count = ctypes.c_uint(0)
    assert ask(client.gpu(), ctypes.byref(count), None) == 0
    with emulator.hold(0):
        assert ask(client.gpu(), ctypes.byref(count), None) == 7
        assert count.value == 1


HOLD_ALL = """
import fcntl, sys
from pathlib import Path
held = [path.open() for path in Path(sys.argv[1], "state/busy").iterdir()]
for file in held:
    fcntl.flock(file, fcntl.LOCK_SH)
print(len(held), flush=True)
sys.stdin.read()
"""


@contextmanager
def program_on_everything(emulator: Emulator) -> Iterator[int]:
    """A process that runs on the GPU, each GPU instance and each compute instance: on how many in all."""
    command = [sys.executable, "-c", HOLD_ALL, str(emulator.directory)]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert program.stdout is not None
        yield int(program.stdout.readline())
    finally:
        program.communicate(b"")


class FirstProcessInfo(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong))


def test_the_first_version_lists_as_many_processes_as_there_is_room_for(make: Make, tmp_path: Path) -> None:
    small = profile("1g.4gb", 0, 1, list(range(64)), 1, constant=0)
    emulator = make("wide", trace=False, geometry=write(tmp_path / "g.yaml", entry("Wide", 64, [small])))
    ask = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses")
    infos, count = (FirstProcessInfo * 300)(), ctypes.c_uint(300)
    with open_nvml(emulator) as nvml:
        for start in range(64):
            nvml.fill(nvml.create(0, start, 1), 0)
        with program_on_everything(emulator) as first, program_on_everything(emulator) as second:
            assert ask(nvml.gpu(), ctypes.byref(count), infos) == 0
    assert count.value == first + second == 2 * 129
    assert all(info.pid for info in infos[: count.value])
    assert not infos[count.value].pid


def test_holding_what_is_not_there_is_refused(make: Make) -> None:
    with pytest.raises(Refused, match="no GPU instance 3"), make().hold(0, 3):
        pass


def test_an_xid_reaches_those_who_registered_and_only_from_then_on(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:2")
    emulator.xid(0, 13)
    with open_nvml(emulator) as nvml:
        gi = nvml.create(9, 4, 4, gpu=1)
        nvml.fill(gi)
        gi_id = nvml.info(gi).id
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(nvml.gpu(1), 0x8, events)
        assert code_of(pynvml.nvmlEventSetWait, events, 20) == 10
        emulator.xid(0, 31)
        emulator.xid(1, 79, gi_id=gi_id, ci_id=0)
        event = pynvml.nvmlEventSetWait(events, 1000)
        assert (event.eventType, event.eventData) == (8, 79)
        assert (event.gpuInstanceId, event.computeInstanceId) == (gi_id, 0)
        assert pynvml.nvmlDeviceGetUUID(event.device) == pynvml.nvmlDeviceGetUUID(nvml.gpu(1))
        pynvml.nvmlEventSetFree(events)
        assert code_of(pynvml.nvmlEventSetWait, events, 20) == 2


def test_what_a_dead_writer_left_behind_the_events_garbles_none_that_follow(nvml: Client) -> None:
    emulator, client = nvml
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(client.gpu(), 0x108, events)
    path = emulator.directory / "state/events"

    def next_event() -> tuple[int, int]:
        event = pynvml.nvmlEventSetWait(events, 5000)
        return event.eventType, event.eventData

    for stray in (1, 7, ctypes.sizeof(layout.Event) - 1):
        with path.open("ab") as file:
            file.write(b"\xff" * stray)
        emulator.xid(0, 79)  # the control side appends it
        assert next_event() == (0x8, 79)
        with path.open("ab") as file:
            file.write(b"\xff" * stray)
        pynvml.nvmlGpuInstanceDestroy(client.create(9, 4, 4))  # the library appends two
        assert [next_event(), next_event()] == [(0x100, 0)] * 2
    assert path.stat().st_size % ctypes.sizeof(layout.Event) == 0


def test_who_waits_learns_that_another_thread_has_freed_the_set(nvml: Client) -> None:
    _, client = nvml
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(client.gpu(), 0x8, events)
    codes: list[int] = []
    waiter = threading.Thread(target=lambda: codes.append(code_of(pynvml.nvmlEventSetWait, events, 30_000)))
    waiter.start()
    waiter.join(0.1)
    assert waiter.is_alive()
    pynvml.nvmlEventSetFree(events)
    waiter.join(60)
    assert codes == [INVALID_ARGUMENT]


WITHOUT_A_DESCRIPTOR = """
import os, resource, pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
try:
    events = pynvml.nvmlEventSetCreate()
except pynvml.NVMLError as error:
    print(error.value)
os.close(taken.pop())
os.close(taken.pop())
events = pynvml.nvmlEventSetCreate()
pynvml.nvmlDeviceRegisterEvents(gpu, 0x8, events)
try:
    print(pynvml.nvmlEventSetWait(events, 10).eventData)
except pynvml.NVMLError as error:
    print(error.value)
"""


def test_no_event_set_is_made_that_would_tell_of_what_is_long_past(make: Make) -> None:
    emulator = make()
    emulator.xid(0, 13)
    said = run_python(emulator, WITHOUT_A_DESCRIPTOR).split()
    assert said == [str(pynvml.NVML_ERROR_UNKNOWN), str(pynvml.NVML_ERROR_TIMEOUT)]


def test_who_waits_learns_that_a_gpu_of_the_set_is_lost(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:2")
    with open_nvml(emulator) as nvml:
        events, others = pynvml.nvmlEventSetCreate(), pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(nvml.gpu(0), 0x8, events)
        pynvml.nvmlDeviceRegisterEvents(nvml.gpu(1), 0x8, others)
        got: list[int] = []
        waiter = threading.Thread(target=lambda: got.append(code_of(pynvml.nvmlEventSetWait, events, 30_000)))
        waiter.start()
        time.sleep(0.05)
        emulator.lose(0)
        waiter.join(20)
        assert got == [LOST]
        assert code_of(pynvml.nvmlEventSetWait, others, 20) == 10
        emulator.xid(0, 79)
        assert pynvml.nvmlEventSetWait(events, 20).eventData == 79
        assert code_of(pynvml.nvmlEventSetWait, events, 20) == LOST
        emulator.lose(0, lost=False)
        assert code_of(pynvml.nvmlEventSetWait, events, 20) == 10


def test_changes_of_instances_are_events_and_waiting_blocks_nobody(nvml: Client) -> None:
    _, client = nvml
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(client.gpu(), 0x100, events)
    got: list[int] = []
    waiter = threading.Thread(target=lambda: got.append(pynvml.nvmlEventSetWait(events, 5000).eventType))
    waiter.start()
    time.sleep(0.05)
    client.create(9, 4, 4)
    waiter.join(5)
    assert got == [0x100]


def changes(events: object) -> int:
    """How many changes of the MIG configuration wait for those who registered."""
    count = 0
    while code_of(lambda: pynvml.nvmlEventSetWait(events, 20)) == 0:
        count += 1
    return count


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda node: node.remove_foreign(0), 2),  # a compute instance and its GPU instance
        (lambda node: node.reset(0), 2),
        (lambda node: node.reload_driver(), 3),  # and the mode
        (lambda node: node.reboot(), 3),
        (lambda node: (node.remove_foreign(0), node.set_mig(0, False)), 3),
        (lambda node: node.lose(0), 0),
    ],
    ids=["remove-foreign", "reset", "reload", "reboot", "mig off", "lose"],
)
def test_whatever_ends_an_instance_or_a_mode_tells_those_who_wait(
    make: Make, operation: Callable[[Emulator], object], expected: int
) -> None:
    emulator = make("h100-80gb-sxm5:2")
    emulator.foreign(0, "3g.40gb", 4)
    with open_nvml(emulator) as nvml:
        here, beside = pynvml.nvmlEventSetCreate(), pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(nvml.gpu(0), 0x108, here)
        pynvml.nvmlDeviceRegisterEvents(nvml.gpu(1), 0x8, beside)
        operation(emulator)
        assert changes(here) == expected
        assert changes(beside) == 0


def test_registering_again_adds_types_and_others_are_not_delivered(nvml: Client) -> None:
    emulator, client = nvml
    both, changes_only = pynvml.nvmlEventSetCreate(), pynvml.nvmlEventSetCreate()
    for kind in (0x8, 0x100):
        pynvml.nvmlDeviceRegisterEvents(client.gpu(), kind, both)
    pynvml.nvmlDeviceRegisterEvents(client.gpu(), 0x100, changes_only)
    emulator.xid(0, 31)
    assert code_of(pynvml.nvmlEventSetWait, changes_only, 20) == 10
    client.create(9, 4, 4)
    assert [pynvml.nvmlEventSetWait(both, 20).eventType for _ in range(2)] == [0x8, 0x100]
    assert pynvml.nvmlEventSetWait(changes_only, 20).eventType == 0x100


def test_a_mig_device_has_no_events_of_its_own(nvml: Client) -> None:
    emulator, client = nvml
    client.fill(client.create(9, 4, 4))
    [mig] = client.mig_devices()
    events = pynvml.nvmlEventSetCreate()
    assert code_of(pynvml.nvmlDeviceRegisterEvents, mig, 0x8, events) == 3
    emulator.xid(0, 31)
    assert code_of(pynvml.nvmlEventSetWait, events, 20) == 10


def test_an_event_set_ends_with_the_nvml_that_made_it(make: Make) -> None:
    emulator = make()
    with open_nvml(emulator):
        old = pynvml.nvmlEventSetCreate()
    with open_nvml(emulator) as nvml:
        assert code_of(pynvml.nvmlDeviceRegisterEvents, nvml.gpu(), 0x8, old) == 2
        assert code_of(pynvml.nvmlEventSetWait, old, 20) == 2


def test_types_that_are_not_supported_are_refused(nvml: Client) -> None:
    _, client = nvml
    assert pynvml.nvmlDeviceGetSupportedEventTypes(client.gpu()) == 0x108
    events = pynvml.nvmlEventSetCreate()
    assert code_of(pynvml.nvmlDeviceRegisterEvents, client.gpu(), 0x1, events) == 3


STEPPING_CLOCK = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int calls;
    int done = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME && ++calls % 2 == 0)
        now->tv_sec += atol(getenv("STEP"));
    return done;
}
"""

WAIT = """
import pynvml
pynvml.nvmlInit()
events = pynvml.nvmlEventSetCreate()
pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(0), 8, events)
try:
    pynvml.nvmlEventSetWait(events, 200)
except pynvml.NVMLError as error:
    print(error.value)
"""


@pytest.mark.parametrize("step", ["-3600", "3600"])
def test_a_step_of_the_clock_changes_no_duration(make: Make, tmp_path: Path, step: str) -> None:
    """Every second look at the clock is an hour off: a wait neither hangs nor ends at once, and the log stays right."""
    (tmp_path / "clock.c").write_text(STEPPING_CLOCK)
    library = tmp_path / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "clock.c")], check=True)
    emulator = make()
    assert run_python(emulator, WAIT, LD_PRELOAD=str(library), STEP=step).split() == ["10"]
    took = {call.call: call.us for call in emulator.trace()}
    assert took["nvmlEventSetWait_v2"] >= 200_000
    assert all(us < 60_000_000 for us in took.values())
