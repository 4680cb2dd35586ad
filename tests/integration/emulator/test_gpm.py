"""GPU Performance Monitoring: samples, the metrics between two of them, and what is refused."""

from __future__ import annotations

import ctypes
import re
import time
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pynvml
import pytest

from dynamig.testing.emulator import Emulator
from tests.integration.emulator.clients import INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, Nvml, code_of, open_nvml
from tests.integration.emulator.conftest import Make
from tests.integration.emulator.test_unknown_models import entry, profile, write

Client = tuple[Emulator, Nvml]
NO_DATA = 21


class Gpm:
    """Two samples of one subject, and the metrics between them."""

    def __init__(self) -> None:
        self.samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]

    def metrics(self, *ids: int) -> list[Any]:
        ask = pynvml.c_nvmlGpmMetricsGet_t()
        ask.version, ask.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(ids)
        ask.sample1, ask.sample2 = self.samples
        for i, number in enumerate(ids):
            ask.metrics[i].metricId = number
        pynvml.nvmlGpmMetricsGet(ask)
        return [ask.metrics[i] for i in range(len(ids))]

    def free(self) -> None:
        for sample in self.samples:
            pynvml.nvmlGpmSampleFree(sample)


def test_gpm_tells_the_mean_utilisation_of_each_gpu_instance(nvml: Client) -> None:
    emulator, client = nvml
    left, right = (client.info(client.create(9, start, 4)).id for start in (0, 4))
    emulator.feed(["0 gpu0@0 gpu=100 sm=40", "0 gpu0@4 gpu=0 sm=25 occupancy=50 tensor=75 dram=10"])
    seen = {}
    for gi in (left, right):
        gpm = Gpm()
        for sample in gpm.samples:
            pynvml.nvmlGpmMigSampleGet(client.gpu(), gi, sample)
            time.sleep(0.01)
        metrics = gpm.metrics(1, 2, 3, 5, 10, 97)
        seen[gi] = [round(m.value, 6) for m in metrics[:5]]
        assert [m.nvmlReturn for m in metrics] == [0, 0, 0, 0, 0, NOT_SUPPORTED]
        assert metrics[1].metricInfo.shortName == b"sm_util"
        gpm.free()
        assert code_of(pynvml.nvmlGpmSampleFree, gpm.samples[0]) == INVALID_ARGUMENT
    assert seen == {left: [100, 40, 0, 0, 0], right: [0, 25, 50, 75, 10]}


def test_gpm_weighs_levels_by_how_long_they_held(nvml: Client) -> None:
    emulator, client = nvml
    gi = client.info(client.create(9, 4, 4)).id
    gpm = Gpm()
    emulator.feed(["0 gpu0@4 gpu=100", "2 gpu0@4 gpu=0"])
    pynvml.nvmlGpmMigSampleGet(client.gpu(), gi, gpm.samples[0])
    means = [100.0]
    deadline = time.monotonic() + 30
    while means[-1] > 80 and time.monotonic() < deadline:
        time.sleep(0.1)
        pynvml.nvmlGpmMigSampleGet(client.gpu(), gi, gpm.samples[1])
        means.append(gpm.metrics(1)[0].value)
    assert means == sorted(means, reverse=True)
    assert 0 < means[-1] <= 80
    emulator.feed([])
    pynvml.nvmlGpmMigSampleGet(client.gpu(), gi, gpm.samples[1])
    assert gpm.metrics(1)[0].nvmlReturn == NO_DATA


