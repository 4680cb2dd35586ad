"""Which placement to take for a profile: total orders, so that the same question has one answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_

from dynamig.mig.geometry import Partition
from dynamig.mig.ids import GiProfileId
from dynamig.mig.table import Table


def first_fit(table: Table, live: Iterable[Partition], profile: GiProfileId) -> Partition | None:
    """The first partition of the profile in publishing order that fits: what kube-scheduler would take."""
    table.geometry.profile(profile)
    return next((p for p in table.possible(live) if p.profile == profile), None)


def fewest_lost(
    table: Table,
    live: Iterable[Partition],
    profile: GiProfileId,
    demand: Mapping[GiProfileId, float] | None = None,
) -> Partition | None:
    """The partition of the profile that closes the fewest others still possible; None if none fits.

    `demand`: weight of a lost partition by its profile, 0 for profiles not named; None: each weighs 1. Ties
    go to the first in publishing order.
    """
    table.geometry.profile(profile)
    live = tuple(live)
    candidates = [p for p in table.possible(live) if p.profile == profile]

    def cost(partition: Partition) -> float:
        lost = table.lost(live, partition)
        return len(lost) if demand is None else sum(demand.get(one.profile, 0) for one in lost)

    return min(candidates, key=cost, default=None)


def drivers_choice(table: Table, live: Iterable[Partition], profile: GiProfileId) -> Partition | None:
    """Where NVIDIA's driver puts an instance when it is not told (nvmlDeviceCreateGpuInstance); None if nowhere.

    The placement that closes the fewest placements of any profile, by memory slices alone; the lowest of equals.
    Nobody outside has read the driver's rule; this one gives every order in public outputs: 1g at
    6, 4, 5, 0, 1, 2, 3 and 3g at 4 first (A100, H100), and in the MIG user guide's example 1g, 1g, 2g, 3g fails
    while 3g, 1g, 2g, 1g succeeds.
    """
    live = tuple(live)
    taken = reduce(or_, (one.placement.mask for one in live), 0)
    free = [one.placement.mask for one in table.options if not one.placement.mask & taken]

    def cost(partition: Partition) -> tuple[int, int]:
        mask = partition.placement.mask
        return sum(1 for other in free if other & mask), partition.placement.start

    return min((one for one in table.possible(live) if one.profile == profile), key=cost, default=None)
