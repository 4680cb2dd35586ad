"""What this node offers: each GPU with its pool of devices, and the way back from a device name to the hardware.

A device name is looked up, never parsed: the catalog was built from what NVML said.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from dynamig.dra import Device, GpuFacts, Pool, Taint, gpu_pool
from dynamig.driver.config import GpuPolicies, GpuPolicy, ModePolicy, Policy
from dynamig.errors import Refused
from dynamig.mig import Geometry, GpuUuid, Partition, Table
from dynamig.protocol import names
from dynamig.protocol.gpus import GpuReading, LiveInstance, MigMode


@dataclass(frozen=True, slots=True)
class Offer:
    """One GPU as this node offers it. `why`: why it is not offered both whole and partitioned; empty if it is."""

    reading: GpuReading
    policy: GpuPolicy
    pool: Pool
    table: Table | None
    why: str

    @property
    def may_switch_mode(self) -> bool:
        return self.policy.mig_mode is ModePolicy.ON_DEMAND and not self.reading.mode_switch_needs_reset

    def profile_name(self, partition: Partition) -> str:
        """Raises Refused UNKNOWN_PROFILE for a profile that this GPU does not list."""
        if self.table is None:
            raise Refused("UNKNOWN_PROFILE", f"{self.reading.uuid} is offered whole")
        return self.table.geometry.profile(partition.profile).name


@dataclass(frozen=True, slots=True)
class Catalog:
    """The offers of one node, by pool name."""

    offers: Mapping[str, Offer] = field(default_factory=dict)

    def find(self, pool: str, device: str) -> tuple[Offer, Device]:
        """Raises Refused UNKNOWN_DEVICE, naming the pool and device and where to look."""
        offer = self.offers.get(pool)
        if offer is None:
            raise Refused(
                "UNKNOWN_DEVICE",
                f"pool {pool} is not on this node",
                "compare with `kubectl get resourceslices`",
            )
        return offer, offer.pool.device(device)

    def of_gpu(self, gpu: GpuUuid) -> Offer:
        for offer in self.offers.values():
            if offer.reading.uuid == gpu:
                return offer
        raise Refused("UNKNOWN_DEVICE", f"GPU {gpu} is not offered on this node", "see `dynamig driver status`")


def build(
    node: str,
    readings: Iterable[GpuReading],
    numbers: Mapping[GpuUuid, int],
    policies: GpuPolicies,
    foreign: Mapping[GpuUuid, tuple[LiveInstance, ...]] = MappingProxyType({}),
) -> Catalog:
    """The catalog of a node. `numbers`: n of `gpu-<n>`; `foreign`: instances that we cannot prove to be ours."""
    offers: dict[str, Offer] = {}
    for reading in readings:
        policy = policies.of(reading.uuid, reading.pci_bus_id)
        if policy.policy is Policy.IGNORE:
            continue
        offer = _offer(node, reading, numbers[reading.uuid], policy)
        offer = _withdraw(offer, foreign.get(reading.uuid, ()))
        offers[offer.pool.name] = offer
    return Catalog(MappingProxyType(offers))


def _offer(node: str, reading: GpuReading, number: int, policy: GpuPolicy) -> Offer:
    whole, partitioned, why = _shapes(reading, policy)
    facts = _facts(reading, number, partitioned=partitioned)
    try:
        pool = _pool(node, facts, _allowed(policy, facts))
    except Refused as refused:
        if refused.code != "TOO_MANY_SLICES":
            raise
        whole, partitioned, why = True, False, refused.what
        pool = _pool(node, replace(facts, geometry=None), None)
    if not whole:
        pool = replace(pool, devices=tuple(d for d in pool.devices if d.partition is not None))
    table = _table(reading.geometry) if reading.geometry is not None and partitioned else None
    return Offer(reading, policy, pool, table, why)


@functools.lru_cache(maxsize=64)
def _pool(node: str, facts: GpuFacts, profiles: frozenset[str] | None) -> Pool:
    """Pure, and the same at each look at an unchanged GPU; a pool takes about 20 ms to work out (bench/start.py)."""
    return gpu_pool(node, facts, profiles=profiles)


@functools.lru_cache(maxsize=64)
def _table(geometry: Geometry) -> Table:
    return Table(geometry)


def _shapes(reading: GpuReading, policy: GpuPolicy) -> tuple[bool, bool, str]:
    """(offered whole, offered partitioned, why not both). The current mode decides, not the pending one."""
    if policy.policy is Policy.WHOLE:
        return True, False, "policy says whole"
    if reading.mig_mode is MigMode.ABSENT:
        return True, False, "the GPU has no MIG"
    if reading.geometry is None:
        return True, False, "NVML lists no usable profile while MIG is off (drivers before R535)"
    if policy.mig_mode is ModePolicy.ON_DEMAND and not reading.mode_switch_needs_reset:
        return True, True, ""
    reason = "switching needs a GPU reset" if reading.mode_switch_needs_reset else "policy says require"
    if reading.mig_mode is MigMode.ON:
        return False, True, f"MIG mode is on and {reason}"
    return True, False, f"MIG mode is off and {reason}"


def _facts(reading: GpuReading, number: int, *, partitioned: bool) -> GpuFacts:
    return GpuFacts(
        number=number,
        uuid=reading.uuid,
        product_name=reading.product_name,
        brand=reading.brand,
        architecture=reading.architecture,
        cuda_compute_capability=reading.cuda_compute_capability,
        driver_version=reading.driver_version,
        cuda_driver_version=reading.cuda_driver_version,
        memory=reading.memory,
        pci_bus_id=reading.pci_bus_id,
        pcie_root=reading.pcie_root,
        numa_node=reading.numa_node,
        geometry=reading.geometry if partitioned else None,
    )


def _allowed(policy: GpuPolicy, facts: GpuFacts) -> frozenset[str] | None:
    """The allow-list as far as this GPU has the profiles: one list may serve a node of different GPUs."""
    if policy.profiles is None or facts.geometry is None:
        return None
    return policy.profiles & {p.name for p in facts.geometry.profiles}


def _withdraw(offer: Offer, foreign: tuple[LiveInstance, ...]) -> Offer:
    """Devices that overlap a foreign instance are tainted, so that nothing new is put there; none disappears."""
    if not foreign:
        return offer
    devices = tuple(_tainted(d) if _in_the_way(d, foreign) else d for d in offer.pool.devices)
    return replace(offer, pool=replace(offer.pool, devices=devices))


def _in_the_way(device: Device, foreign: tuple[LiveInstance, ...]) -> bool:
    at = device.partition
    return at is None or any(at.placement.overlaps(i.placement) for i in foreign)


def _tainted(device: Device) -> Device:
    return replace(device, taints=(*device.taints, Taint(key=names.FOREIGN_TAINT, value="", effect="NoSchedule")))
