"""Memory, utilisation, sensors and process figures follow what was fed; without a feed everything is idle."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pynvml
import pytest

from dynamig.errors import Refused
from dynamig.testing.emulator import Emulator
from tests.integration.emulator.clients import (
    NOT_FOUND,
    NOT_SUPPORTED,
    Nvml,
    code_of,
    open_nvml,
    program_on,
)
from tests.integration.emulator.conftest import Make
from tests.integration.emulator.test_unknown_models import entry, profile, write

Client = tuple[Emulator, Nvml]
MIB = 2**20
PERIOD_US = 167000


def test_a_mig_device_uses_what_was_fed_for_its_place(nvml: Client) -> None:
    emulator, client = nvml
    for kind, start, size in ((9, 4, 4), (19, 0, 1)):
        client.fill(client.create(kind, start, size))
    emulator.feed(["0 gpu0@4 used=9000", "0 gpu0@0 used=20000  # more than 1g.10gb has"])
    by_size = {m.total // MIB: m for m in map(pynvml.nvmlDeviceGetMemoryInfo, client.mig_devices())}
    assert (by_size[40448].used, by_size[40448].free) == (9000 * MIB, (40448 - 9000) * MIB)
    assert by_size[9984].used == by_size[9984].total
    gpu = pynvml.nvmlDeviceGetMemoryInfo(client.gpu(), version=pynvml.nvmlMemory_v2)
    assert gpu.used == (9000 + 9984) * MIB
    assert gpu.used + gpu.free == gpu.total
    emulator.feed([])
    assert pynvml.nvmlDeviceGetMemoryInfo(client.gpu()).used == 0


def test_the_free_memory_of_a_gpu_never_falls_below_none(make: Make, tmp_path: Path) -> None:
    """Instances that in their sum have more than the GPU, as a file of one's own may say."""
    small = profile("1g.3gb", 1, 1, [0, 1], 1, constant=0)
    large = profile("1g.6gb", 2, 1, [2, 3], 1, constant=1) | {"memory_mib": 8000}
    emulator = make("twice", geometry=write(tmp_path / "g.yaml", entry("Twice", 4, [small, large])))
    with open_nvml(emulator) as nvml:
        for number, start in ((1, 0), (1, 1), (2, 2), (2, 3)):
            nvml.fill(nvml.create(number, start, 1))
        emulator.feed([f"0 gpu0@{start} used=8000" for start in (2, 3)] + ["0 gpu0@0 used=4000"])
        memory = pynvml.nvmlDeviceGetMemoryInfo(nvml.gpu())
        assert (memory.used, memory.free) == (memory.total, 0)


