"""The emulator's files as bytes: the same structures as emulator/src/layout.h, which explains them.

Native alignment on both sides; tests/integration/emulator/test_layout.py compares sizes and offsets with the library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char, c_int32, c_uint8, c_uint32, c_uint64

LAYOUT_VERSION = 3
MODELS_MAGIC = b"DYNMODEL"
NODE_MAGIC = b"DYNNODE\0"

MAX_SLICES = 64
MAX_GI_PROFILES = 32
MAX_CI_PROFILES = 12
MAX_FAULTS = 64
LONGEST_PATH = 700
"""Of a node's directory; a client's library has room for little more (emulator/src/process.c)."""
MAX_GPUS = 32
"""As many as the kernel driver's capability table has (kernel-open/nvidia/nv-caps.c)."""

GI_FOREIGN = 1
NODE_RENUMBERS = 1
NODE_CHARACTER_NODES = 2
NODE_CI_INFO_NAMES_MIG = 4
PASSTHROUGH, VGPU = 1, 2
"""NVML_GPU_VIRTUALIZATION_MODE_*."""

FAULT_FAIL, FAULT_DELAY, FAULT_HANG = 1, 2, 3
FAULT_AFTER, FAULT_TAIL = 1, 2
LARGEST = NO_ID = 0xFFFFFFFF
ENERGY_BEFORE = 0xFFFFFFFE


class CiProfile(ctypes.Structure):
    _fields_ = (
        ("constant", c_uint32),
        ("id", c_uint32),
        ("slices", c_uint32),
        ("multiprocessors", c_uint32),
        ("max_instances", c_uint32),
        ("reserved", c_uint32),
        ("starts", c_uint64),
    )


class GiProfile(ctypes.Structure):
    _fields_ = (
        ("name", c_char * 64),
        ("constant", c_uint32),
        ("id", c_uint32),
        ("compute_slices", c_uint32),
        ("memory_slices", c_uint32),
        ("max_instances", c_uint32),
        ("multiprocessors", c_uint32),
        ("copy_engines", c_uint32),
        ("decoders", c_uint32),
        ("encoders", c_uint32),
        ("jpeg_engines", c_uint32),
        ("ofa_engines", c_uint32),
        ("ci_profile_count", c_uint32),
        ("memory_mib", c_uint64),
        ("starts", c_uint64),
        ("ci_profiles", CiProfile * MAX_CI_PROFILES),
    )


class Model(ctypes.Structure):
    _fields_ = (
        ("key", c_char * 64),
        ("product", c_char * 96),
        ("architecture", c_uint32),
        ("brand", c_uint32),
        ("cc_major", c_uint32),
        ("cc_minor", c_uint32),
        ("pci_device", c_uint32),
        ("pci_subsystem", c_uint32),
        ("compute_slices", c_uint32),
        ("memory_slices", c_uint32),
        ("multiprocessors", c_uint32),
        ("reset_to_switch", c_uint32),
        ("profile_count", c_uint32),
        ("limit_milliwatt", c_uint32),
        ("graphics_mhz", c_uint32),
        ("memory_mhz", c_uint32),
        ("memory_mib", c_uint64),
        ("profiles", GiProfile * MAX_GI_PROFILES),
    )


class ModelsHead(ctypes.Structure):
    """Head of DIR/state/models; `count` models follow."""

    _fields_ = (("magic", c_char * 8), ("layout_version", c_uint32), ("count", c_uint32))


class GpuInstance(ctypes.Structure):
    _fields_ = (
        ("id", c_uint32),
        ("profile", c_uint32),
        ("start", c_uint32),
        ("serial", c_uint32),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    )


class ComputeInstance(ctypes.Structure):
    _fields_ = (
        ("gi_id", c_uint32),
        ("id", c_uint32),
        ("profile", c_uint32),
        ("start", c_uint32),
        ("serial", c_uint32),
        ("reserved", c_uint32),
        ("uuid", c_uint8 * 16),
    )


