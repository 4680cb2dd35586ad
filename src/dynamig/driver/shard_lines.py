"""What gres.conf must say of this node's shards, so that they are what the bridge counts with. Pure.

Slurm maps shards to GPUs by position, and unequal untyped counts come out in another order than they were written in
(26.05.5). So the count is the same on all GPUs of a node, enough for the one that needs most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dynamig.driver.catalog import Catalog, Offer
from dynamig.driver.config import Policy
from dynamig.mig import GpuUuid
from dynamig.protocol.device_map import DeviceMap
from dynamig.protocol.gpus import GpuReading
from dynamig.protocol.shards import units_of


def shard_lines(device_map: DeviceMap, readings: Iterable[GpuReading], catalog: Catalog) -> Sequence[str]:
    """One line for each GPU of the map, by Slurm's index; none where a GPU does not say which device file it has."""
    minors: Mapping[GpuUuid, int] = {r.uuid: r.minor for r in readings}
    gpus = [gpu for _, gpu in sorted(device_map.gpus.items())]
    if any(gpu not in minors for gpu in gpus):
        return ()
    count = max((_shards(o) for o in catalog.offers.values() if o.reading.uuid in gpus), default=1)
    return [f"NodeName={device_map.slurm_node} Name=shard Count={count} File=/dev/nvidia{minors[g]}" for g in gpus]


def _shards(offer: Offer) -> int:
    """As its policy lets the GPU be cut, whatever its MIG mode is now; 1 if never."""
    geometry, policy = offer.reading.geometry, offer.policy
    if geometry is None or policy.policy is not Policy.DYNAMIC:
        return 1
    offered = [p for p in geometry.profiles if policy.profiles is None or p.name in policy.profiles]
    places = [range(at.start, at.end) for profile in offered for at in profile.placements]
    return units_of(places).count if places else 1
