"""For every symbol that reads something: a call that succeeds, and what it answers on one known node.

The node: two H100; on the first a 3g.40gb instance at 4 that a compute instance fills, and usage that was fed. A test
sees to it that no implemented symbol is missing here or in `ACTIONS`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from ctypes import c_char, c_int, c_uint, c_ulong, c_ulonglong
from dataclasses import dataclass, field
from typing import Any

import pynvml

MIB = 2**20
BAR1 = 131072 * MIB
NAME = "NVIDIA H100 80GB HBM3"

FEED = (
    "0 gpu0 gpu=50 memory=20 encoder=3 decoder=4 celsius=61 milliwatt=400000",
    "0 gpu0@4 used=1024 gpu=80",
)


@dataclass(frozen=True)
class World:
    """Handles and texts that calls on the node take and give. `alive`: with instances, in MIG mode."""

    gpu: int
    other: int
    mig: int
    gi: int
    ci: int
    gi_id: int
    gpu_uuid: str
    mig_uuid: str
    serial: str
    pid: int
    minor: int = 0


@dataclass(frozen=True)
class Out:
    """An answer that the call writes: `count` of `kind`; `version`: the word that must stand at its beginning."""

    kind: Any
    count: int = 1
    version: int | None = None

    def made(self) -> Any:
        made = (self.kind * self.count)()
        if self.version is not None:
            ctypes.cast(made, ctypes.POINTER(c_uint))[0] = self.version
        return made


@dataclass(frozen=True, eq=False)
class MoreThan:
    """Equal to every number above `least`: for what grows while the test runs."""

    least: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and other > self.least

    __hash__ = None  # type: ignore[assignment]


Expected = Any
"""int, text, mapping of a structure's fields, list of those, or a function of the world that gives one."""


@dataclass(frozen=True)
class Case:
    """`arguments`: a number, a text, an Out, or the name of a World's field. `expected`: one for each Out."""

    arguments: tuple[Any, ...]
    expected: tuple[Expected, ...]
    prepared: Mapping[int, int] = field(default_factory=dict)
    """What an Out holds before the call, by its position among the arguments: sizes that go in."""


def case(*arguments: Any, gives: Expected, more: tuple[Expected, ...] = (), **prepared: int) -> Case:
    positions = {int(name.removeprefix("at")): value for name, value in prepared.items()}
    return Case(arguments, (gives, *more), positions)


def number(subject: str, value: Expected, kind: Any = c_uint) -> Case:
    return case(subject, Out(kind), gives=value)


def listed(subject: str, kind: Any, gives: Expected, count: Expected) -> Case:
    """A list behind its count, as process lists are: the count goes in and out."""
    return case(subject, Out(c_uint), Out(kind, 4), gives=count, more=(gives,), at1=4)


def of(world_field: str) -> Callable[[World], Any]:
    return lambda world: getattr(world, world_field)


TEXT = Out(c_char, 96)
U32 = Out(c_uint)
PCI = {"domain": 0, "bus": 7, "device": 0, "pciDeviceId": 0x233010DE}
PCI_V2 = {**PCI, "busId": b"0000:07:00.0"}
PCI_V3 = {**PCI, "busIdLegacy": b"0000:07:00.0", "busId": b"00000000:07:00.0"}
PROFILE_3G = {"id": 9, "sliceCount": 3, "instanceCount": 2, "multiprocessorCount": 60, "memorySizeMB": 40448}
CI_3G = {"id": 2, "sliceCount": 3, "instanceCount": 1, "multiprocessorCount": 60}
GI_PLACES = [{"start": 0, "size": 4}, {"start": 4, "size": 4}]


def ci_info(*, placed: bool) -> Callable[[World], Mapping[str, Any]]:
    placement = {"placement.start": 0, "placement.size": 3} if placed else {}
    return lambda w: {"device": w.gpu, "gpuInstance": w.gi, "id": 0, "profileId": 2, **placement}


def holder(**more: Any) -> Callable[[World], list[Mapping[str, Any]]]:
    return lambda w: [{"pid": w.pid, "usedGpuMemory": 1024 * MIB, **more}]


