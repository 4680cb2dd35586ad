"""Who may do what: CAP_SYS_ADMIN for the GPU, the mig/config capability for its instances, neither for looking on."""

import json
import os
from collections.abc import Iterable

import pytest

from dynamig.testing.emulator import Emulator
from tests.integration.emulator.clients import NO_PERMISSION, run_python
from tests.integration.emulator.conftest import Make

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it gives up capabilities one by one")

SESSION = """
import ctypes, json, os, sys, pynvml
config, readable = sys.argv[1], sys.argv[2] == "readable"
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
at = lambda start: ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(start, 1))
inside = ctypes.byref(pynvml.c_nvmlComputeInstancePlacement_t(0, 1))
count, found = ctypes.c_uint(), (pynvml.c_nvmlGpuInstance_t * 8)()
large = pynvml.nvmlDeviceCreateGpuInstance(gpu, 9)
small, empty = (pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 19, at(start)) for start in (1, 2))
filled = pynvml.nvmlGpuInstanceCreateComputeInstance(large, 0)
inside_found = (pynvml.c_nvmlComputeInstance_t * 8)()
if not readable:
    os.chmod(config, 0)

def code(name, *arguments):
    try:
        getattr(pynvml, name)(*arguments)
    except pynvml.NVMLError as error:
        return error.value
    return 0

calls = [
    ("nvmlDeviceGetUUID", gpu),
    ("nvmlDeviceSetPersistenceMode", gpu, 1),
    ("nvmlDeviceSetGpuLockedClocks", gpu, 345, 345),
    ("nvmlDeviceSetMigMode", gpu, 1),
    ("nvmlDeviceGetGpuInstanceById", gpu, pynvml.nvmlGpuInstanceGetInfo(large).id),
    ("nvmlDeviceGetGpuInstances", gpu, 9, found, ctypes.byref(count)),
    ("nvmlDeviceGetGpuInstanceRemainingCapacity", gpu, 9),
    ("nvmlDeviceGetGpuInstancePossiblePlacements", gpu, 9, None, ctypes.byref(count)),
    ("nvmlGpuInstanceGetComputeInstances", large, 0, inside_found, ctypes.byref(count)),
    ("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", large, 0),
    ("nvmlGpuInstanceGetComputeInstancePossiblePlacements", large, 0, None, ctypes.byref(count)),
    ("nvmlDeviceCreateGpuInstanceWithPlacement", gpu, 19, at(0)),
    ("nvmlDeviceCreateGpuInstance", gpu, 19),
    ("nvmlGpuInstanceGetComputeInstanceById", large, 0),
    ("nvmlGpuInstanceCreateComputeInstance", large, 0),
    ("nvmlGpuInstanceCreateComputeInstanceWithPlacement", small, 0, inside),
    ("nvmlComputeInstanceDestroy", filled),
    ("nvmlGpuInstanceDestroy", empty),
]
print(json.dumps({name: code(name, *arguments) for name, *arguments in calls}))
"""
"""An operator makes instances; then each call is tried, with mig/config readable or not. Codes by call."""

ADMINISTRATORS = {"nvmlDeviceSetPersistenceMode", "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceSetMigMode"}
"""What nvml.h wants root for, and the MIG User Guide CAP_SYS_ADMIN."""
EVERYBODYS = {"nvmlDeviceGetUUID"}


def session(emulator: Emulator, config: str, *given_up: str) -> dict[str, int]:
    """Codes of the calls as root without these capabilities."""
    without = ",".join(f"-{name}" for name in given_up)
    node = emulator.directory / "dev/nvidia-caps/nvidia-cap1"
    said = run_python(emulator, SESSION, str(node), config, under=("setpriv", f"--bounding-set={without}"))
    codes: dict[str, int] = json.loads(said)
    return codes


def refused(codes: dict[str, int]) -> Iterable[str]:
    assert set(codes.values()) <= {0, NO_PERMISSION}, codes
    return {name for name, code in codes.items() if code}


def test_mig_config_alone_is_enough_for_instances_and_not_for_the_gpu(make: Make) -> None:
    codes = session(make(), "readable", "sys_admin", "dac_override", "dac_read_search")
    assert refused(codes) == ADMINISTRATORS


def test_without_mig_config_each_call_about_instances_is_refused(make: Make) -> None:
    emulator = make()
    codes = session(emulator, "unreadable", "sys_admin", "dac_override", "dac_read_search")
    assert refused(codes) == codes.keys() - EVERYBODYS
    assert len(emulator.show().gpus[0].gpu_instances) == 3  # what was there before is there still


def test_an_administrator_needs_no_mig_config(make: Make) -> None:
    assert refused(session(make(), "unreadable", "dac_override", "dac_read_search")) == set()


MAKE_ONE = """
import pynvml
pynvml.nvmlInit()
try:
    pynvml.nvmlDeviceCreateGpuInstance(pynvml.nvmlDeviceGetHandleByIndex(0), 19)
except pynvml.NVMLError as error:
    print(error.value)
"""


def test_who_may_not_make_device_files_hears_that_it_is_a_right_that_is_missing(make: Make) -> None:
    emulator = make()
    said = run_python(emulator, MAKE_ONE, under=("setpriv", "--bounding-set=-mknod"))
    assert said.split() == [str(NO_PERMISSION)]
    assert emulator.show().gpus[0].gpu_instances == ()
