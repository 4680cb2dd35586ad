"""The order in which partitions are published, which is the order in which kube-scheduler takes them.

kube-scheduler allocates the first device that fits and scores nothing, so the order is the policy (decision
0003).

1. Profiles from small to large, so that a claim which names no profile gets the smallest partition: by memory
   slices, then compute slices, memory, media engines (plain before `+me`), multiprocessors, ID.
2. Inside a profile, the placement first that closes the fewest partitions still possible, given that the
   earlier ones of the profile are taken; among equals the lowest start. On an H100 that gives 1g at
   6, 4, 5, 0, 1, 2, 3, the order in which NVIDIA's driver places 1g by itself, 2g at 4, 0, 2, and 3g at 4,
   0, so that 4g stays possible for as long as anything fits on the right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dynamig.mig.geometry import Geometry, GiProfile, Partition
from dynamig.mig.ids import GiProfileId
from dynamig.mig.limits import MEDIA_ENGINES, Limits
from dynamig.mig.options import Occupied, Options


def first_fit_order(geometry: Geometry, profiles: Collection[GiProfileId] | None = None) -> tuple[Partition, ...]:
    """All partitions of the GPU in publishing order.

    `profiles`: only these are offered, and only their partitions count as lost; None: all. Limits are always
    those of the whole GPU.
    """
    offered = [p for p in geometry.profiles if profiles is None or p.id in profiles]
    options = Options(geometry, Limits.of(geometry), sorted(p for one in offered for p in one.partitions()))
    return tuple(p for one in sorted(offered, key=_small_first) for p in _packing_order(options, one))


def _small_first(profile: GiProfile) -> tuple[int, ...]:
    media = sum(getattr(profile.engines, engine) for engine in MEDIA_ENGINES)
    return (
        profile.size,
        profile.compute_slices,
        profile.memory,
        media,
        profile.engines.multiprocessors,
        profile.id,
    )


def _packing_order(options: Options, profile: GiProfile) -> Iterator[Partition]:
    """Placements of one profile, each the cheapest after the ones before it.

    When none of the rest fits beside the ones before (overlapping placements, or one `+me` per GPU), the
    rest is ranked from an empty GPU again.
    """
    rest = options.select(profile.partitions())
    state = Occupied()
    while rest:
        fitting = rest & options.possible(state)
        if not fitting:
            state = Occupied()
            continue
        best = min(options.pick(fitting), key=lambda p: (_cost(options, state, p), p.placement.start))
        yield best
        rest ^= options.select([best])
        state = options.after(state, best)


def _cost(options: Options, state: Occupied, partition: Partition) -> int:
    return options.closed_by(state, partition).bit_count()
