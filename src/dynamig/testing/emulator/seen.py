"""What an emulated node is like now, as values: its GPUs, what lives on them, and the faults that are ordered."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dynamig.testing.emulator import layout
from dynamig.testing.emulator.ending import busy_name
from dynamig.testing.emulator.faults import SeenFault, read_faults, seen_fault
from dynamig.testing.emulator.node import held_by, read_models, read_node, shared_locks
from dynamig.testing.emulator.usage import fed_records

_UUIDS_OF_THEIR_OWN = 470  # driver branch


@dataclass(frozen=True, slots=True)
class SeenComputeInstance:
    """A compute instance; `start` and `size` in compute slices of its GPU instance.

    `held_by`, here and below: pids of programs on just this, as far as `node.shared_locks` finds them.
    """

    ci_id: int
    profile_id: int
    start: int
    size: int
    mig_uuid: str
    held_by: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SeenGpuInstance:
    """A GPU instance; `start` and `size` in memory slices. `foreign`: made by `Emulator.foreign`."""

    gi_id: int
    profile_id: int
    profile: str
    start: int
    size: int
    foreign: bool
    held_by: tuple[int, ...]
    compute_instances: tuple[SeenComputeInstance, ...]


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """A GPU as it is, whatever a client may see of it."""

    index: int
    uuid: str
    minor: int
    model: str
    product: str
    bus_id: str
    mig: bool
    mig_pending: bool
    lost: bool
    held_by: tuple[int, ...]
    memory_slices: int
    gpu_instances: tuple[SeenGpuInstance, ...]


@dataclass(frozen=True, slots=True)
class SeenNode:
    """`revision` counts changes; equal revisions mean equal GPUs. `usage_records`: how many were fed last."""

    directory: str
    driver_version: str
    boot_id: str
    revision: int
    gpus: tuple[SeenGpu, ...]
    faults: tuple[SeenFault, ...]
    usage_records: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def seen_node(directory: Path) -> SeenNode:
    """Everything that lives on the node now, in one consistent picture."""
    node, models = read_node(directory), read_models(directory)
    seeing = _Seeing(directory, shared_locks(), node.head.driver_branch)
    return SeenNode(
        directory=str(directory),
        driver_version=node.head.driver_version.decode(),
        boot_id=node.head.boot_id.decode(),
        revision=node.head.revision,
        gpus=tuple(_seen_gpu(i, gpu, models[gpu.model], seeing) for i, gpu in enumerate(node.gpus)),
        faults=tuple(map(seen_fault, read_faults(directory))),
        usage_records=fed_records(directory),
    )


@dataclass(frozen=True, slots=True)
class _Seeing:
    """What looking at any part of the node needs."""

    directory: Path
    locks: Mapping[str, list[int]]
    branch: int

    def held_by(self, gpu: int, gi_id: int | None = None, ci_id: int | None = None) -> tuple[int, ...]:
        return held_by(self.directory / "state/busy" / busy_name(gpu, gi_id, ci_id), self.locks)


def _seen_gpu(index: int, gpu: layout.Gpu, model: layout.Model, seeing: _Seeing) -> SeenGpu:
    instances = [_seen_gi(index, gpu, gi, model, seeing) for gi in gpu.gis[: gpu.gi_count]]
    return SeenGpu(
        index=index,
        uuid=gpu.uuid.decode(),
        minor=gpu.minor,
        model=model.key.decode(),
        product=model.product.decode(),
        bus_id=gpu.bus_id.decode(),
        mig=bool(gpu.mig_current),
        mig_pending=bool(gpu.mig_pending),
        lost=bool(gpu.lost),
        held_by=seeing.held_by(index),
        memory_slices=model.memory_slices,
        gpu_instances=tuple(sorted(instances, key=lambda gi: gi.start)),
    )


def _seen_gi(
    index: int, gpu: layout.Gpu, gi: layout.GpuInstance, model: layout.Model, seeing: _Seeing
) -> SeenGpuInstance:
    profile = model.profiles[gi.profile]
    inside = [_seen_ci(index, gpu, ci, profile, seeing) for ci in gpu.cis[: gpu.ci_count] if ci.gi_id == gi.id]
    return SeenGpuInstance(
        gi_id=gi.id,
        profile_id=profile.id,
        profile=profile.name.decode(),
        start=gi.start,
        size=profile.memory_slices,
        foreign=bool(gi.flags & layout.GI_FOREIGN),
        held_by=seeing.held_by(index, gi.id),
        compute_instances=tuple(sorted(inside, key=lambda ci: ci.ci_id)),
    )


def _mig_uuid(gpu: layout.Gpu, ci: layout.ComputeInstance, branch: int) -> str:
    """As NVML has it; before R470 a MIG device had none of its own (`mig_uuid` in emulator/src/identity.c)."""
    if branch < _UUIDS_OF_THEIR_OWN:
        return f"MIG-{gpu.uuid.decode()}/{ci.gi_id}/{ci.id}"
    return "MIG-" + str(uuid.UUID(bytes=ctypes.string_at(ci.uuid, 16)))


def _seen_ci(
    index: int, gpu: layout.Gpu, ci: layout.ComputeInstance, parent: layout.GiProfile, seeing: _Seeing
) -> SeenComputeInstance:
    profile = parent.ci_profiles[ci.profile]
    return SeenComputeInstance(
        ci_id=ci.id,
        profile_id=profile.id,
        start=ci.start,
        size=profile.slices,
        mig_uuid=_mig_uuid(gpu, ci, seeing.branch),
        held_by=seeing.held_by(index, ci.gi_id, ci.id),
    )
