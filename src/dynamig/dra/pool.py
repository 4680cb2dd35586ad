"""One GPU as a pool of devices that share counters.

Counters carry the rule of `dynamig.mig.limits` and nothing else, so that the scheduler allows exactly the
sets that NVML allows: one counter of value 1 per memory slice, one per scarce engine with the GPU's total,
one per profile that is capped for no visible reason. The other counters of NVIDIA's driver (memory,
multiprocessors, ...) are there for readers; each is at least what any legal set adds up to, so it never
forbids one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from dynamig.dra import names, quantity
from dynamig.dra.limits import COUNTERS_PER_SET
from dynamig.dra.model import AttributeValue, Device, GpuFacts, Pool, Taint
from dynamig.dra.version import MAX_LENGTH, semver
from dynamig.errors import Refused
from dynamig.mig import (
    Engines,
    Geometry,
    GiProfile,
    GiProfileId,
    MiB,
    Partition,
    capped_profiles,
    engine_totals,
    first_fit_order,
    largest_sum,
    scarce_engines,
)

NO_TAINTS: Mapping[str, tuple[Taint, ...]] = {}


def gpu_pool(
    node: str,
    facts: GpuFacts,
    *,
    profiles: Collection[str] | None = None,
    taints: Mapping[str, tuple[Taint, ...]] = NO_TAINTS,
) -> Pool:
    """Every partition that the GPU can make, then the full GPU, in the order in which first fit packs best.

    `profiles`: names of the profiles to offer; None: all. Without any, and for a GPU without geometry, the
    pool holds the full GPU alone and no counters. `taints`: by device name.

    Raises: Refused UNKNOWN_PROFILE or UNKNOWN_DEVICE for a name that this GPU does not have,
    TOO_MANY_SLICES for a GPU whose memory slices do not fit into a counter set, BAD_VERSION for a fact that
    is no version.
    """
    offered = _offered(facts, profiles)
    counters = _counters(facts, facts.geometry) if facts.geometry and offered else {}
    partitions = _partition_devices(facts, facts.geometry, offered) if facts.geometry else ()
    devices = _tainted((*partitions, _full_gpu(facts, counters)), taints)
    return Pool(f"{node}/{names.gpu_name(facts.number)}", facts, counters, devices)


def _offered(facts: GpuFacts, wanted: Collection[str] | None) -> frozenset[GiProfileId]:
    known = facts.geometry.profiles if facts.geometry else ()
    if wanted is None:
        return frozenset(profile.id for profile in known)
    if unknown := sorted(set(wanted) - {profile.name for profile in known}):
        listed = ", ".join(profile.name for profile in known) or "none"
        what = f"{_called(facts)} has no profile {', '.join(unknown)}"
        raise Refused("UNKNOWN_PROFILE", what, f"its profiles: {listed}")
    return frozenset(profile.id for profile in known if profile.name in wanted)


def _counters(facts: GpuFacts, geometry: Geometry) -> dict[str, str]:
    """The counter set of the GPU; see the preface for what each value is."""
    memory = max(facts.memory, largest_sum(geometry, lambda profile: profile.memory))
    counters = {names.MEMORY_COUNTER: quantity.memory(MiB(memory))}
    totals, scarce = engine_totals(geometry), scarce_engines(geometry)
    for capacity, engine in names.CAPACITIES.items():
        total = scarce[engine] if engine in scarce else _unlimited(geometry, totals, engine)
        counters[names.counter_name(capacity)] = str(total)
    for profile, count in capped_profiles(geometry).items():
        counters[names.instances_counter(profile)] = str(count)
    for i in range(geometry.memory_slices):
        counters[names.memory_slice_counter(i)] = "1"
    if len(counters) > COUNTERS_PER_SET:
        raise Refused(
            "TOO_MANY_SLICES",
            f"{_called(facts)} has {geometry.memory_slices} memory slices and needs {len(counters)} counters,"
            f" a counter set holds {COUNTERS_PER_SET}",
            "offer this GPU whole",
        )
    return counters


def _unlimited(geometry: Geometry, totals: Engines, engine: str) -> int:
    """A count that no disjoint set exceeds, for an engine that is no limit."""
    listed: int = getattr(totals, engine)
    return max(listed, largest_sum(geometry, lambda profile: int(getattr(profile.engines, engine))))


def _partition_devices(facts: GpuFacts, geometry: Geometry, offered: frozenset[GiProfileId]) -> Iterable[Device]:
    capped = capped_profiles(geometry)
    for partition in first_fit_order(geometry, offered):
        profile = geometry.profile(partition.profile)
        yield Device(
            name=names.partition_name(facts.number, profile, partition),
            partition=partition,
            attributes=_attributes(facts, {"type": "mig", "profile": profile.name, "parentUUID": str(facts.uuid)}),
            capacity=_capacity(profile.memory, profile.engines),
            consumes=_consumption(profile, partition, capped),
        )


def _full_gpu(facts: GpuFacts, counters: Mapping[str, str]) -> Device:
    """The whole GPU; it consumes every counter entirely, so it and any partition exclude each other."""
    if facts.geometry:
        capacity = _capacity(facts.memory, engine_totals(facts.geometry))
    else:
        capacity = {"memory": quantity.memory(facts.memory)}
    return Device(
        name=names.gpu_name(facts.number),
        partition=None,
        attributes=_attributes(facts, {"type": "gpu", "uuid": str(facts.uuid)}),
        capacity=capacity,
        consumes={counter: amount for counter, amount in counters.items() if amount != "0"},
    )


def _attributes(facts: GpuFacts, own: Mapping[str, str]) -> dict[str, AttributeValue]:
    """`own`, then what every device of the GPU shares. A fact that is not known has no attribute."""
    versions = {
        "cudaComputeCapability": facts.cuda_compute_capability,
        "driverVersion": facts.driver_version,
        "cudaDriverVersion": facts.cuda_driver_version,
    }
    attributes: dict[str, AttributeValue] = {
        **own,
        "productName": facts.product_name,
        "brand": facts.brand,
        "architecture": facts.architecture,
        **{key: semver(text) for key, text in versions.items() if text},
        names.PCI_BUS_ID: facts.pci_bus_id,
    }
    if facts.pcie_root is not None:
        attributes[names.PCIE_ROOT] = facts.pcie_root
    if facts.numa_node is not None:
        attributes[names.NUMA_NODE] = facts.numa_node
    return {key: _cut(value) if type(value) is str else value for key, value in attributes.items()}


def _cut(text: str) -> str:
    """As much as an attribute has room for. The API server counts bytes (validateDeviceAttributeStringValue), and for
    one too many it refuses the whole ResourceSlice."""
    return text.encode()[:MAX_LENGTH].decode(errors="ignore")


def _capacity(memory: MiB, engines: Engines) -> dict[str, str]:
    """Zero counts stay in: a selector that compares a missing capacity is an error, which fails the pod."""
    counts = {capacity: str(getattr(engines, engine)) for capacity, engine in names.CAPACITIES.items()}
    return {"memory": quantity.memory(memory), **counts}


def _consumption(profile: GiProfile, partition: Partition, capped: Collection[GiProfileId]) -> dict[str, str]:
    capacity = _capacity(profile.memory, profile.engines)
    consumes = {names.counter_name(name): amount for name, amount in capacity.items() if amount != "0"}
    if profile.id in capped:
        consumes[names.instances_counter(profile.id)] = "1"
    placement = partition.placement
    return consumes | {names.memory_slice_counter(i): "1" for i in range(placement.start, placement.end)}


def _tainted(devices: tuple[Device, ...], taints: Mapping[str, tuple[Taint, ...]]) -> tuple[Device, ...]:
    if unknown := sorted(set(taints) - {device.name for device in devices}):
        what = f"taints for {', '.join(unknown)}, which {devices[-1].name} does not have"
        raise Refused("UNKNOWN_DEVICE", what)
    return tuple(
        replace(device, taints=tuple(taints[device.name])) if device.name in taints else device for device in devices
    )


def _called(facts: GpuFacts) -> str:
    return f"{facts.product_name} {facts.uuid}"
