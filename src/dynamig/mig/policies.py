"""Which placement to take for a profile: total orders, so that the same question has one answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
