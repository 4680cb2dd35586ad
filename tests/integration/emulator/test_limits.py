"""Power limits and clocks are the model's own, or not supported; what is fed stays within them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from dynamig.errors import Refused
from tests.integration.emulator.clients import INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, code_of, open_nvml
from tests.integration.emulator.conftest import Make

LIMITS: dict[str, tuple[int | None, tuple[int, int] | None]] = {
    "a30-24gb": (165_000, None),
    "a100-40gb": (400_000, (1410, 1215)),
    "a100-80gb": (400_000, (1410, 1593)),
    "h100-80gb-sxm5": (700_000, (1980, 2619)),
    "h100-80gb-pcie": (350_000, None),
    "h100-nvl-94gb": (400_000, None),
    "h100-96gb-on-gh200": (None, None),
    "h200-141gb-sxm": (700_000, (1980, 3201)),
    "b200-180gb": (1_000_000, (1965, 3996)),
}
"""Milliwatts; highest graphics and memory clock in MHz."""

IDLE_MHZ = 345


def answer(call: Callable[..., Any], *arguments: Any) -> Any:
    """What the call gives; None if it is not supported."""
    try:
        return call(*arguments)
    except pynvml.NVMLError_NotSupported:
        return None


@pytest.mark.parametrize("model", LIMITS)
def test_each_model_has_its_own_power_limit_or_none(make: Make, model: str) -> None:
    limit = LIMITS[model][0]
    with open_nvml(make(model)) as nvml:
        assert answer(pynvml.nvmlDeviceGetPowerManagementLimit, nvml.gpu()) == limit
        assert answer(pynvml.nvmlDeviceGetEnforcedPowerLimit, nvml.gpu()) == limit
        asked = [pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT, pynvml.NVML_FI_DEV_POWER_REQUESTED_LIMIT]
        fields = pynvml.nvmlDeviceGetFieldValues(nvml.gpu(), asked)
        assert {(f.nvmlReturn, f.value.uiVal) for f in fields} == {(0, limit) if limit else (NOT_SUPPORTED, 0)}


@pytest.mark.parametrize("model", LIMITS)
def test_each_model_has_its_own_clocks_or_none(make: Make, model: str) -> None:
    graphics, memory = LIMITS[model][1] or (None, None)
    kinds = (pynvml.NVML_CLOCK_GRAPHICS, pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM, pynvml.NVML_CLOCK_VIDEO)
    with open_nvml(make(model)) as nvml:
        gpu = nvml.gpu()
        most = [answer(pynvml.nvmlDeviceGetMaxClockInfo, gpu, kind) for kind in kinds]
        assert most == [graphics, graphics, memory, None]
        now = [answer(pynvml.nvmlDeviceGetClockInfo, gpu, kind) for kind in kinds]
        assert now == [IDLE_MHZ, IDLE_MHZ, memory, IDLE_MHZ]
        assert answer(pynvml.nvmlDeviceGetSupportedMemoryClocks, gpu) == (memory and [memory])
        steps = answer(pynvml.nvmlDeviceGetSupportedGraphicsClocks, gpu, memory or 2619)
        assert steps == (graphics and [graphics, IDLE_MHZ])
        no_clock = NOT_FOUND if memory else NOT_SUPPORTED
        assert code_of(pynvml.nvmlDeviceGetSupportedGraphicsClocks, gpu, 1) == no_clock
        assert code_of(pynvml.nvmlDeviceGetMaxClockInfo, gpu, pynvml.NVML_CLOCK_COUNT) == INVALID_ARGUMENT


def test_no_gpu_is_fed_more_power_than_its_own_limit(make: Make) -> None:
    emulator = make("a30-24gb,h100-80gb-sxm5,h100-96gb-on-gh200")
    emulator.feed(["0 gpu0 milliwatt=165000", "0 gpu1 milliwatt=700000", "0 gpu2 milliwatt=900000"])
    with open_nvml(emulator) as nvml:
        assert [pynvml.nvmlDeviceGetPowerUsage(nvml.gpu(i)) for i in range(3)] == [165_000, 700_000, 900_000]
    with pytest.raises(Refused, match="line 2: milliwatt=165001 is above the power limit") as refused:
        emulator.feed(["0 gpu1 milliwatt=165001", "5 gpu0 milliwatt=165001"])
    assert refused.value.next_step == "at most the 165000 of a30-24gb"