class Gpu(ctypes.Structure):
    _fields_ = (
        ("uuid", c_char * 48),
        ("serial_number", c_char * 32),
        ("bus_id", c_char * 32),
        ("model", c_uint32),
        ("minor", c_uint32),
        ("pci_domain", c_uint32),
        ("pci_bus", c_uint32),
        ("pci_slot", c_uint32),
        ("numa_node", c_int32),
        ("mig_current", c_uint32),
        ("mig_pending", c_uint32),
        ("lost", c_uint32),
        ("persistence", c_uint32),
        ("virtualization", c_uint32),
        ("reserved", c_uint32),
        ("gi_count", c_uint32),
        ("ci_count", c_uint32),
        ("gis", GpuInstance * MAX_SLICES),
        ("cis", ComputeInstance * MAX_SLICES),
    )


def keep(gpu: Gpu, stays: Callable[[int], bool]) -> None:
    """Only the GPU instances whose id `stays` says, with their compute instances, are left; in the same order."""
    gis = [GpuInstance.from_buffer_copy(gi) for gi in gpu.gis[: gpu.gi_count] if stays(gi.id)]
    cis = [ComputeInstance.from_buffer_copy(ci) for ci in gpu.cis[: gpu.ci_count] if stays(ci.gi_id)]
    gpu.gis[: len(gis)] = gis
    gpu.cis[: len(cis)] = cis
    gpu.gi_count, gpu.ci_count = len(gis), len(cis)


class NodeHead(ctypes.Structure):
    """Head of DIR/state/node; `gpu_count` GPUs follow."""

    _fields_ = (
        ("magic", c_char * 8),
        ("layout_version", c_uint32),
        ("gpu_count", c_uint32),
        ("revision", c_uint64),
        ("seed", c_uint64),
        ("next_serial", c_uint32),
        ("flags", c_uint32),
        ("cuda_version", c_uint32),
        ("driver_branch", c_uint32),
        ("caps_major", c_uint32),
        ("cap_gis", c_uint32),
        ("cap_cis", c_uint32),
        ("reserved", c_uint32),
        ("loaded_us", c_uint64),
        ("driver_version", c_char * 32),
        ("boot_id", c_char * 40),
    )


class Fault(ctypes.Structure):
    _fields_ = (
        ("id", c_uint64),
        ("call", c_char * 96),
        ("gpu", c_int32),
        ("kind", c_uint32),
        ("code", c_uint32),
        ("nth", c_uint32),
        ("count", c_uint32),
        ("seen", c_uint32),
        ("delay_us", c_uint32),
        ("jitter_us", c_uint32),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    )


class Event(ctypes.Structure):
    _fields_ = (
        ("type", c_uint64),
        ("data", c_uint64),
        ("gpu", c_uint32),
        ("gi_id", c_uint32),
        ("ci_id", c_uint32),
        ("reserved", c_uint32),
    )


IDLE_MILLIWATT = 70_000
"""Of a GPU whose power was not fed (emulator/src/usage.c)."""

USAGE_KEYS = (
    *("used", "gpu", "memory", "encoder", "decoder"),
    *("sm", "occupancy", "tensor", "dram", "celsius", "milliwatt"),
)
"""Names of the levels in a usage record, in the order of `enum usage_key`."""


class UsageRecord(ctypes.Structure):
    _fields_ = (
        ("at_us", c_uint64),
        ("gpu", c_uint32),
        ("start", c_uint32),
        ("set", c_uint32),
        ("level", c_uint32 * len(USAGE_KEYS)),
    )


def described() -> tuple[int, ...]:
    """The numbers of `dynamig_emulator_layout` in emulator/src/control.c, in its order."""
    sizes = (
        CiProfile,
        GiProfile,
        Model,
        ModelsHead,
        GpuInstance,
        ComputeInstance,
        Gpu,
        NodeHead,
        Fault,
        Event,
        UsageRecord,
    )
    return (
        LAYOUT_VERSION,
        *(ctypes.sizeof(kind) for kind in sizes),
        GiProfile.starts.offset,
        GiProfile.ci_profiles.offset,
        Model.memory_mib.offset,
        Model.profiles.offset,
        Gpu.gi_count.offset,
        Gpu.gis.offset,
        Gpu.cis.offset,
        ComputeInstance.uuid.offset,
        NodeHead.loaded_us.offset,
        NodeHead.driver_version.offset,
        NodeHead.boot_id.offset,
        ctypes.sizeof(NodeHead),
        Fault.seen.offset,
        Event.gpu.offset,
        UsageRecord.level.offset,
    )
