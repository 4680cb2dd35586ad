"""nvidia-ml-py: every one of its calls that speaks of MIG, in the life of one MIG device.

Calls of vGPU inside MIG are not supported, and say so.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.integration.emulator.clients import NOT_SUPPORTED, open_nvml, run_python
from tests.integration.emulator.conftest import Make

WORDS = ("Mig", "GpuInstance", "ComputeInstance", "GetAttributes")

ALL = sorted(
    name
    for name, function in vars(pynvml).items()
    if name.startswith("nvml") and inspect.isfunction(function) and any(word in name for word in WORDS)
)

VGPU = sorted(name for name in ALL if "Vgpu" in name)


def device_calls(gpu: Any, mig: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """With a 3g.40gb at 4 that a compute instance fills."""
    count, places = ctypes.c_uint(), (pynvml.c_nvmlGpuInstancePlacement_t * 7)()
    instances = (pynvml.c_nvmlGpuInstance_t * 7)()
    yield "nvmlDeviceGetMigMode", lambda: pynvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
    yield "nvmlDeviceSetMigMode", lambda: pynvml.nvmlDeviceSetMigMode(gpu, 1) == 0
    yield "nvmlDeviceGetMaxMigDeviceCount", lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 7
    yield "nvmlDeviceGetMigDeviceHandleByIndex", lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
    yield "nvmlDeviceIsMigDeviceHandle", lambda: pynvml.nvmlDeviceIsMigDeviceHandle(mig).value == 1
    yield (
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
        lambda: same(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig), gpu),
    )
    yield "nvmlDeviceGetGpuInstanceId", lambda: pynvml.nvmlDeviceGetGpuInstanceId(mig) in (1, 2)
    yield "nvmlDeviceGetComputeInstanceId", lambda: pynvml.nvmlDeviceGetComputeInstanceId(mig) == 0
    yield "nvmlDeviceGetAttributes", lambda: pynvml.nvmlDeviceGetAttributes(mig).gpuInstanceSliceCount == 3
    yield "nvmlDeviceGetAttributes_v2", lambda: pynvml.nvmlDeviceGetAttributes_v2(mig).memorySizeMB == 40448
    info, info_v = pynvml.nvmlDeviceGetGpuInstanceProfileInfo, pynvml.nvmlDeviceGetGpuInstanceProfileInfoV
    yield "nvmlDeviceGetGpuInstanceProfileInfo", lambda: [info(gpu, 2, v).id for v in (1, 2)] == [9, 9]
    yield "nvmlDeviceGetGpuInstanceProfileInfoV", lambda: [info_v(gpu, 2, v).id for v in (1, 2)] == [9, 9]
    by_id, by_id_v = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById, pynvml.nvmlDeviceGetGpuInstanceProfileInfoByIdV
    yield "nvmlDeviceGetGpuInstanceProfileInfoById", lambda: by_id(gpu, 9).name == "MIG 3g.40gb"
    yield "nvmlDeviceGetGpuInstanceProfileInfoByIdV", lambda: by_id_v(gpu, 9).sliceCount == 3
    yield (
        "nvmlDeviceGetGpuInstancePossiblePlacements",
        lambda: (
            pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, 9, places, ctypes.byref(count))
            == pynvml.NVML_SUCCESS
            and count.value == 2
        ),
    )
    yield "nvmlDeviceGetGpuInstanceRemainingCapacity", lambda: free(gpu, 9) == 1
    yield (
        "nvmlDeviceGetGpuInstances",
        lambda: pynvml.nvmlDeviceGetGpuInstances(gpu, 9, instances, ctypes.byref(count)) == 0 and count.value == 1,
    )
    sample = pynvml.nvmlGpmSampleAlloc()
    gi_id = pynvml.nvmlDeviceGetGpuInstanceId(mig)
    yield "nvmlGpmMigSampleGet", lambda: pynvml.nvmlGpmMigSampleGet(gpu, gi_id, sample)


def instance_calls(gpu: Any, mig: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    gi_id = pynvml.nvmlDeviceGetGpuInstanceId(mig)
    gi = pynvml.nvmlDeviceGetGpuInstanceById(gpu, gi_id)
    ci = pynvml.nvmlGpuInstanceGetComputeInstanceById(gi, 0)
    count, places = ctypes.c_uint(), (pynvml.c_nvmlComputeInstancePlacement_t * 7)()
    instances = (pynvml.c_nvmlComputeInstance_t * 7)()
    yield "nvmlDeviceGetGpuInstanceById", lambda: same(pynvml.nvmlDeviceGetGpuInstanceById(gpu, gi_id), gi)
    yield "nvmlGpuInstanceGetInfo", lambda: pynvml.nvmlGpuInstanceGetInfo(gi).placement.start == 4
    info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    info_v = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfoV
    yield "nvmlGpuInstanceGetComputeInstanceProfileInfo", lambda: info(gi, 0, 0, 1).instanceCount == 3
    yield "nvmlGpuInstanceGetComputeInstanceProfileInfoV", lambda: info_v(gi, 0, 0, 2).instanceCount == 3
    yield (
        "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
        lambda: (
            pynvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements(gi, 0, places, ctypes.byref(count)) == 0
            and count.value == 3
        ),
    )
    yield (
        "nvmlGpuInstanceGetComputeInstanceRemainingCapacity",
        lambda: pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, 0) == 0,
    )
    yield (
        "nvmlGpuInstanceGetComputeInstances",
        lambda: (
            pynvml.nvmlGpuInstanceGetComputeInstances(gi, 2, instances, ctypes.byref(count)) == 0 and count.value == 1
        ),
    )
    yield "nvmlGpuInstanceGetComputeInstanceById", lambda: pynvml.nvmlGpuInstanceGetComputeInstanceById(gi, 0)
    yield "nvmlComputeInstanceGetInfo", lambda: pynvml.nvmlComputeInstanceGetInfo(ci).profileId == 2
    yield "nvmlComputeInstanceGetInfo_v2", lambda: pynvml.nvmlComputeInstanceGetInfo_v2(ci).placement.size == 3
    yield "nvmlComputeInstanceDestroy", lambda: pynvml.nvmlComputeInstanceDestroy(ci) == 0
    yield "nvmlGpuInstanceCreateComputeInstance", lambda: pynvml.nvmlGpuInstanceCreateComputeInstance(gi, 0)
    at = pynvml.c_nvmlComputeInstancePlacement_t(2, 1)
    yield (
        "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
        lambda: pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(gi, 0, ctypes.byref(at)),
    )
    other = pynvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    yield "nvmlDeviceCreateGpuInstance", lambda: pynvml.nvmlGpuInstanceGetInfo(other).profileId == 19
    yield "nvmlGpuInstanceDestroy", lambda: pynvml.nvmlGpuInstanceDestroy(other) == 0


def same(one: Any, other: Any) -> bool:
    return bool(pynvml.nvmlDeviceGetUUID(one) == pynvml.nvmlDeviceGetUUID(other)) if is_device(one) else bool(one)


def is_device(handle: Any) -> bool:
    return isinstance(handle, pynvml.c_nvmlDevice_t)


def free(gpu: Any, profile: int) -> int:
    return int(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, profile))


def test_every_mig_call_of_the_binding_works(make: Make) -> None:
    with open_nvml(make()) as nvml:
        at = pynvml.c_nvmlGpuInstancePlacement_t(4, 4)
        gi = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(nvml.gpu(), 9, ctypes.byref(at))
        nvml.fill(gi)
        [mig] = nvml.mig_devices()
        done = {"nvmlDeviceCreateGpuInstanceWithPlacement"}
        for calls in (device_calls, instance_calls):
            for name, call in calls(nvml.gpu(), mig):
                assert call() not in (False, None), name
                done.add(name)
    assert done == set(ALL) - set(VGPU)


@pytest.mark.parametrize("name", VGPU)
def test_vgpus_inside_mig_are_not_supported(make: Make, name: str) -> None:
    """By the symbol that the binding calls: its structures differ, and none is looked at."""
    with open_nvml(make()) as nvml:
        gi = nvml.create(9, 4, 4)
        first = ctypes.c_uint(1) if name.startswith("nvmlVgpu") else gi
        structure = (ctypes.c_uint8 * 65536)()
        assert pynvml._nvmlGetFunctionPointer(name)(first, structure) == NOT_SUPPORTED


def test_the_client_of_the_readme_makes_and_names_an_instance(make: Make) -> None:
    readme = (Path(__file__).parents[3] / "emulator/README.md").read_text()
    said = run_python(make("h100-80gb-sxm5:2"), readme.split("```python\n")[1].split("```")[0])
    assert said == "NVIDIA H100 80GB HBM3 MIG 3g.40gb\n"
