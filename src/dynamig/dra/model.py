"""Values of one GPU as DRA sees it: facts read from the node, devices, and the pool that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dynamig.dra.names import counter_set_name
from dynamig.dra.version import Version
from dynamig.errors import Refused
from dynamig.mig import Geometry, GpuUuid, MiB, Partition

AttributeValue = str | int | bool | Version
TAINT_EFFECTS = ("NoSchedule", "NoExecute", "None")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What a node knows about one GPU.

    `number`: n of `gpu-<n>`, given once and never the current minor. `memory`: the whole GPU. Versions may
    be as NVML gives them (`580.82.07`). `numa_node`: None where the GPU has no affinity. `geometry`: None
    if the GPU cannot be partitioned, or cannot say how; it is offered whole then.
    """

    number: int
    uuid: GpuUuid
    product_name: str
    brand: str
    architecture: str
    cuda_compute_capability: str
    driver_version: str
    cuda_driver_version: str
    memory: MiB
    pci_bus_id: str
    pcie_root: str | None = None
    numa_node: int | None = None
    geometry: Geometry | None = None


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """A device taint. `effect` is NoSchedule, NoExecute or None (the word: informational, from 1.35 on)."""

    key: str
    value: str
    effect: str

    def __post_init__(self) -> None:
        if self.effect not in TAINT_EFFECTS:
            known = ", ".join(TAINT_EFFECTS)
            what = f"taint {self.key} has the effect {self.effect!r}"
            raise Refused("BAD_TAINT", what, f"use one of {known}")


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a pool. `partition`: None for the full GPU.

    `capacity` and `consumes` (counter -> amount, of the pool's one counter set) are quantities as text.
    """

    name: str
    partition: Partition | None
    attributes: Mapping[str, AttributeValue]
    capacity: Mapping[str, str]
    consumes: Mapping[str, str]
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """One GPU's devices in publishing order, the full GPU last. `counters`: empty if nothing is
    partitioned.
    """

    name: str
    gpu: GpuFacts
    counters: Mapping[str, str]
    devices: tuple[Device, ...]

    @property
    def counter_set(self) -> str:
        return counter_set_name(self.gpu.number)

    @property
    def full_gpu(self) -> Device:
        return self.devices[-1]

    def device(self, name: str) -> Device:
        """Raises: Refused UNKNOWN_DEVICE."""
        for device in self.devices:
            if device.name == name:
                return device
        raise Refused(
            "UNKNOWN_DEVICE",
            f"pool {self.name} has no device {name!r}",
            "the claim may be older than the node's last change of GPUs or policy: recreate it",
        )

    def device_for(self, partition: Partition) -> Device | None:
        """The device of a partition; None if it is not offered (an allow-list leaves it out)."""
        return next((device for device in self.devices if device.partition == partition), None)
