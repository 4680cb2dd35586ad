"""Any thread may call anything at any time."""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pynvml

from dynamig.testing.emulator import Emulator
from tests.integration.emulator.clients import NOT_FOUND, Nvml, code_of, open_nvml, run_python
from tests.integration.emulator.conftest import Make

Client = tuple[Emulator, Nvml]
ROUNDS = 150


def together(*work: Callable[[], None]) -> None:
    """All at once; the first exception of a thread is the test's."""
    failed: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001  raised again below, in the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)  # sanitizers on a busy machine are slow
    assert not any(thread.is_alive() for thread in threads)
    if failed:
        raise failed[0]


def test_threads_make_and_look_at_the_same_time(nvml: Client) -> None:
    emulator, client = nvml

    def owner(start: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(ROUNDS):
                gi = client.create(19, start, 1)
                ci = client.fill(gi, 0)
                assert client.start(gi) == start
                pynvml.nvmlComputeInstanceDestroy(ci)
                pynvml.nvmlGpuInstanceDestroy(gi)

        return work

    def onlooker() -> None:
        for _ in range(ROUNDS):
            for gi_id in range(7, 15):
                assert code_of(pynvml.nvmlDeviceGetGpuInstanceById, client.gpu(), gi_id) in (0, NOT_FOUND)
            assert 0 <= client.free(19) <= 7

    together(*(owner(start) for start in range(4)), onlooker, onlooker)
    assert emulator.show().gpus[0].gpu_instances == ()


def test_initialising_and_shutting_down_from_many_threads_counts(make: Make) -> None:
    with open_nvml(make()) as client:

        def nested() -> None:
            for _ in range(ROUNDS):
                pynvml.nvmlInit()
                assert client.gpu()
                pynvml.nvmlShutdown()

        together(nested, nested, nested, nested)
        assert pynvml.nvmlDeviceGetCount() == 1
    assert code_of(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED
    assert code_of(pynvml.nvmlShutdown) == pynvml.NVML_ERROR_UNINITIALIZED


@contextmanager
def on_node(emulator: Emulator) -> Iterator[None]:
    """NVML is not initialised, but would find the node."""
    os.environ["DYNAMIG_EMULATOR_DIR"] = str(emulator.directory)
    try:
        yield
    finally:
        del os.environ["DYNAMIG_EMULATOR_DIR"]


def test_first_inits_and_last_shutdowns_of_many_threads_take_nothing_from_each_other(make: Make) -> None:
    """The library itself, as pynvml keeps a lock around init that other clients have not."""
    nvml = {
        name: pynvml._nvmlGetFunctionPointer(name)
        for name in (
            *("nvmlInitWithFlags", "nvmlShutdown", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetName"),
            *("nvmlEventSetCreate", "nvmlEventSetFree", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree"),
        )
    }
    barrier = threading.Barrier(8)

    def visitor() -> None:
        gpu, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        events, sample = ctypes.c_void_p(), ctypes.c_void_p()
        for _ in range(ROUNDS):
            barrier.wait(300)
            codes = [
                nvml["nvmlInitWithFlags"](0),
                nvml["nvmlEventSetCreate"](ctypes.byref(events)),
                nvml["nvmlGpmSampleAlloc"](ctypes.byref(sample)),
                nvml["nvmlDeviceGetHandleByIndex_v2"](0, ctypes.byref(gpu)),
                nvml["nvmlDeviceGetName"](gpu, name, 96),
                nvml["nvmlEventSetFree"](events),
                nvml["nvmlGpmSampleFree"](sample),
                nvml["nvmlShutdown"](),
            ]
            assert codes == [0] * 8
            assert name.value == b"NVIDIA H100 80GB HBM3"

    with on_node(make()):
        together(*[visitor] * 8)
        assert nvml["nvmlShutdown"]() == pynvml.NVML_ERROR_UNINITIALIZED


FORK_BESIDE_INITS = """
import ctypes, os, sys, threading, time
nvml = ctypes.CDLL("libnvidia-ml.so.1")
done = threading.Event()
def come_and_go():
    while not done.is_set():
        nvml.nvmlInitWithFlags(1)
        nvml.nvmlShutdown()
threading.Thread(target=come_and_go).start()
def child():
    count = ctypes.c_uint()
    os._exit(nvml.nvmlInitWithFlags(1) or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) or count.value != 1)
hung = 0
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        child()
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.0005)
    if ended == (0, 0):
        hung += 1
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        break
    assert ended[1] == 0, ended
done.set()
print(hung)
"""


def test_a_child_forked_during_another_threads_init_can_initialise(make: Make) -> None:
    assert run_python(make(trace=False), FORK_BESIDE_INITS, "400").split() == ["0"]


def test_event_sets_come_and_go_beside_each_other(nvml: Client) -> None:
    emulator, client = nvml

    def listener() -> None:
        for _ in range(20):
            events = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(client.gpu(), 0x8, events)
            emulator.xid(0, 13)
            assert pynvml.nvmlEventSetWait(events, 5000).eventData == 13
            pynvml.nvmlEventSetFree(events)

    together(listener, listener, listener)
