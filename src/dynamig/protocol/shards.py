"""What a placement costs in Slurm: shards, so that no native job can get a GPU while anything of ours is on it.

The unit is what the smallest profile can take. Memory slices on which no smallest instance can begin (slice 7 of a
7-slice GPU) belong to the unit before: whoever takes slice 6 strands slice 7 anyway. So a 7-slice GPU has 7 shards;
1g always costs 1, 2g 2, 4g 4, 3g 4 on the left and 3 on the right half, 7g 7. Gpu and shard on one device exclude each
other in Slurm, so any cost of at least one keeps native whole-GPU jobs away.
"""

from __future__ import annotations

from dynamig.errors import Refused
from dynamig.mig import Geometry, Placement


def unit_starts(geometry: Geometry) -> tuple[int, ...]:
    """First memory slice of each unit, ascending: the starts of the smallest profiles."""
    smallest = min(p.size for p in geometry.profiles)
    starts = {at.start for p in geometry.profiles if p.size == smallest for at in p.placements}
    return tuple(sorted(starts))


def shards_per_gpu(geometry: Geometry) -> int:
    """Count of the GPU's shard line in gres.conf."""
    return len(unit_starts(geometry))


def cost(geometry: Geometry, at: Placement) -> int:
    """Shards that an external job must hold for `at`: the units that it touches; at least 1.

    Raises: Refused INVALID if `at` is not on the GPU.
    """
    if at.end > geometry.memory_slices:
        raise Refused("INVALID", f"placement {at} on a GPU of {geometry.memory_slices} memory slices")
    starts = unit_starts(geometry)
    ends = (*starts[1:], geometry.memory_slices)
    touched = sum(1 for a, b in zip(starts, ends, strict=True) if at.start < b and a < at.end)
    return max(1, touched)
