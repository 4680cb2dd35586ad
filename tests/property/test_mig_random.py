"""The table on made-up GPUs, against the rule of `dynamig.mig.limits` spelt out the slow way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dynamig.mig import Engines, Geometry, GiProfile, Partition, Table, first_fit_order, largest_sum
from dynamig.mig.limits import MEDIA_ENGINES
from tests.unit.mig.models import profile

FEW = settings(max_examples=150, deadline=None, derandomize=True)


@st.composite
def profiles(draw: st.DrawFn, id: int) -> GiProfile:
    slices = draw(st.integers(1, 7))
    size = draw(st.integers(1, slices))
    starts = draw(st.sets(st.integers(0, slices - size), min_size=1, max_size=4))
    engines = draw(st.tuples(*[st.integers(0, 3)] * 6))
    most = draw(st.integers(1, 5))
    return profile(f"p{id}", id, id, size, draw(st.integers(1, 5000)), engines, most, tuple(sorted(starts)), size)


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    count = draw(st.integers(1, 4))
    return Geometry(tuple(draw(profiles(id)) for id in range(count)))


def disjoint(layout: tuple[Partition, ...]) -> bool:
    return not any(one.placement.overlaps(other.placement) for one, other in combinations(layout, 2))


def subsets(geometry: Geometry) -> list[tuple[Partition, ...]]:
    """Every set of disjoint partitions."""
    found: list[tuple[Partition, ...]] = [()]
    for option in geometry.partitions():
        found += [(*layout, option) for layout in found if disjoint((*layout, option))]
    return found


def allowed(geometry: Geometry, layouts: list[tuple[Partition, ...]]) -> set[frozenset[Partition]]:
    """The sets that the three rules leave, by definition: nothing packed, nothing optimised."""
    by_id = {one.id: one for one in geometry.profiles}

    def taken(layout: tuple[Partition, ...], engine: str) -> int:
        return sum(getattr(by_id[p.profile].engines, engine) for p in layout)

    limits = {}
    for engine in MEDIA_ENGINES:
        total = max(getattr(one.engines, engine) for one in geometry.profiles)
        copies = [x for x in layouts if len({p.profile for p in x}) == 1]
        most = [x for x in copies if len(x) <= by_id[x[0].profile].max_instances]
        if all(taken(x, engine) <= total for x in most):
            limits[engine] = total
    return {
        frozenset(layout)
        for layout in layouts
        if all(taken(layout, engine) <= total for engine, total in limits.items())
        and all(n <= by_id[id].max_instances for id, n in Counter(p.profile for p in layout).items())
    }


@FEW
@given(geometries())
def test_valid_sets_by_definition(geometry: Geometry) -> None:
    expected = allowed(geometry, subsets(geometry))
    table = Table(geometry)
    assert {frozenset(x) for x in table.valid()} == expected
    for live in expected:
        for new in table.options:
            assert table.fits(live, new) == (new not in live and live | {new} in expected)
            assert bool(table.blocking(live, new)) != table.fits(live, new)


@FEW
@given(geometries())
def test_largest_sum_by_trying_all(geometry: Geometry) -> None:
    by_id = {one.id: one for one in geometry.profiles}
    amounts: list[Callable[[GiProfile], int]] = [lambda p: p.memory, lambda p: p.engines.decoders]
    for amount in amounts:
        most = max(sum(amount(by_id[p.profile]) for p in layout) for layout in subsets(geometry))
        assert largest_sum(geometry, amount) == most


@FEW
@given(geometries(), st.randoms(use_true_random=False))
def test_order_has_all_partitions_and_does_not_depend_on_the_listing(geometry: Geometry, chance: Random) -> None:
    order = first_fit_order(geometry)
    assert sorted(order) == list(geometry.partitions())
    shuffled = list(geometry.profiles)
    chance.shuffle(shuffled)
    assert first_fit_order(Geometry(tuple(shuffled))) == order


@FEW
@given(st.lists(st.builds(Engines, *[st.integers(0, 9)] * 6), min_size=1))
def test_engine_maximum(many: list[Engines]) -> None:
    top = Engines.maximum(many)
    assert all(getattr(top, e) == max(getattr(one, e) for one in many) for e in MEDIA_ENGINES)
