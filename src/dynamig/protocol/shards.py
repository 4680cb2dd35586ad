"""What a placement costs in Slurm: shards, so that no native job can get a GPU while anything of ours is on it.

The unit is what the smallest partitions can take. Memory slices on which none of them can begin (slice 7 of a 7-slice
GPU) belong to the unit before: whoever takes slice 6 strands slice 7 anyway. So a 7-slice GPU has 7 shards; 1g always
costs 1, 2g 2, 4g 4, 3g 4 on the left and 3 on the right half, 7g 7. Gpu and shard on one device exclude each other in
Slurm, so any cost of at least one keeps native whole-GPU jobs away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dynamig.errors import Refused
from dynamig.mig import Geometry


@dataclass(frozen=True, slots=True)
class Units:
    """How one GPU is counted in shards. `starts`: first memory slice of each unit, ascending."""

    starts: tuple[int, ...]

    @property
    def count(self) -> int:
        """Shards of the GPU: Count of its shard line in gres.conf."""
        return len(self.starts)

    def cost(self, memory_slices: Collection[int]) -> int:
        """Shards that an external job must hold for these memory slices: the units that they touch, at least 1.

        No memory slices: a device that does not say what it takes; it costs the whole GPU.
        """
        if not memory_slices:
            return self.count
        return max(1, len({max((s for s in self.starts if s <= m), default=self.starts[0]) for m in memory_slices}))


def units_of(footprints: Iterable[Collection[int]]) -> Units:
    """The units of a GPU whose partitions take these memory slices.

    Raises: Refused INVALID for a GPU without partitions: it has no shards, and is paid for as a whole GPU.
    """
    known = [sorted(f) for f in footprints if f]
    if not known:
        raise Refused("INVALID", "a GPU without partitions has no shards", "it is paid for as a whole GPU")
    smallest = min(len(f) for f in known)
    return Units(tuple(sorted({f[0] for f in known if len(f) == smallest})))


def units_of_geometry(geometry: Geometry) -> Units:
    return units_of(range(p.placement.start, p.placement.end) for p in geometry.partitions())