def test_a_whole_gpu_has_utilisation_and_sensors_with_mig_off(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:2", mig=False)
    emulator.feed(["0 gpu1 used=512 gpu=70 memory=20 encoder=3 decoder=4 celsius=66 milliwatt=512000"])
    with open_nvml(emulator) as nvml:
        idle, busy = nvml.gpu(0), nvml.gpu(1)
        rates = pynvml.nvmlDeviceGetUtilizationRates(busy)
        assert (rates.gpu, rates.memory) == (70, 20)
        assert pynvml.nvmlDeviceGetEncoderUtilization(busy)[0] == 3
        assert pynvml.nvmlDeviceGetDecoderUtilization(busy)[0] == 4
        assert pynvml.nvmlDeviceGetTemperature(busy, 0) == pynvml.nvmlDeviceGetTemperatureV(busy, 0) == 66
        assert pynvml.nvmlDeviceGetPowerUsage(busy) == 512000
        assert pynvml.nvmlDeviceGetMemoryInfo(busy).used == 512 * MIB
        assert pynvml.nvmlDeviceGetUtilizationRates(idle).gpu == 0
        assert pynvml.nvmlDeviceGetTemperature(idle, 0) == 30


def test_levels_change_when_their_time_has_come(make: Make) -> None:
    emulator = make(mig=False)
    emulator.feed(["0 gpu0 gpu=10 memory=5", "2 gpu0 gpu=90", "3600 gpu0 gpu=0"])
    with open_nvml(emulator) as nvml:
        assert pynvml.nvmlDeviceGetUtilizationRates(nvml.gpu()).gpu == 10
        deadline = time.monotonic() + 20
        while pynvml.nvmlDeviceGetUtilizationRates(nvml.gpu()).gpu == 10:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        rates = pynvml.nvmlDeviceGetUtilizationRates(nvml.gpu())
        assert (rates.gpu, rates.memory) == (90, 5)


def test_each_record_is_a_sample_when_it_comes_into_force(make: Make) -> None:
    emulator = make(mig=False)
    with open_nvml(emulator) as nvml:
        gpu = nvml.gpu()
        before = time.time_ns() // 1000
        emulator.feed(["0 gpu0 gpu=10", "0.001 gpu0 gpu=20", "0.002 gpu0 memory=7", "9999 gpu0 gpu=30"])
        time.sleep(0.01)
        kind, samples = pynvml.nvmlDeviceGetSamples(gpu, pynvml.NVML_GPU_UTILIZATION_SAMPLES, before)
        assert kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        fed = [s for s in samples if s.sampleValue.uiVal > 0]  # the idle GPU's may come before
        assert [s.sampleValue.uiVal for s in fed[:2]] == [10, 20]
        assert 7 not in {s.sampleValue.uiVal for s in fed}
        assert fed[1].timeStamp - fed[0].timeStamp == 1000
        _, later = pynvml.nvmlDeviceGetSamples(gpu, pynvml.NVML_GPU_UTILIZATION_SAMPLES, fed[0].timeStamp)
        assert {s.sampleValue.uiVal for s in later} == {20}
        assert code_of(pynvml.nvmlDeviceGetSamples, gpu, pynvml.NVML_PROCESSOR_CLK_SAMPLES, 0) == NOT_SUPPORTED


def test_mig_mode_has_power_samples_only(nvml: Client) -> None:
    emulator, client = nvml
    emulator.feed(["0 gpu0 gpu=10 milliwatt=300000"])
    ask = pynvml.nvmlDeviceGetSamples
    assert code_of(ask, client.gpu(), pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0) == NOT_SUPPORTED
    _, samples = ask(client.gpu(), pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
    assert {samples[0].sampleValue.uiVal, samples[-1].sampleValue.uiVal} == {70000, 300000}  # idle, then fed


def poll(ask: Callable[[int], list[Any]], times: int) -> list[list[Any]]:
    """What a client gets that asks for what is newer than the newest it has seen."""
    seen: list[list[Any]] = []
    deadline = time.monotonic() + 30
    last = 0
    while len(seen) < times and time.monotonic() < deadline:
        try:
            seen.append(ask(last))
            last = max(s.timeStamp for s in seen[-1])
        except pynvml.NVMLError_NotFound:
            time.sleep(0.01)
    return seen


def test_a_level_that_holds_goes_on_giving_samples(make: Make) -> None:
    emulator = make(mig=False)
    emulator.feed(["0 gpu0 gpu=80 memory=10"])
    with open_nvml(emulator) as nvml, emulator.hold(0):
        gpu, kind = nvml.gpu(), pynvml.NVML_GPU_UTILIZATION_SAMPLES
        samples = poll(lambda last: list(pynvml.nvmlDeviceGetSamples(gpu, kind, last)[1]), 4)
        assert [s.sampleValue.uiVal for one in samples[1:] for s in one] == [80] * sum(map(len, samples[1:]))
        times = [s.timeStamp for one in samples for s in one if s.sampleValue.uiVal == 80]
        assert {b - a for a, b in pairwise(times)} == {PERIOD_US}
        processes = poll(lambda last: pynvml.nvmlDeviceGetProcessUtilization(gpu, last), 4)
        assert [[s.smUtil for s in one] for one in processes] == [[80]] * 4
        assert all((b[0].timeStamp - a[0].timeStamp) % PERIOD_US == 0 for a, b in pairwise(processes))


def test_a_gpu_that_was_never_fed_has_the_samples_of_an_idle_one(make: Make) -> None:
    emulator = make(mig=False)
    with open_nvml(emulator) as nvml:
        ask = pynvml.nvmlDeviceGetSamples
        _, samples = ask(nvml.gpu(), pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
        assert {s.sampleValue.uiVal for s in samples} == {0}
        assert 119 <= len(samples) <= 121
        _, power = ask(nvml.gpu(), pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
        assert {s.sampleValue.uiVal for s in power} == {pynvml.nvmlDeviceGetPowerUsage(nvml.gpu())}
        assert code_of(ask, nvml.gpu(), pynvml.NVML_GPU_UTILIZATION_SAMPLES, 2**64 - 1) == NOT_FOUND


def test_no_process_that_did_something_is_not_found(make: Make) -> None:
    emulator = make(mig=False)
    ask = pynvml.nvmlDeviceGetProcessUtilization
    with open_nvml(emulator) as nvml:
        emulator.feed(["0 gpu0 gpu=80"])
        assert code_of(ask, nvml.gpu(), 0) == NOT_FOUND  # nobody holds it
        with emulator.hold(0):
            assert [s.smUtil for s in ask(nvml.gpu(), 0)] == [80]
            assert code_of(ask, nvml.gpu(), 2**64 - 1) == NOT_FOUND
            emulator.feed(["0 gpu0 used=600"])
            assert code_of(ask, nvml.gpu(), 0) == NOT_FOUND


def test_those_who_hold_a_gpu_share_its_memory_and_its_time(make: Make) -> None:
    emulator = make(mig=False)
    emulator.feed(["0 gpu0 used=600 gpu=80 memory=40"])
    with open_nvml(emulator) as nvml, program_on(emulator, 0), emulator.hold(0):
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(nvml.gpu())
        assert [p.usedGpuMemory for p in processes] == [300 * MIB] * 2
        samples = pynvml.nvmlDeviceGetProcessUtilization(nvml.gpu(), 0)
        assert [(s.smUtil, s.memUtil) for s in samples] == [(40, 20)] * 2
        count = ctypes.c_uint(1)
        one = pynvml.c_nvmlProcessUtilizationSample_t()
        ask = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetProcessUtilization")
        assert ask(nvml.gpu(), ctypes.byref(one), ctypes.byref(count), ctypes.c_ulonglong(0)) == 7
        assert count.value == 2


def test_those_who_run_on_one_instance_share_its_memory_and_nobody_elses(nvml: Client) -> None:
    emulator, client = nvml
    left, right = (client.info(client.create(9, start, 4)).id for start in (0, 4))
    emulator.feed(["0 gpu0@0 used=600", "0 gpu0@4 used=400"])
    with emulator.hold(0, left), emulator.hold(0, right), program_on(emulator, 0, right):
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(client.gpu())
        used = sorted((p.gpuInstanceId, p.usedGpuMemory // MIB) for p in found)
        assert used == sorted([(left, 600), (right, 200), (right, 200)])


def test_fields_answer_as_the_calls_of_their_own(make: Make) -> None:
    emulator = make(mig=False)
    emulator.feed(["0 gpu0 milliwatt=512000"])
    with open_nvml(emulator) as nvml:
        gpu = nvml.gpu()
        alone = {
            pynvml.NVML_FI_DEV_ECC_CURRENT: pynvml.nvmlDeviceGetEccMode(gpu)[0],
            pynvml.NVML_FI_DEV_ECC_PENDING: pynvml.nvmlDeviceGetEccMode(gpu)[1],
            pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL: pynvml.nvmlDeviceGetTotalEccErrors(gpu, 1, 1),
            pynvml.NVML_FI_DEV_RETIRED_PENDING: pynvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu),
            pynvml.NVML_FI_DEV_REMAPPED_FAILURE: pynvml.nvmlDeviceGetRemappedRows(gpu)[3],
            pynvml.NVML_FI_DEV_POWER_INSTANT: 512000,
            pynvml.NVML_FI_DEV_POWER_AVERAGE: pynvml.nvmlDeviceGetPowerUsage(gpu),
            pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu),
        }
        unknown = [pynvml.NVML_FI_DEV_MEMORY_TEMP, pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT]
        fields = pynvml.nvmlDeviceGetFieldValues(gpu, [*alone, *unknown])
        assert [field.nvmlReturn for field in fields] == [0] * len(alone) + [NOT_SUPPORTED] * len(unknown)
        wide = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        given = {f.fieldId: f.value.ullVal if f.valueType == wide else f.value.uiVal for f in fields[: len(alone)]}
        assert given == alone
        assert all(abs(field.timestamp - time.time() * 1e6) < 60e6 for field in fields)
        before = energy(gpu)
        [field] = pynvml.nvmlDeviceGetFieldValues(gpu, [pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION])
        assert before <= field.value.ullVal <= energy(gpu)


def energy(gpu: Any) -> int:
    return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu))


IDLE_MW, MEGAWATT = 70_000, 1_000_000_000


@pytest.fixture
def furnaces(make: Make, tmp_path: Path) -> Emulator:
    """Two GPUs without a power limit, so that what was fed stands out from what an idle GPU takes meanwhile."""
    halves = profile("1g.16gb", 9, 4, [0, 4], 1, constant=2)
    return make("furnace:2", geometry=write(tmp_path / "g.yaml", entry("Furnace", 8, [halves])))


def test_energy_is_power_times_time(furnaces: Emulator) -> None:
    emulator = furnaces
    emulator.feed([f"0 gpu1 milliwatt={MEGAWATT}", "0 gpu1@4 milliwatt=5", "0 gpu0 celsius=40"])
    with open_nvml(emulator) as nvml:
        for gpu, milliwatt in ((nvml.gpu(0), IDLE_MW), (nvml.gpu(1), MEGAWATT)):
            times, seen = [], []
            for _ in range(2):
                times.append(time.time())
                seen.append(energy(gpu))
                times.append(time.time())
                time.sleep(0.1)
            rounding = 0.002 * milliwatt + 2  # the library counts whole milliseconds
            spent = seen[1] - seen[0]
            assert (times[2] - times[1]) * milliwatt - rounding <= spent <= (times[3] - times[0]) * milliwatt + rounding


def test_energy_counts_each_level_for_as_long_as_it_held(furnaces: Emulator) -> None:
    emulator = furnaces
    emulator.feed(["0 gpu0 milliwatt=0", f"0 gpu1 milliwatt={MEGAWATT}", "0.5 gpu1 milliwatt=0"])
    with open_nvml(emulator) as nvml:
        still = energy(nvml.gpu(0))
        time.sleep(0.6)
        assert energy(nvml.gpu(0)) == still
        assert 0 <= energy(nvml.gpu(1)) - MEGAWATT // 2 <= still + IDLE_MW  # idle, as GPU 0, until it was fed


def test_energy_outlives_a_new_feed_and_a_reset_and_ends_with_the_driver(furnaces: Emulator) -> None:
    emulator = furnaces
    with open_nvml(emulator) as nvml:
        gpu, other = nvml.gpu(0), nvml.gpu(1)
        emulator.feed([f"0 gpu0 milliwatt={MEGAWATT}"])
        time.sleep(0.1)
        fed = energy(gpu)
        emulator.feed(["0 gpu0 milliwatt=0"])
        ended = energy(gpu)
        assert ended >= fed > MEGAWATT // 10
        emulator.feed(["0 gpu1 milliwatt=0"])
        emulator.reset(0)
        assert ended <= energy(gpu) < ended + 600 * IDLE_MW
        assert energy(other) < 600 * IDLE_MW
        emulator.reload_driver()
        assert energy(gpu) < 600 * IDLE_MW < ended


def test_a_text_that_is_wrong_is_refused_by_line_and_changes_nothing(make: Make) -> None:
    emulator = make(mig=False)
    emulator.feed(["0 gpu0 gpu=10"])
    for line, what in {
        "0 gpu0": "is not SECONDS DEVICE",
        "0 gpu1 gpu=3": "no gpu1",
        "0 gpu0 speed=3": "no key 'speed'",
        "0 gpu0 gpu=101": "too much",
        "0 gpu0 used=81560": "more than fits there",
        "0 gpu0@4 used=40449": "more than fits there",
        "0 gpu0 milliwatt=700001": "above the power limit",
        "0 gpu0@7 gpu=1": "no GPU instance starts at slice 7",
        "-1 gpu0 gpu=1": "is not SECONDS",
        "99999999999999999999 gpu0 gpu=1": "too far away",
        "0 gpu0 gpu=1 gpu=2": "gpu is there twice",
    }.items():
        with pytest.raises(Refused, match=f"line 3: .*{what}"):
            emulator.feed(["# a comment", "", line])
    with open_nvml(emulator) as nvml:
        assert pynvml.nvmlDeviceGetUtilizationRates(nvml.gpu()).gpu == 10
