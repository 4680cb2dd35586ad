"""Compute instances: how a GPU instance can be cut, and what still fits in it.

A compute instance takes the compute slices `[start, start + size)` of its GPU instance and their multiprocessors;
memory and engines are shared by all in the GPU instance. NVML tells the profiles of a living GPU instance only, so
what an instance could be cut into is predicted here, from the GPU's profiles alone:

* a GPU instance of g compute slices can be cut into pieces of c slices for each c that NVML has a profile for and
  that leaves room for a second piece (2c at most g + 1), and into one piece of all g. Source: go-nvlib's list, and
  `nvidia-smi mig -lcip` in the MIG user guide: 1c, 2c and 3c in 3g; 1c, 2c, 3c, 4c and 7c in 7g;
* a piece has c times the multiprocessors of the GPU's plainest one-slice profile, the whole has all;
* where a one-slice profile is wider than that (double memory, Hopper SXM and later), one slice comes in two widths:
  the wide one has a profile of its own (`1_SLICE_REV1`), seen in a 2g instance of an H100 too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dynamig.mig.geometry import Geometry, GiProfile, Placement
from dynamig.mig.ids import CiProfileId, GiProfileId

PIECES = {1: 0, 2: 1, 3: 2, 4: 3, 6: 6, 7: 4, 8: 5}
"""Compute slices of a piece to NVML_COMPUTE_INSTANCE_PROFILE_* (nvml.h); IDs equal them in every output on record."""

WIDE_SLICE = CiProfileId(7)
"""NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1."""

BEYOND_NVML = CiProfileId(9)
"""NVML_COMPUTE_INSTANCE_PROFILE_COUNT: for a whole that has no constant, on a GPU that nobody has seen."""


@dataclass(frozen=True, slots=True)
class CiProfile:
    """One way to cut a GPU instance. `placements` in compute slices of the GPU instance."""

    id: CiProfileId
    compute_slices: int
    multiprocessors: int
    placements: tuple[Placement, ...]
    max_instances: int

    def partitions(self) -> tuple[CiPartition, ...]:
        return tuple(CiPartition(self.id, placement) for placement in self.placements)


@dataclass(frozen=True, slots=True, order=True)
class CiPartition:
    """One compute instance that could exist."""

    profile: CiProfileId
    placement: Placement


@dataclass(frozen=True, slots=True)
class Cuts:
    """What one GPU instance can be cut into."""

    multiprocessors: int
    profiles: tuple[CiProfile, ...]

    def profile(self, wanted: CiProfileId) -> CiProfile:
        return next(one for one in self.profiles if one.id == wanted)

    def fits(self, live: Iterable[CiPartition], new: CiPartition) -> bool:
        """No compute slice twice, no more multiprocessors than the GPU instance has, no profile more than its count."""
        live = tuple(live)
        alike = sum(one.profile == new.profile for one in live)
        taken = sum(self.profile(one.profile).multiprocessors for one in (*live, new))
        apart = not any(new.placement.overlaps(one.placement) for one in live)
        return apart and taken <= self.multiprocessors and alike < self.profile(new.profile).max_instances

    def remaining(self, live: Iterable[CiPartition], profile: CiProfileId) -> int:
        """As nvmlGpuInstanceGetComputeInstanceRemainingCapacity counts: how many more of one profile."""
        together = list(live)
        before = len(together)
        for one in sorted(self.profile(profile).partitions()):
            if self.fits(together, one):
                together.append(one)
        return len(together) - before


def cuts(geometry: Geometry, profile: GiProfileId) -> Cuts:
    """Raises: Refused UNKNOWN_PROFILE if the GPU does not list it."""
    parent = geometry.profile(profile)
    narrow, wide = _slice_widths(geometry)
    found = [_piece(c, parent, c * narrow) for c in sorted(PIECES) if _leaves_room(c, parent)]
    if parent.compute_slices == 1 and parent.engines.multiprocessors > narrow:
        found += [_piece(1, parent, narrow), _wide(parent, parent.engines.multiprocessors)]
    else:
        found.append(_whole(parent))
    if parent.compute_slices == 2 and narrow < wide <= parent.engines.multiprocessors:
        found.append(_wide(parent, wide))
    fitting = (one for one in found if one.multiprocessors <= parent.engines.multiprocessors)
    return Cuts(parent.engines.multiprocessors, tuple(sorted(fitting, key=lambda one: one.id)))


def _slice_widths(geometry: Geometry) -> tuple[int, int]:
    """Fewest and most multiprocessors of the one-slice profiles; on a GPU without any, more than there are."""
    widths = [p.engines.multiprocessors for p in geometry.profiles if p.compute_slices == 1]
    none = max(p.engines.multiprocessors for p in geometry.profiles) + 1
    return (min(widths), max(widths)) if widths else (none, none)


def _leaves_room(pieces: int, parent: GiProfile) -> bool:
    return pieces < parent.compute_slices and 2 * pieces <= parent.compute_slices + 1


def _piece(slices: int, parent: GiProfile, multiprocessors: int) -> CiProfile:
    count = parent.compute_slices // slices
    places = tuple(Placement(i * slices, slices) for i in range(count))
    return CiProfile(CiProfileId(PIECES[slices]), slices, multiprocessors, places, count)


def _whole(parent: GiProfile) -> CiProfile:
    constant = PIECES.get(parent.compute_slices)
    number = BEYOND_NVML if constant is None else CiProfileId(constant)
    place = Placement(0, parent.compute_slices)
    return CiProfile(number, parent.compute_slices, parent.engines.multiprocessors, (place,), 1)


def _wide(parent: GiProfile, multiprocessors: int) -> CiProfile:
    count = min(parent.compute_slices, parent.engines.multiprocessors // multiprocessors)
    places = tuple(Placement(i, 1) for i in range(parent.compute_slices))
    return CiProfile(WIDE_SLICE, 1, multiprocessors, places, count)
