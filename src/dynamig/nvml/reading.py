"""Reading one GPU: identity, MIG mode, and what it can be cut into. Everything is asked, nothing is parsed.

An item that NVML does not support is absent in the reading and never stops the rest (case C-14).
Profiles are found by walking the profile constants from 0 until INVALID_ARGUMENT, skipping NOT_SUPPORTED
(nvml.h, nvmlDeviceGetGpuInstanceProfileInfo), so constants that no header of ours knows are found too. A profile that
cannot be used is left out, and the reading says so; the others stay (case C-05).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_uint
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml

from dynamig.dra.version import MAX_LENGTH
from dynamig.errors import Refused
from dynamig.mig import Engines, Geometry, GiProfile, GiProfileId, GpuUuid, MiB, NvmlProfile, Placement
from dynamig.nvml.errors import translated
from dynamig.nvml.pci import numa_node, pcie_root
from dynamig.protocol.gpus import GpuReading, MigMode

T = TypeVar("T")
Handle = Any
MIB: Final = 2**20
REPLACED: Final = "\N{REPLACEMENT CHARACTER}"

_MODES: Final = {pynvml.NVML_DEVICE_MIG_DISABLE: MigMode.OFF, pynvml.NVML_DEVICE_MIG_ENABLE: MigMode.ON}
_ARCHITECTURES: Final = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    pynvml.NVML_DEVICE_ARCH_RUBIN: "Rubin",
}
_BRANDS: Final = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
}


def read_gpu(handle: Handle, index: int, sys_root: Path) -> GpuReading:
    """The GPU behind `handle`. Raises only if its UUID or minor cannot be read: without them it is nobody."""
    with translated(f"GPU {index}: reading its identity"):
        uuid = GpuUuid(text(pynvml.nvmlDeviceGetUUID(handle)))
        minor = int(pynvml.nvmlDeviceGetMinorNumber(handle))
    architecture = _optional(lambda: int(pynvml.nvmlDeviceGetArchitecture(handle)))
    mode, pending = read_mig_mode(handle)
    bus_id = _pci_bus_id(handle)
    geometry, left_out = _geometry(handle) if mode is not MigMode.ABSENT else (None, ())
    return GpuReading(
        uuid=uuid,
        index=index,
        minor=minor,
        product_name=_optional(lambda: text(pynvml.nvmlDeviceGetName(handle))) or "",
        brand=_BRANDS.get(_optional(lambda: int(pynvml.nvmlDeviceGetBrand(handle))) or 0, "Unknown"),
        architecture=_ARCHITECTURES.get(architecture or 0, "Unknown"),
        cuda_compute_capability=_compute_capability(handle),
        driver_version=_optional(lambda: text(pynvml.nvmlSystemGetDriverVersion())) or "",
        cuda_driver_version=_cuda_driver_version(),
        memory=MiB((_optional(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)) or 0) // MIB),
        pci_bus_id=bus_id,
        pcie_root=pcie_root(bus_id, sys_root),
        numa_node=numa_node(bus_id, sys_root),
        mig_mode=mode,
        mig_mode_pending=pending,
        # MIG user guide: Ampere switches at the next GPU reset, Hopper and later at once.
        mode_switch_needs_reset=(architecture or 0) < pynvml.NVML_DEVICE_ARCH_HOPPER,
        geometry=geometry,
        left_out=left_out,
    )


def read_mig_mode(handle: Handle) -> tuple[MigMode, MigMode]:
    """Current and pending mode; ABSENT where NVML says NOT_SUPPORTED."""
    modes = _optional(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if modes is None:
        return MigMode.ABSENT, MigMode.ABSENT
    current, pending = modes
    return _MODES[current], _MODES[pending]


def profile_infos(handle: Handle) -> list[tuple[NvmlProfile, Any]]:
    """(constant, profile info) of every GPU instance profile that this GPU lists now."""
    found: list[tuple[NvmlProfile, Any]] = []
    constant = 0
    while True:
        try:
            found.append((NvmlProfile(constant), pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, constant)))
        except pynvml.NVMLError_NotSupported:
            pass
        except pynvml.NVMLError_InvalidArgument:
            return found
        constant += 1


def _geometry(handle: Handle) -> tuple[Geometry | None, tuple[str, ...]]:
    """What the GPU can be cut into, and which of the listed profiles are no part of that, each with the reason. A GPU
    that has a place for none of them lists none: drivers before R535 while MIG is off."""
    with translated("reading GPU instance profiles"):
        listed = [_profile(handle, constant, info) for constant, info in profile_infos(handle)]
    kept: list[GiProfile] = []
    left_out: list[str] = []
    for profile in listed:
        try:
            Geometry((*kept, profile))
        except Refused as refused:
            left_out.append(refused.what)
        else:
            kept.append(profile)
    if not any(profile.placements for profile in listed):
        return None, ()
    return Geometry(tuple(kept)) if kept else None, tuple(left_out)


def _profile(handle: Handle, constant: NvmlProfile, info: Any) -> GiProfile:
    """As NVML tells it; `Geometry` says whether that can be."""
    return GiProfile(
        id=GiProfileId(int(info.id)),
        nvml=constant,
        name=profile_name(info),
        compute_slices=int(info.sliceCount),
        memory=MiB(int(info.memorySizeMB)),
        engines=Engines(
            multiprocessors=int(info.multiprocessorCount),
            copy_engines=int(info.copyEngineCount),
            decoders=int(info.decoderCount),
            encoders=int(info.encoderCount),
            jpeg_engines=int(info.jpegCount),
            ofa_engines=int(info.ofaCount),
        ),
        max_instances=int(info.instanceCount),
        placements=_placements(handle, int(info.id)),
    )


def profile_name(info: Any) -> str:
    """As nvidia-smi spells it. By its ID, `profile-4242`, where NVML gives no name that can be published whole: it must
    be printable and fit into an attribute of a device."""
    raw: bytes = ctypes.Structure.__getattribute__(info, "name")  # pynvml's own raises for bytes that are no UTF-8
    name = raw.decode(errors="replace").removeprefix("MIG ").strip()
    usable = name.isprintable() and REPLACED not in name and 0 < len(name.encode()) <= MAX_LENGTH
    return name if usable else f"profile-{int(info.id)}"


def _placements(handle: Handle, profile_id: int) -> tuple[Placement, ...]:
    """Possible placements, ascending. The count is output only (nvml.h): ask for it, then for the array."""
    count = c_uint(0)
    try:
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, byref(count))
        array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, array, byref(count))
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
        return ()
    return tuple(sorted(Placement(int(p.start), int(p.size)) for p in array[: count.value]))


def _compute_capability(handle: Handle) -> str:
    numbers = _optional(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    return "" if numbers is None else f"{numbers[0]}.{numbers[1]}"


def _cuda_driver_version() -> str:
    number = _optional(lambda: int(pynvml.nvmlSystemGetCudaDriverVersion_v2()))
    return "" if number is None else f"{number // 1000}.{number % 1000 // 10}"  # nvml.h: 12040 is 12.4


def _pci_bus_id(handle: Handle) -> str:
    """sysfs' form, for example 0000:07:00.0; empty where NVML does not tell."""
    info = _optional(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
    if info is None:
        return ""
    domain, _, rest = text(info.busId).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _optional(read: Callable[[], T]) -> T | None:
    """What NVML offers, or None where this driver or GPU does not know the question."""
    try:
        return read()
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return None


def text(value: Any) -> str:
    """pynvml gives bytes or str, depending on its version and the call."""
    return value.decode() if isinstance(value, bytes) else str(value)
