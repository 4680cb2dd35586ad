"""Which sets of partitions NVML allows, as integers.

**The rule.** A set of partitions can live on one GPU if and only if

1. no two of them share a memory slice;
2. for each *scarce* engine, the sum over the set is at most the GPU's total;
3. no profile has more instances than its `max_instances`.

The GPU's total of an engine is the largest count of any of its profiles: the full-size profile lists what
there is. A media engine (decoders, encoders, JPEG, OFA) is scarce if disjoint placements could take more than
that total, unless NVML's own instance counts refute the total: if `max_instances` copies of one profile
exceed it, it is no limit. Multiprocessors, copy engines and memory are never limits: they come with the
slices.

**Evidence.** Rule 1 is the one that nvml.h states (nvmlDeviceGetGpuInstancePossiblePlacements_v2: creation
fails "if there is overlap with the already occupied memory slices"). Beyond it the user guide and
`nvidia-smi mig -lgip` know one more limit, media extensions: `+me` exists once per GPU because there is one
OFA, and on RTX PRO an instance with all media engines leaves room only for those without any.
`tests/property/test_mig_models.py` walks every set of disjoint partitions of every complete model on record
and finds that rules 2 and 3 forbid exactly the sets with two owners of an OFA, nothing else: on Hopper and
Blackwell the OFA alone is scarce, on Ampere decoders or JPEG run out only where the OFA does.

**What stays open.** On an unknown model whose full-size profile lists fewer media engines than a mix of
small ones takes in sum, without any single profile showing it, the mix would be refused although NVML
allows it. That loses room; the opposite error would promise what cannot be made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dynamig.mig.geometry import Engines, Geometry, GiProfile, Partition
from dynamig.mig.ids import GiProfileId

MEDIA_ENGINES = ("decoders", "encoders", "jpeg_engines", "ofa_engines")

FIELD_BITS = 32
"""Width of one count in a packed integer. Its top bit is the guard; counts stay far below 2^31."""


def engine_totals(geometry: Geometry) -> Engines:
    """Engines of the GPU as MIG can hand them out: per engine the largest count of any profile.

    An A100 has 108 multiprocessors and lists 98 for 7g: the rest is out of reach in MIG mode.
    """
    return Engines.maximum(profile.engines for profile in geometry.profiles)


def disjoint_placements(profile: GiProfile) -> int:
    """How many placements of the profile fit side by side, by memory slices alone."""
    count, free_from = 0, 0
    for placement in sorted(profile.placements):  # equal sizes: the earliest start is the earliest end
        if placement.start >= free_from:
            count, free_from = count + 1, placement.end
    return count


def instances_at_most(profile: GiProfile) -> int:
    """The smaller of NVML's instance count and what the placements have room for.

    NVML is on record with wrong instance counts for A30, for which mig-parted kept numbers of its own; a
    count above what the placements hold means nothing.
    """
    return min(profile.max_instances, disjoint_placements(profile))


def largest_sum(geometry: Geometry, amount: Callable[[GiProfile], int]) -> int:
    """The most that any set of disjoint partitions adds up to, in units of `amount`.

    Cost: memory slices times partitions (the best sum that ends at or before each slice), whatever the
    number of sets. Scarce engines are not looked at, so the answer may be above what legal sets reach,
    never below.
    """
    best = [0] * (geometry.memory_slices + 1)
    for end in range(1, len(best)):
        ending = [(p, at) for p in geometry.profiles for at in p.placements if at.end == end]
        best[end] = max([best[end - 1], *(best[at.start] + amount(p) for p, at in ending)])
    return best[-1]


def scarce_engines(geometry: Geometry) -> Mapping[str, int]:
    """Media engines that NVML hands out by count, with the GPU's total of each; see the rule above."""
    totals = engine_totals(geometry)
    scarce: dict[str, int] = {}
    for engine in MEDIA_ENGINES:
        total: int = getattr(totals, engine)
        amount = _amount_of(engine)
        refuted = any(amount(p) * instances_at_most(p) > total for p in geometry.profiles)
        if largest_sum(geometry, amount) > total and not refuted:
            scarce[engine] = total
    return scarce


def _amount_of(engine: str) -> Callable[[GiProfile], int]:
    return lambda profile: int(getattr(profile.engines, engine))


def capped_profiles(geometry: Geometry) -> Mapping[GiProfileId, int]:
    """Profiles whose instance count nothing else explains, with that count.

    Empty on every model on record: `+me` is explained by the OFA. It catches a profile that a future GPU
    limits for a reason which its engine counts do not show.
    """
    scarce = scarce_engines(geometry)
    capped: dict[GiProfileId, int] = {}
    for profile in geometry.profiles:
        by_engine = [total // n for e, total in scarce.items() if (n := getattr(profile.engines, e))]
        if profile.max_instances < min([disjoint_placements(profile), *by_engine]):
            capped[profile.id] = profile.max_instances
    return capped


@dataclass(frozen=True, slots=True)
class Limits:
    """Rules 2 and 3 as packed integers: one field of `FIELD_BITS` bits per limit, scarce engines first."""

    takes: Mapping[GiProfileId, int] = field(repr=False)
    """What one instance of a profile takes of each limit, packed."""
    _room: int = field(repr=False)
    _guard: int = field(repr=False)

    @staticmethod
    def of(geometry: Geometry) -> Limits:
        scarce, capped = scarce_engines(geometry), capped_profiles(geometry)
        totals = (*scarce.values(), *capped.values())
        takes = {p.id: _pack(_takes(p, tuple(scarce), tuple(capped))) for p in geometry.profiles}
        guard = _pack(1 << (FIELD_BITS - 1) for _ in totals)
        return Limits(takes, _pack(totals) | guard, guard)

    def taken_by(self, profile: GiProfileId) -> int:
        """What a living instance of the profile takes, packed. Of one that the GPU does not list nothing is known: it
        may have every scarce engine."""
        return self.takes.get(profile, self._room & ~self._guard)

    def taken(self, live: Iterable[Partition]) -> int:
        """Sum of what the partitions take, packed."""
        return sum(self.taken_by(partition.profile) for partition in live)

    def allow(self, taken: int) -> bool:
        """Whether a packed sum is within every total.

        Each field of `_room` is 2^31 + total, so subtracting cannot borrow from the next field, and the
        guard bit survives exactly where the sum is not above the total.
        """
        return (self._room - taken) & self._guard == self._guard

    def exceeded(self, taken: int) -> int:
        """Mask of whole fields in which the packed sum is above the total."""
        short = self._guard & ~(self._room - taken)
        return (short << 1) - (short >> (FIELD_BITS - 1))


def _takes(profile: GiProfile, scarce: tuple[str, ...], capped: tuple[GiProfileId, ...]) -> tuple[int, ...]:
    engines = tuple(int(getattr(profile.engines, engine)) for engine in scarce)
    return (*engines, *(int(profile.id == one) for one in capped))


def _pack(counts: Iterable[int]) -> int:
    return sum(count << (FIELD_BITS * i) for i, count in enumerate(counts))
