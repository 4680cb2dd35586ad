"""GPUs as the hardware tells of them, and the port through which the driver acts on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from dynamig.mig import CiId, Geometry, GiId, GiProfileId, GpuUuid, MiB, MigUuid, Partition, Placement


class MigMode(Enum):
    """Current MIG mode of a GPU. `ABSENT`: the GPU cannot be partitioned at all."""

    ABSENT = "absent"
    OFF = "off"
    ON = "on"


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU as NVML describes it now. Text that NVML does not offer is empty, a number that it does not, None.

    `minor` names the device node and may change when MIG mode is switched: read it again before each use.
    `geometry` is None where NVML lists no GPU instance profile: no MIG, or MIG off on a driver older than R535.
    `left_out`: why profiles that NVML lists are not in it, for people, one text for each.
    """

    uuid: GpuUuid
    index: int
    minor: int
    product_name: str
    brand: str
    architecture: str
    cuda_compute_capability: str
    driver_version: str
    cuda_driver_version: str
    memory: MiB
    pci_bus_id: str
    pcie_root: str | None
    numa_node: int | None
    mig_mode: MigMode
    mig_mode_pending: MigMode
    mode_switch_needs_reset: bool
    geometry: Geometry | None
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class ComputeInstance:
    """One compute instance; `uuid` is the MIG device that CUDA sees, None while NVML does not list it. `fills`: it has
    all of its GPU instance, as those that we make do."""

    ci_id: CiId
    uuid: MigUuid | None
    fills: bool


@dataclass(frozen=True, slots=True, order=True)
class LiveInstance:
    """One GPU instance that exists on the hardware now. Ids mean nothing once it is destroyed."""

    gi_id: GiId
    profile: GiProfileId
    placement: Placement
    compute: tuple[ComputeInstance, ...] = ()

    @property
    def partition(self) -> Partition:
        return Partition(self.profile, self.placement)

    def __str__(self) -> str:
        return f"GPU instance {self.gi_id} (profile {self.profile} at {self.placement})"


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A character device: where a container sees it, where it is on the host, and its numbers."""

    path: str
    host_path: str
    major: int
    minor: int


class DeviceNodes(Protocol):
    """Device nodes and boot identity of one node. Raises Unavailable DEVICE_NODE_MISSING for what is not there."""

    def boot_id(self) -> str:
        """Changes with each boot, and with it every instance is gone (MIG user guide)."""
        ...

    def gpu_nodes(self, minor: int) -> Sequence[DeviceNode]:
        """The GPU's own node and the control nodes that any CUDA process needs."""
        ...

    def capability_nodes(self, minor: int, gi: GiId, ci: CiId) -> Sequence[DeviceNode]:
        """The nodes that open exactly this GPU instance and this compute instance."""
        ...


class Gpus(Protocol):
    """The GPUs of one node. Every call may block on the hardware and raises the families of `dynamig.errors`:
    `Refused` (the hardware will not), `Unavailable` (busy, lost, no answer within the deadline)."""

    def readings(self) -> Sequence[GpuReading]: ...
    def reading(self, gpu: GpuUuid) -> GpuReading: ...
    def minor(self, gpu: GpuUuid) -> int:
        """Of its device node, now."""
        ...

    def mig_mode(self, gpu: GpuUuid) -> MigMode:
        """The current mode."""
        ...

    def instances(self, gpu: GpuUuid) -> Sequence[LiveInstance]: ...
    def create_gpu_instance(self, gpu: GpuUuid, partition: Partition) -> GiId: ...
    def create_compute_instance(self, gpu: GpuUuid, gi: GiId) -> CiId:
        """One that fills the GPU instance."""
        ...

    def destroy_compute_instance(self, gpu: GpuUuid, gi: GiId, ci: CiId) -> None: ...
    def destroy_gpu_instance(self, gpu: GpuUuid, gi: GiId) -> None: ...
    def set_mig_mode(self, gpu: GpuUuid, *, on: bool) -> None: ...
