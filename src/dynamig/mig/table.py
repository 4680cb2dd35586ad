"""One table per GPU model: every question about placements, answered from integers computed once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from dynamig.errors import Refused
from dynamig.mig.geometry import Geometry, Partition
from dynamig.mig.ids import GiProfileId
from dynamig.mig.limits import Limits
from dynamig.mig.options import Occupied, Options, bit_numbers
from dynamig.mig.order import first_fit_order


class Table:
    """What can be created on a GPU of this geometry, beside what already lives there.

    `live` is always the set of living (or promised) partitions. It may hold placements and profiles that NVML
    does not list, and even overlapping ones, as quarantined instances might; they take their memory slices all
    the same.

    A valid set stays valid without any of its members, so every valid set can be reached in any order of
    creation, and no question here depends on history.

    Raises: every method, Refused UNKNOWN_PROFILE or UNKNOWN_PARTITION for a question about what this GPU does not
    list.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.limits = Limits.of(geometry)
        self._options = Options(geometry, self.limits, first_fit_order(geometry))

    @property
    def options(self) -> tuple[Partition, ...]:
        """Every partition of the GPU, in publishing order."""
        return self._options.partitions

    def index(self, partition: Partition) -> int:
        """Position of the partition in `options`."""
        try:
            return self._options.index[partition]
        except KeyError:
            profile = self.geometry.profile(partition.profile)
            places = ", ".join(str(placement) for placement in profile.placements)
            what = f"{profile.name} cannot be placed at {partition.placement}"
            raise Refused("UNKNOWN_PARTITION", what, f"its placements are {places}") from None

    def fits(self, live: Iterable[Partition], new: Partition) -> bool:
        """Whether NVML would create `new` beside `live`."""
        self.index(new)
        state = self._options.occupied(live)
        return self._options.allows(state, new)

    def possible(self, live: Iterable[Partition]) -> tuple[Partition, ...]:
        """Everything that could be created beside `live`, in publishing order."""
        return self._options.pick(self._options.possible(self._options.occupied(live)))

    def conflicts(self, partition: Partition) -> tuple[Partition, ...]:
        """Every other partition that can never live beside this one, in publishing order."""
        at = self.index(partition)
        together = self._options.possible(self._options.occupied([partition]))
        return self._options.pick(self._options.all & ~together & ~(1 << at))

    def blocking(self, live: Iterable[Partition], new: Partition) -> tuple[Partition, ...]:
        """The members of `live` that are in the way of `new`, in their order; empty exactly if `new` fits.

        These are the overlapping ones, and if an engine would be short even without those, all that hold some
        of it.
        """
        self.index(new)
        live = tuple(live)
        beside = [one for one in live if not one.placement.overlaps(new.placement)]
        short = self.limits.exceeded(self._options.after(self._options.occupied(beside), new).taken)
        return tuple(
            one for one in live if one.placement.overlaps(new.placement) or self.limits.taken_by(one.profile) & short
        )

    def lost(self, live: Iterable[Partition], new: Partition) -> tuple[Partition, ...]:
        """What is possible beside `live` and would not be once `new` is created too; `new` itself not
        counted.

        Raises: Refused NO_ROOM if `new` does not fit.
        """
        live = tuple(live)
        if in_the_way := self.blocking(live, new):
            named = ", ".join(str(one) for one in in_the_way)
            raise Refused("NO_ROOM", f"{new} does not fit beside {named}")
        return self._options.pick(self._options.closed_by(self._options.occupied(live), new))

    def remaining(self, live: Iterable[Partition], profile: GiProfileId) -> int:
        """How many more instances of the profile could be created together beside `live`.

        As nvmlDeviceGetGpuInstanceRemainingCapacity counts; taking the earliest placement first is optimal
        since all placements of a profile have one size.
        """
        wanted = self.geometry.profile(profile)
        state, count = self._options.occupied(live), 0
        for partition in sorted(wanted.partitions()):
            if self._options.allows(state, partition):
                state, count = self._options.after(state, partition), count + 1
        return count

    def valid(self, profiles: Collection[GiProfileId] | None = None) -> Iterator[tuple[Partition, ...]]:
        """Every set of partitions that can live together, the empty one first; each once, in publishing
        order.

        `profiles`: only these; None: all. Cost: lazy, one step per set; an H100 has 2,319 of them.
        """
        offered = self._offered(profiles)
        todo: list[tuple[tuple[Partition, ...], Occupied, int]] = [((), Occupied(), offered)]
        while todo:
            layout, state, further = todo.pop()
            yield layout
            for i in reversed(tuple(bit_numbers(further))):
                after = self._options.after(state, self.options[i])
                above = offered & -(2 << i)
                todo.append(((*layout, self.options[i]), after, self._options.possible(after) & above))

    def maximal(self, profiles: Collection[GiProfileId] | None = None) -> Iterator[tuple[Partition, ...]]:
        """The valid sets to which no partition can be added; an H100 has 239, 19 with its five base profiles.

        Cost: lazy, but walks the valid sets between two answers.
        """
        offered = self._offered(profiles)
        for layout in self.valid(profiles):
            if not self._options.possible(self._options.occupied(layout)) & offered:
                yield layout

    def _offered(self, profiles: Collection[GiProfileId] | None) -> int:
        return self._options.select(p for p in self.options if profiles is None or p.profile in profiles)
