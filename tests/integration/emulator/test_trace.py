"""The call log: order, arguments, results, processes."""

import itertools
import json
import os
import threading
from pathlib import Path

import pynvml

from dynamig.testing.emulator import Emulator, NvmlReturn
from tests.integration.emulator.clients import Nvml, code_of, open_nvml, run_python
from tests.integration.emulator.conftest import Make

Client = tuple[Emulator, Nvml]


def test_calls_are_told_with_what_went_in_and_what_came_out(nvml: Client) -> None:
    emulator, client = nvml
    gpu = client.gpu()
    emulator.clear_trace()
    gi = client.create(9, 4, 4)
    ci = client.fill(gi, 2)
    code_of(pynvml.nvmlGpuInstanceDestroy, gi)
    told = [(c.call, dict(c.args), c.result) for c in emulator.trace() if c.call != "nvmlDeviceGetHandleByIndex_v2"]
    gi_id = client.info(gi).id
    placement = {"start": 4, "size": 4}
    assert told == [
        (
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            {"device": "gpu0", "profileId": 9, "placement": placement, "gpuInstance": f"gpu0/gi{gi_id}"},
            0,
        ),
        (
            "nvmlGpuInstanceCreateComputeInstance",
            {"gpuInstance": f"gpu0/gi{gi_id}", "profileId": 2, "computeInstance": f"gpu0/gi{gi_id}/ci0"},
            0,
        ),
        ("nvmlGpuInstanceDestroy", {"gpuInstance": f"gpu0/gi{gi_id}"}, 19),
    ]
    assert {c.pid for c in emulator.trace()} == {os.getpid()}
    assert gpu
    assert ci


def test_injected_results_are_what_is_told(nvml: Client) -> None:
    emulator, client = nvml
    emulator.fail("nvmlDeviceGetMigMode", NvmlReturn.GPU_IS_LOST)
    emulator.clear_trace()
    code_of(pynvml.nvmlDeviceGetMigMode, client.gpu())
    [call] = [c for c in emulator.trace() if c.call == "nvmlDeviceGetMigMode"]
    assert (call.result, dict(call.args)) == (15, {"device": "gpu0"})


def test_counters_count_per_symbol(nvml: Client) -> None:
    emulator, client = nvml
    emulator.clear_trace()
    for _ in range(5):
        pynvml.nvmlDeviceGetMigMode(client.gpu())
    assert emulator.counters() == {"nvmlDeviceGetMigMode": 5, "nvmlDeviceGetHandleByIndex_v2": 5}


def test_lines_of_many_threads_stay_whole(nvml: Client) -> None:
    emulator, client = nvml
    gpu = client.gpu()
    emulator.clear_trace()

    def ask() -> None:
        for _ in range(200):
            pynvml.nvmlDeviceGetUUID(gpu)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(emulator.trace()) == 800


def test_a_node_without_trace_keeps_none_and_a_variable_names_another_file(make: Make, tmp_path: Path) -> None:
    emulator = make(trace=False)
    elsewhere = tmp_path / "calls"
    script = "import pynvml; pynvml.nvmlInit(); pynvml.nvmlShutdown()"
    run_python(emulator, script)
    assert emulator.trace() == []
    assert not (emulator.directory / "trace").exists()
    run_python(emulator, script, DYNAMIG_EMULATOR_TRACE=str(elsewhere))
    told = [json.loads(line)["call"] for line in elsewhere.read_text().splitlines()]
    assert told == ["nvmlInitWithFlags", "nvmlShutdown"]


def test_following_yields_calls_as_they_happen(make: Make) -> None:
    emulator = make()
    seen: list[str] = []

    def watch() -> None:
        seen.extend(call.call for call in itertools.islice(emulator.follow(), 2))

    watcher = threading.Thread(target=watch)
    watcher.start()
    while watcher.is_alive():
        with open_nvml(emulator):
            watcher.join(0.05)
    assert len(seen) == 2
    assert set(seen) <= {"nvmlInitWithFlags", "nvmlShutdown"}


def test_whatever_a_client_gives_as_a_text_can_be_read_back(nvml: Client) -> None:
    emulator, _ = nvml
    ask = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetHandleByUUID")
    emulator.clear_trace()
    for text in (b'\xff\xfeGPU-"\\\n\x7f1', b"x" * 5000, None):
        assert ask(text, None) != 0
    assert [call.args["uuid"] for call in emulator.trace()] == ["GPU-1", "x" * 255, ""]
