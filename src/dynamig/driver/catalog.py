"""What this node offers: each GPU with its pool of devices, and the way back from a device name to the hardware.

A device name is looked up, never parsed: the catalog was built from what NVML said.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from dynamig.dra import Device, GpuFacts, Pool, Taint, gpu_pool
from dynamig.driver.config import GpuPolicies, GpuPolicy, ModePolicy, Policy
from dynamig.errors import Refused
from dynamig.mig import Geometry, GpuUuid, Partition, Table
from dynamig.protocol import names
from dynamig.protocol.gpus import GpuReading, LiveInstance, MigMode

FOREIGN = Taint(key=names.FOREIGN_TAINT, value="", effect="NoSchedule")
UNHEALTHY = Taint(key=names.UNHEALTHY_TAINT, value="", effect="NoSchedule")
WITHDRAWN = Taint(key=names.WITHDRAWN_TAINT, value="", effect="NoSchedule")
MANAGED = Taint(key=names.MANAGED_TAINT, value="managed", effect="NoSchedule")


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
    *,
    held: Mapping[GpuUuid, Collection[str]] = MappingProxyType({}),
    managed: bool = False,
    unhealthy: Collection[GpuUuid] = (),
) -> Catalog:
    """The catalog of a node. `numbers`: n of `gpu-<n>`; `foreign`: instances that we cannot prove to be ours; `held`:
    devices that claims have, which stay published whatever the policy says now (Kubernetes' allocator counts a held
    device that is not published as free); `managed`: Slurm has the GPUs as well, so only the bridge may allocate;
    `unhealthy`: GPUs that do not answer, of which nothing new may be had."""
    offers: dict[str, Offer] = {}
    for reading in readings:
        policy = policies.of(reading.uuid, reading.pci_bus_id)
        here = frozenset(held.get(reading.uuid, ()))
        if policy.policy is Policy.IGNORE and not here:
            continue
        offer = _offer(node, reading, numbers[reading.uuid], policy, here)
        offer = _withdraw(offer, foreign.get(reading.uuid, ()))
        if managed:
            offer = _all_tainted(offer, MANAGED)
        if reading.uuid in unhealthy:
            offer = _all_tainted(offer, UNHEALTHY)
        offers[offer.pool.name] = offer
    return Catalog(MappingProxyType(offers))


def _offer(node: str, reading: GpuReading, number: int, policy: GpuPolicy, held: frozenset[str]) -> Offer:
    whole, partitioned, why = _shapes(reading, policy)
    everything = _everything(node, reading, number)
    if partitioned and not everything.counters:
        whole, partitioned, why = True, False, "it has more memory slices than Kubernetes can count"
    allowed = _allowed(policy, reading)
    offered = {d.name for d in everything.devices if (whole if d.partition is None else partitioned and allowed(d))}
    pool = everything if partitioned or held - offered else _pool(node, _facts(reading, number, partitioned=False))
    devices = (
        d if d.name in offered else _tainted(d, WITHDRAWN) for d in pool.devices if d.name in offered or d.name in held
    )
    table = _table(reading.geometry) if reading.geometry is not None and partitioned else None
    return Offer(reading, policy, replace(pool, devices=tuple(devices)), table, why)


def _everything(node: str, reading: GpuReading, number: int) -> Pool:
    """All that the GPU could be offered as; only the whole GPU where that is more than Kubernetes can count."""
    try:
        return _pool(node, _facts(reading, number, partitioned=True))
    except Refused as refused:
        if refused.code != "TOO_MANY_SLICES":
            raise
        return _pool(node, _facts(reading, number, partitioned=False))


@functools.lru_cache(maxsize=64)
def _pool(node: str, facts: GpuFacts) -> Pool:
    """Pure, and the same at each look at an unchanged GPU; a pool takes about 20 ms to work out (bench/start.py)."""
    return gpu_pool(node, facts)


@functools.lru_cache(maxsize=64)
def _table(geometry: Geometry) -> Table:
    return Table(geometry)


def _shapes(reading: GpuReading, policy: GpuPolicy) -> tuple[bool, bool, str]:
    """(offered whole, offered partitioned, why not both). The current mode decides, not the pending one."""
    if policy.policy is Policy.IGNORE:
        return False, False, "policy says ignore; a claim still has a device of it"
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


def _allowed(policy: GpuPolicy, reading: GpuReading) -> Callable[[Device], bool]:
    """Whether the allow-list has a partition. One list may serve a node of different GPUs: it may name others too."""
    if policy.profiles is None or reading.geometry is None:
        return lambda device: True
    ids = {p.id for p in reading.geometry.profiles if p.name in policy.profiles}
    return lambda device: device.partition is not None and device.partition.profile in ids


def _withdraw(offer: Offer, foreign: tuple[LiveInstance, ...]) -> Offer:
    """Devices that a foreign instance leaves no room for, slices or engines, are tainted; none disappears."""
    if not foreign:
        return offer
    live = [i.partition for i in foreign]
    return _with_devices(
        offer, (_tainted(d, FOREIGN) if _in_the_way(d, offer.table, live) else d for d in offer.pool.devices)
    )


def _in_the_way(device: Device, table: Table | None, live: Sequence[Partition]) -> bool:
    at = device.partition
    return at is None or table is None or bool(table.blocking(live, at))


def _tainted(device: Device, taint: Taint) -> Device:
    return replace(device, taints=(*device.taints, taint))


def _all_tainted(offer: Offer, taint: Taint) -> Offer:
    return _with_devices(offer, (_tainted(d, taint) for d in offer.pool.devices))


def _with_devices(offer: Offer, devices: Iterable[Device]) -> Offer:
    return replace(offer, pool=replace(offer.pool, devices=tuple(devices)))
