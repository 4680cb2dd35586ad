"""Any thread may call anything at any time."""

import threading
from collections.abc import Callable

import pynvml

from dynamig.testing.emulator import Emulator
from tests.integration.emulator.clients import NOT_FOUND, Nvml, code_of, open_nvml
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
