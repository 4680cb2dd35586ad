"""GPU and compute instances of one GPU: list, make, destroy. Thin calls, each with its error translated.

NVML lists instances per profile and wants an array of the profile's instance count (go-nvml does the same).
MIG devices are matched to (GPU instance, compute instance) by walking the MIG device indices: the handle inside
nvmlComputeInstanceInfo_t is the parent's on the drivers seen so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import byref, c_uint
from typing import Any

import pynvml

from dynamig.errors import Unavailable
from dynamig.mig import CiId, GiId, GiProfileId, MigUuid, Partition, Placement
from dynamig.nvml.errors import translated
from dynamig.nvml.reading import Handle, profile_infos, read_mig_mode, text
from dynamig.protocol.gpus import ComputeInstance, LiveInstance, MigMode


def list_instances(handle: Handle) -> tuple[LiveInstance, ...]:
    """Every GPU instance with its compute instances; empty with MIG off."""
    with translated("listing GPU instances"):
        uuids = dict(_mig_uuids(handle))
        compute_profiles: dict[int, tuple[Any, ...]] = {}  # GPU instance profile to its compute instance profiles
        return tuple(sorted(_live(gi, uuids, compute_profiles) for gi in _gpu_instances(handle)))


def _gpu_instances(handle: Handle) -> Iterator[Any]:
    for _, info in profile_infos(handle):
        array = (pynvml.c_nvmlGpuInstance_t * int(info.instanceCount))()
        count = c_uint(0)
        try:
            pynvml.nvmlDeviceGetGpuInstances(handle, int(info.id), array, byref(count))
        except pynvml.NVMLError_NotSupported:
            if read_mig_mode(handle)[0] is MigMode.ON:
                raise  # an answer that proves nothing
            return  # MIG is off: nothing can live
        yield from array[: count.value]


def _live(gi: Any, uuids: dict[tuple[int, int], MigUuid], compute_profiles: dict[int, tuple[Any, ...]]) -> LiveInstance:
    info = pynvml.nvmlGpuInstanceGetInfo(gi)
    gi_id, profile = int(info.id), int(info.profileId)
    if profile not in compute_profiles:
        compute_profiles[profile] = tuple(_compute_profile_infos(gi))
    found = _compute_instances(gi, compute_profiles[profile])
    return LiveInstance(
        gi_id=GiId(gi_id),
        profile=GiProfileId(profile),
        placement=Placement(int(info.placement.start), int(info.placement.size)),
        compute=tuple(sorted(ComputeInstance(ci, uuids.get((gi_id, ci)), fills) for ci, fills in found)),
    )


def _compute_instances(gi: Any, profiles: tuple[Any, ...]) -> Iterator[tuple[CiId, bool]]:
    """(id, whether it fills the GPU instance) of each."""
    for info in profiles:
        array = (pynvml.c_nvmlComputeInstance_t * int(info.instanceCount))()
        count = c_uint(0)
        pynvml.nvmlGpuInstanceGetComputeInstances(gi, int(info.id), array, byref(count))
        for ci in array[: count.value]:
            yield CiId(int(pynvml.nvmlComputeInstanceGetInfo_v2(ci).id)), info is _filling(profiles)


def _compute_profile_infos(gi: Any) -> Iterator[Any]:
    """Compute instance profiles of one GPU instance: one per id, whichever constant names it first."""
    seen: set[int] = set()
    constant = 0
    while True:
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                gi, constant, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
        except pynvml.NVMLError_NotSupported:
            pass
        except pynvml.NVMLError_InvalidArgument:
            return
        else:
            if int(info.id) not in seen:
                seen.add(int(info.id))
                yield info
        constant += 1


def _filling(infos: Sequence[Any]) -> Any:
    """The profile of a compute instance that fills its GPU instance: the one with the most multiprocessors of those
    that exist once. On Hopper the double-memory 1g has two of one compute slice, and only the larger uses all."""
    return max(infos, key=lambda i: (int(i.multiprocessorCount), int(i.sliceCount), -int(i.id)))


def _mig_uuids(handle: Handle) -> Iterator[tuple[tuple[int, int], MigUuid]]:
    """((GPU instance id, compute instance id), UUID) of every MIG device of the GPU."""
    for index in range(int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            ids = (
                int(pynvml.nvmlDeviceGetGpuInstanceId(device)),
                int(pynvml.nvmlDeviceGetComputeInstanceId(device)),
            )
            yield ids, MigUuid(text(pynvml.nvmlDeviceGetUUID(device)))
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            continue  # a hole, or a device destroyed while we walk


def create_gpu_instance(handle: Handle, partition: Partition) -> GiId:
    """Made at exactly the placement asked for; the id that it got."""
    at = pynvml.c_nvmlGpuInstancePlacement_t()
    at.start, at.size = partition.placement.start, partition.placement.size
    with translated(f"making a GPU instance of profile {partition.profile} at {partition.placement}"):
        gi = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, int(partition.profile), byref(at))
        return GiId(int(pynvml.nvmlGpuInstanceGetInfo(gi).id))


def create_compute_instance(handle: Handle, gi_id: GiId) -> CiId:
    """One compute instance that fills the GPU instance; its id."""
    with translated(f"making the compute instance of GPU instance {gi_id}"):
        gi = pynvml.nvmlDeviceGetGpuInstanceById(handle, int(gi_id))
        infos = list(_compute_profile_infos(gi))
        if not infos:
            raise Unavailable("NVML_UNAVAILABLE", f"GPU instance {gi_id} lists no compute instance profile")
        ci = pynvml.nvmlGpuInstanceCreateComputeInstance(gi, int(_filling(infos).id))
        return CiId(int(pynvml.nvmlComputeInstanceGetInfo_v2(ci).id))


def destroy_compute_instance(handle: Handle, gi_id: GiId, ci_id: CiId) -> None:
    with translated(f"destroying compute instance {ci_id} of GPU instance {gi_id}"):
        gi = pynvml.nvmlDeviceGetGpuInstanceById(handle, int(gi_id))
        pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(gi, int(ci_id)))


def destroy_gpu_instance(handle: Handle, gi_id: GiId) -> None:
    with translated(f"destroying GPU instance {gi_id}"):
        pynvml.nvmlGpuInstanceDestroy(pynvml.nvmlDeviceGetGpuInstanceById(handle, int(gi_id)))
