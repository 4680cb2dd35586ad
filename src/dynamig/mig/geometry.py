"""What a GPU can be cut into: placements, profiles and the geometry that holds them.

A MIG GPU is a row of memory slices. A GPU instance takes the slices `[start, start + size)` of one
placement that its profile lists, plus its share of the engines. Everything here is read from NVML (profile
infos and possible placements); nothing is derived from a profile's name or from a table of models, because
names move with the memory that the driver reports and one name stands for different profiles on different
boards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from dynamig.errors import Refused
from dynamig.mig.ids import GiProfileId, MiB, NvmlProfile


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """Memory slices `[start, start + size)` of one GPU, as in nvmlGpuInstancePlacement_t."""

    start: int
    size: int

    @property
    def mask(self) -> int:
        """Bit i is set if memory slice i belongs to the placement."""
        return ((1 << self.size) - 1) << self.start

    @property
    def end(self) -> int:
        """The first memory slice after the placement."""
        return self.start + self.size

    def overlaps(self, other: Placement) -> bool:
        return self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        """`{4}:2`, two memory slices from slice 4 on, in the notation of `nvidia-smi mig -lgipp`."""
        return f"{{{self.start}}}:{self.size}"


@dataclass(frozen=True, slots=True)
class Engines:
    """Engine counts of a profile, or of a whole GPU, as in nvmlGpuInstanceProfileInfo_t."""

    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0

    @staticmethod
    def maximum(many: Iterable[Engines]) -> Engines:
        """The largest count of each engine; all zero for nothing."""
        counts = [tuple(getattr(one, f.name) for f in fields(one)) for one in many]
        return Engines(*(max(column) for column in zip(*counts, strict=True)))


@dataclass(frozen=True, slots=True)
class GiProfile:
    """One kind of GPU instance that a GPU can make.

    `compute_slices` is NVML's sliceCount and `memory` its memorySizeMB. `max_instances` is its instanceCount:
    how many an empty GPU can hold.
    """

    id: GiProfileId
    nvml: NvmlProfile
    name: str
    compute_slices: int
    memory: MiB
    engines: Engines
    max_instances: int
    placements: tuple[Placement, ...]

    @property
    def size(self) -> int:
        """Memory slices of one instance; the same at each of its placements."""
        return self.placements[0].size

    def partitions(self) -> tuple[Partition, ...]:
        return tuple(Partition(self.id, placement) for placement in self.placements)


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One GPU instance that could exist: a profile at one of its placements."""

    profile: GiProfileId
    placement: Placement

    def __str__(self) -> str:
        """`19@{4}:1`: profile ID 19 on memory slice 4."""
        return f"{self.profile}@{self.placement}"


@dataclass(frozen=True, slots=True)
class Geometry:
    """Every profile of one GPU, in any order.

    Two profiles may have the same name: no rule of NVML forbids it and nothing here is keyed by name.

    Raises: Refused BAD_GEOMETRY, naming the profile, for what no GPU can mean. Whoever read the profiles then
    offers the GPU whole.
    """

    profiles: tuple[GiProfile, ...]

    def __post_init__(self) -> None:
        if not self.profiles:
            raise _bad("the GPU", "lists no profile", "offer a GPU without profiles whole, with no geometry")
        seen: dict[GiProfileId, GiProfile] = {}
        for profile in self.profiles:
            if (first := seen.setdefault(profile.id, profile)) is not profile:
                raise _bad(_called(profile), f"has the ID of profile {first.name!r}")
            _check(profile)

    @property
    def memory_slices(self) -> int:
        """Memory slices of the GPU: the highest end of any placement.

        Some slices may be out of reach of small profiles: an H100 has 8, and no 1g.10gb can take slice 7.
        """
        return max(placement.end for profile in self.profiles for placement in profile.placements)

    def profile(self, wanted: GiProfileId) -> GiProfile:
        """Raises: Refused UNKNOWN_PROFILE if the GPU does not list it."""
        for profile in self.profiles:
            if profile.id == wanted:
                return profile
        known = ", ".join(f"{profile.id} ({profile.name})" for profile in self.profiles)
        raise Refused("UNKNOWN_PROFILE", f"this GPU has no profile with ID {wanted}", f"it has {known}")

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition the GPU can make, by profile ID and start; for the publishing order see `Table`."""
        return tuple(sorted(p for profile in self.profiles for p in profile.partitions()))


def _check(profile: GiProfile) -> None:
    """Raises: Refused for the first thing about the profile that no GPU can mean."""
    called = _called(profile)
    if not profile.name.strip() or not profile.name.isprintable():
        raise _bad(called, "has no printable name")
    for label, count in (
        ("compute slices", profile.compute_slices),
        ("MiB of memory", profile.memory),
        ("instances at most", profile.max_instances),
    ):
        if count < 1:
            raise _bad(called, f"has {count} {label}")
    for engine in fields(profile.engines):
        if (count := getattr(profile.engines, engine.name)) < 0:
            raise _bad(called, f"has {count} {engine.name}")
    _check_placements(called, profile.placements)


def _check_placements(called: str, placements: tuple[Placement, ...]) -> None:
    if not placements:
        raise _bad(called, "has no placement")
    for placement in placements:
        if placement.start < 0 or placement.size < 1:
            raise _bad(called, f"has the impossible placement {placement}")
        if placement.size != placements[0].size:
            raise _bad(called, f"has placements of different sizes, {placements[0]} and {placement}")
    if len(set(placements)) != len(placements):
        raise _bad(called, "lists a placement twice")


def _called(profile: GiProfile) -> str:
    return f"profile {profile.name!r} (ID {profile.id})"


def _bad(what: str, why: str, next_step: str = "compare with `nvidia-smi mig -lgip` and `-lgipp`") -> Refused:
    return Refused("BAD_GEOMETRY", f"{what} {why}", next_step)