def with_gi(w: World) -> list[Mapping[str, Any]]:
    return [{"pid": w.pid, "usedGpuMemory": 1024 * MIB, "gpuInstanceId": w.gi_id, "computeInstanceId": 0xFFFFFFFF}]


class FirstProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_v1_t, which pynvml has not."""

    _fields_ = (("pid", c_uint), ("usedGpuMemory", c_ulonglong))


V1, V2 = FirstProcessInfo, pynvml.c_nvmlProcessInfo_v2_t

ATTRIBUTES = case(
    "mig",
    Out(pynvml.c_nvmlDeviceAttributes),
    gives={
        "multiprocessorCount": 60,
        "gpuInstanceSliceCount": 3,
        "computeInstanceSliceCount": 3,
        "memorySizeMB": 40448,
    },
)

READS: Mapping[str, Case] = {
    "nvmlSystemGetDriverVersion": case(TEXT, 96, gives="580.95.05"),
    "nvmlSystemGetNVMLVersion": case(TEXT, 96, gives="13.580.95.05-emulator"),
    "nvmlSystemGetCudaDriverVersion": case(Out(c_int), gives=13000),
    "nvmlSystemGetCudaDriverVersion_v2": case(Out(c_int), gives=13000),
    "nvmlSystemGetProcessName": case("pid", Out(c_char, 4096), 4096, gives=lambda w: process_name(w.pid)),
    "nvmlDeviceGetCount": case(U32, gives=2),
    "nvmlDeviceGetCount_v2": case(U32, gives=2),
    "nvmlDeviceGetHandleByIndex": case(0, Out(c_ulong), gives=of("gpu")),
    "nvmlDeviceGetHandleByIndex_v2": case(1, Out(c_ulong), gives=of("other")),
    "nvmlDeviceGetHandleByUUID": case("mig_uuid", Out(c_ulong), gives=of("mig")),
    "nvmlDeviceGetHandleByPciBusId": case(b"0000:07:00.0", Out(c_ulong), gives=of("gpu")),
    "nvmlDeviceGetHandleByPciBusId_v2": case(b"00000000:0F:00.0", Out(c_ulong), gives=of("other")),
    "nvmlDeviceGetUUID": case("gpu", TEXT, 96, gives=of("gpu_uuid")),
    "nvmlDeviceGetName": case("mig", TEXT, 96, gives=f"{NAME} MIG 3g.40gb"),
    "nvmlDeviceGetIndex": number("other", 1),
    "nvmlDeviceGetMinorNumber": number("gpu", of("minor")),
    "nvmlDeviceGetSerial": case("gpu", TEXT, 96, gives=of("serial")),
    "nvmlDeviceGetPciInfo": case("gpu", Out(pynvml.nvmlPciInfo_v2_t), gives=PCI_V2),
    "nvmlDeviceGetPciInfo_v2": case("gpu", Out(pynvml.nvmlPciInfo_v2_t), gives=PCI_V2),
    "nvmlDeviceGetPciInfo_v3": case("gpu", Out(pynvml.nvmlPciInfo_t), gives=PCI_V3),
    "nvmlDeviceGetPciInfoExt": case(
        "gpu", Out(pynvml.nvmlPciInfoExt_v1_t, version=0x01000040), gives={"bus": 7, "baseClass": 3, "subClass": 2}
    ),
    "nvmlDeviceGetBrand": number("gpu", pynvml.NVML_BRAND_NVIDIA),
    "nvmlDeviceGetArchitecture": number("gpu", pynvml.NVML_DEVICE_ARCH_HOPPER),
    "nvmlDeviceGetCudaComputeCapability": case("gpu", Out(c_int), Out(c_int), gives=9, more=(0,)),
    "nvmlDeviceGetMemoryInfo": case(
        "mig", Out(pynvml.c_nvmlMemory_t), gives={"total": 40448 * MIB, "used": 1024 * MIB, "free": 39424 * MIB}
    ),
    "nvmlDeviceGetMemoryInfo_v2": case(
        "gpu",
        Out(pynvml.c_nvmlMemory_v2_t, version=0x02000028),
        gives={"total": 81559 * MIB, "used": 1024 * MIB, "free": 80535 * MIB, "reserved": 0},
    ),
    "nvmlDeviceGetBAR1MemoryInfo": case(
        "mig", Out(pynvml.c_nvmlBAR1Memory_t), gives={"bar1Total": BAR1, "bar1Free": BAR1, "bar1Used": 0}
    ),
    "nvmlDeviceGetVirtualizationMode": number("gpu", 0),
    "nvmlDeviceGetVbiosVersion": case("gpu", TEXT, 96, gives="00.00.00.00.00"),
    "nvmlDeviceGetMigMode": case("gpu", U32, U32, gives=1, more=(1,)),
    "nvmlDeviceGetMaxMigDeviceCount": number("gpu", 7),
    "nvmlDeviceGetMigDeviceHandleByIndex": case("gpu", 0, Out(c_ulong), gives=of("mig")),
    "nvmlDeviceIsMigDeviceHandle": number("mig", 1),
    "nvmlDeviceGetGpuInstanceId": number("mig", of("gi_id")),
    "nvmlDeviceGetComputeInstanceId": number("mig", 0),
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": number("mig", of("gpu"), c_ulong),
    "nvmlDeviceGetAttributes": ATTRIBUTES,
    "nvmlDeviceGetAttributes_v2": ATTRIBUTES,
    "nvmlDeviceGetGpuInstanceProfileInfo": case("gpu", 2, Out(pynvml.c_nvmlGpuInstanceProfileInfo_t), gives=PROFILE_3G),
    "nvmlDeviceGetGpuInstanceProfileInfoV": case(
        "gpu",
        2,
        Out(pynvml.c_nvmlGpuInstanceProfileInfo_v2_t, version=0x02000098),
        gives={**PROFILE_3G, "name": b"MIG 3g.40gb"},
    ),
    "nvmlDeviceGetGpuInstanceProfileInfoByIdV": case(
        "gpu",
        9,
        Out(pynvml.c_nvmlGpuInstanceProfileInfo_v2_t, version=0x02000098),
        gives={**PROFILE_3G, "name": b"MIG 3g.40gb"},
    ),
    "nvmlDeviceGetGpuInstancePossiblePlacements": case(
        "gpu", 9, Out(pynvml.c_nvmlGpuInstancePlacement_t, 2), U32, gives=GI_PLACES, more=(2,)
    ),
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2": case(
        "gpu", 9, Out(pynvml.c_nvmlGpuInstancePlacement_t, 2), U32, gives=GI_PLACES, more=(2,)
    ),
    "nvmlDeviceGetGpuInstanceRemainingCapacity": case("gpu", 9, U32, gives=1),
    "nvmlDeviceGetGpuInstances": case("gpu", 9, Out(c_ulong, 2), U32, gives=lambda w: [w.gi, 0], more=(1,)),
    "nvmlDeviceGetGpuInstanceById": case("gpu", "gi_id", Out(c_ulong), gives=of("gi")),
    "nvmlGpuInstanceGetInfo": case(
        "gi",
        Out(pynvml.c_nvmlGpuInstanceInfo_t),
        gives=lambda w: {"device": w.gpu, "id": w.gi_id, "profileId": 9, "placement.start": 4, "placement.size": 4},
    ),
    "nvmlGpuInstanceGetComputeInstanceProfileInfo": case(
        "gi", 2, 0, Out(pynvml.c_nvmlComputeInstanceProfileInfo_t), gives=CI_3G
    ),
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV": case(
        "gi",
        2,
        0,
        Out(pynvml.c_nvmlComputeInstanceProfileInfo_v2_t, version=0x02000088),
        gives={**CI_3G, "name": b"MIG 3g.40gb"},
    ),
    "nvmlGpuInstanceGetComputeInstanceRemainingCapacity": case("gi", 0, U32, gives=0),
    "nvmlGpuInstanceGetComputeInstancePossiblePlacements": case(
        "gi",
        0,
        Out(pynvml.c_nvmlComputeInstancePlacement_t, 3),
        U32,
        gives=[{"start": s, "size": 1} for s in range(3)],
        more=(3,),
    ),
    "nvmlGpuInstanceGetComputeInstances": case("gi", 2, Out(c_ulong), U32, gives=of("ci"), more=(1,)),
    "nvmlGpuInstanceGetComputeInstanceById": case("gi", 0, Out(c_ulong), gives=of("ci")),
    "nvmlComputeInstanceGetInfo": case("ci", Out(pynvml.c_nvmlComputeInstanceInfo_t), gives=ci_info(placed=False)),
    "nvmlComputeInstanceGetInfo_v2": case("ci", Out(pynvml.c_nvmlComputeInstanceInfo_t), gives=ci_info(placed=True)),
    "nvmlDeviceGetComputeRunningProcesses": listed("mig", V1, holder(), 1),
    "nvmlDeviceGetComputeRunningProcesses_v2": listed("gpu", V2, with_gi, 1),
    "nvmlDeviceGetComputeRunningProcesses_v3": listed("gpu", V2, with_gi, 1),
    "nvmlDeviceGetGraphicsRunningProcesses": listed("gpu", V1, [], 0),
    "nvmlDeviceGetGraphicsRunningProcesses_v2": listed("gpu", V2, [], 0),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": listed("mig", V2, [], 0),
    "nvmlDeviceGetMPSComputeRunningProcesses": listed("gpu", V1, [], 0),
    "nvmlDeviceGetMPSComputeRunningProcesses_v2": listed("gpu", V2, [], 0),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": listed("gpu", V2, [], 0),
    "nvmlDeviceGetSamples": case(
        "gpu",
        pynvml.NVML_TOTAL_POWER_SAMPLES,
        c_ulonglong(0),
        U32,
        U32,
        Out(pynvml.c_nvmlSample_t, 256),
        gives=pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
        more=({}, [{"sampleValue.uiVal": 70000}]),  # as many as 20 seconds have; the oldest from before the feed
        at4=256,
    ),
    "nvmlDeviceGetTemperature": case("gpu", 0, U32, gives=61),
    "nvmlDeviceGetTemperatureV": case(
        "gpu", Out(pynvml.c_nvmlTemperature_v1_t, version=0x0100000C), gives={"temperature": 61}
    ),
    "nvmlDeviceGetPowerUsage": number("gpu", 400000),
    "nvmlDeviceGetPowerManagementLimit": number("gpu", 700000),
    "nvmlDeviceGetEnforcedPowerLimit": number("gpu", 700000),
    "nvmlDeviceGetTotalEnergyConsumption": number("gpu", MoreThan(0), c_ulonglong),
    "nvmlDeviceGetPerformanceState": number("gpu", 0),
    "nvmlDeviceGetComputeMode": number("gpu", 0),
    "nvmlDeviceGetDisplayActive": number("gpu", 0),
    "nvmlDeviceGetDisplayMode": number("gpu", 0),
    "nvmlDeviceGetPersistenceMode": number("gpu", 0),
    "nvmlDeviceGetClockInfo": case("gpu", 0, U32, gives=345),
    "nvmlDeviceGetMaxClockInfo": case("gpu", 0, U32, gives=1980),
    "nvmlDeviceGetSupportedMemoryClocks": listed("gpu", c_uint, [2619, 0, 0, 0], 1),
    "nvmlDeviceGetSupportedGraphicsClocks": case("gpu", 2619, U32, Out(c_uint, 2), gives=2, more=([1980, 345],), at2=2),
    "nvmlDeviceGetPcieThroughput": case("gpu", 0, U32, gives=0),
    "nvmlDeviceGetFieldValues": case(
        "gpu",
        1,
        Out(pynvml.c_nvmlFieldValue_t, version=pynvml.NVML_FI_DEV_POWER_INSTANT),
        gives={"nvmlReturn": 0, "valueType": pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, "value.uiVal": 400000},
    ),
    "nvmlDeviceGetCpuAffinity": case("gpu", 16, Out(c_ulong, 16), gives=lambda w: affinity()),
    "nvmlDeviceGetCpuAffinityWithinScope": case("gpu", 16, Out(c_ulong, 16), 0, gives=lambda w: affinity()),
    "nvmlDeviceGetTopologyCommonAncestor": case("gpu", "other", U32, gives=pynvml.NVML_TOPOLOGY_NODE),
    "nvmlDeviceGetTotalEccErrors": case("gpu", 0, 0, Out(c_ulonglong), gives=0),
    "nvmlDeviceGetEccMode": case("gpu", U32, U32, gives=1, more=(1,)),
    "nvmlDeviceGetRetiredPagesPendingStatus": number("gpu", 0),
    "nvmlDeviceGetRemappedRows": case("gpu", U32, U32, U32, U32, gives=0, more=(0, 0, 0)),
    "nvmlDeviceGetSupportedEventTypes": number("gpu", 0x108, c_ulonglong),
    "nvmlGpmQueryDeviceSupport": case("gpu", Out(pynvml.c_nvmlGpmSupport_t, version=1), gives={"isSupportedDevice": 1}),
}

MIG_OFF_READS: Mapping[str, Case] = {
    "nvmlDeviceGetUtilizationRates": case("gpu", Out(pynvml.c_nvmlUtilization_t), gives={"gpu": 50, "memory": 20}),
    "nvmlDeviceGetEncoderUtilization": case("gpu", U32, U32, gives=3, more=(167000,)),
    "nvmlDeviceGetDecoderUtilization": case("gpu", U32, U32, gives=4, more=(167000,)),
    "nvmlDeviceGetProcessUtilization": case(
        "gpu",
        Out(pynvml.c_nvmlProcessUtilizationSample_t, 4),
        U32,
        c_ulonglong(0),
        gives=lambda w: [{"pid": w.pid, "smUtil": 50, "memUtil": 20, "encUtil": 3, "decUtil": 4}],
        more=(1,),
        at2=4,
    ),
}
"""Not supported in MIG mode, as on hardware."""

NOT_TO_BE_READ: Mapping[str, str] = {
    "nvmlDeviceGetNumaNodeId": "NOT_SUPPORTED on every emulated GPU: each has NUMA node -1",
}

ACTIONS: Mapping[str, str] = {
    "nvmlInit": "test_symbols.py",
    "nvmlInit_v2": "test_symbols.py",
    "nvmlInitWithFlags": "test_threads.py",
    "nvmlShutdown": "test_threads.py",
    "nvmlErrorString": "test_symbols.py",
    "nvmlDeviceSetMigMode": "test_modes.py",
    "nvmlDeviceSetPersistenceMode": "test_strictness.py",
    "nvmlDeviceSetMemoryLockedClocks": "test_symbols.py",
    "nvmlDeviceSetGpuLockedClocks": "test_symbols.py",
    "nvmlDeviceResetMemoryLockedClocks": "test_symbols.py",
    "nvmlDeviceResetGpuLockedClocks": "test_symbols.py",
    "nvmlDeviceCreateGpuInstance": "test_lifecycle.py",
    "nvmlDeviceCreateGpuInstanceWithPlacement": "test_every_set.py",
    "nvmlGpuInstanceDestroy": "test_lifecycle.py",
    "nvmlGpuInstanceCreateComputeInstance": "test_lifecycle.py",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement": "test_every_set.py",
    "nvmlComputeInstanceDestroy": "test_lifecycle.py",
    "nvmlEventSetCreate": "test_processes_and_events.py",
    "nvmlEventSetFree": "test_processes_and_events.py",
    "nvmlEventSetWait": "test_symbols.py",
    "nvmlEventSetWait_v2": "test_processes_and_events.py",
    "nvmlDeviceRegisterEvents": "test_processes_and_events.py",
    "nvmlGpmSampleAlloc": "test_gpm.py",
    "nvmlGpmSampleFree": "test_gpm.py",
    "nvmlGpmSampleGet": "test_gpm.py",
    "nvmlGpmMigSampleGet": "test_gpm.py",
    "nvmlGpmMetricsGet": "test_gpm.py",
}
"""Symbols that do something, and where their tests are."""


def process_name(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().split(b"\0")[0].decode()


def affinity() -> list[int]:
    """All CPUs of the machine, 64 a word."""
    cpus = os.sysconf("SC_NPROCESSORS_CONF")
    return [((1 << cpus) - 1) >> 64 * word & 2**64 - 1 for word in range(16)]