def test_gpm_of_a_mig_device_handle_and_what_it_refuses(make: Make) -> None:
    emulator = make("h100-80gb-sxm5,a100-40gb")
    with open_nvml(emulator) as nvml:
        nvml.fill(nvml.create(9, 4, 4))
        [mig] = nvml.mig_devices()
        gpm = Gpm()
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            gpm.metrics(1)  # nothing was sampled yet
        pynvml.nvmlGpmSampleGet(mig, gpm.samples[0])
        pynvml.nvmlGpmSampleGet(nvml.gpu(), gpm.samples[1])
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            gpm.metrics(1)  # of two subjects
        assert code_of(pynvml.nvmlGpmMigSampleGet, nvml.gpu(), 7, gpm.samples[0]) == NOT_FOUND
        assert pynvml.nvmlGpmQueryDeviceSupport(nvml.gpu(0)).isSupportedDevice == 1
        assert pynvml.nvmlGpmQueryDeviceSupport(nvml.gpu(1)).isSupportedDevice == 0  # Hopper and later
        assert code_of(pynvml.nvmlGpmSampleGet, nvml.gpu(1), gpm.samples[0]) == NOT_SUPPORTED


def taken(client: Nvml, times: int = 2) -> list[Any]:
    """That many samples of the first GPU, each later than the one before."""
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(times)]
    for sample in samples:
        pynvml.nvmlGpmSampleGet(client.gpu(), sample)
        time.sleep(0.001)
    return samples


def test_between_a_sample_and_itself_or_an_earlier_one_there_are_no_metrics(nvml: Client) -> None:
    _, client = nvml
    gpm = Gpm()
    first, last = taken(client)
    for samples, code in (((first, last), 0), ((first, first), INVALID_ARGUMENT), ((last, first), INVALID_ARGUMENT)):
        gpm.samples = list(samples)
        assert code_of(gpm.metrics, 1) == code


def most_metrics() -> int:
    [header] = [Path(str(f.locate())) for f in files("nvidia-nvml-dev") or [] if f.name == "nvml.h"]
    [number] = re.findall(r"NVML_GPM_METRIC_MAX\s*=\s*(\d+)", header.read_text())
    return int(number)


@pytest.mark.parametrize(("more", "code"), [(0, 0), (1, INVALID_ARGUMENT)])
def test_as_many_metrics_as_nvml_h_has_can_be_asked_for_at_once(nvml: Client, more: int, code: int) -> None:
    _, client = nvml
    count = most_metrics() + more

    class Ask(ctypes.Structure):
        _fields_ = (
            *pynvml.c_nvmlGpmMetricsGet_t._fields_[:-1],
            ("metrics", pynvml.c_nvmlGpmMetric_t * count),
        )

    ask = Ask(version=pynvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=count)
    ask.sample1, ask.sample2 = taken(client)
    ask.metrics[count - 1].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
    assert pynvml._nvmlGetFunctionPointer("nvmlGpmMetricsGet")(ctypes.byref(ask)) == code
    assert (ask.metrics[count - 1].metricInfo.shortName == b"sm_util") == (code == 0)


def test_an_architecture_that_nvml_h_does_not_know_has_none(make: Make, tmp_path: Path) -> None:
    whole = profile("1g.4gb", 0, 1, [0], 1, constant=0)
    emulator = make("novel", geometry=write(tmp_path / "g.yaml", entry("Novel", 1, [whole])))
    with open_nvml(emulator) as nvml:
        assert pynvml.nvmlDeviceGetArchitecture(nvml.gpu()) == pynvml.NVML_DEVICE_ARCH_UNKNOWN
        assert pynvml.nvmlGpmQueryDeviceSupport(nvml.gpu()).isSupportedDevice == 0
        assert code_of(pynvml.nvmlGpmSampleGet, nvml.gpu(), pynvml.nvmlGpmSampleAlloc()) == NOT_SUPPORTED


def test_samples_end_with_the_nvml_that_made_them(make: Make) -> None:
    emulator = make()
    with open_nvml(emulator):
        sample = pynvml.nvmlGpmSampleAlloc()
    with open_nvml(emulator) as nvml:
        assert code_of(pynvml.nvmlGpmSampleGet, nvml.gpu(), sample) == INVALID_ARGUMENT
        assert code_of(pynvml.nvmlGpmSampleFree, sample) == INVALID_ARGUMENT
