"""The table against brute force, on every GPU by hand and every complete model on record.

Brute force here is a literal reading of what NVIDIA documents: placements share no memory slice, and media
extensions exist once (one OFA; on RTX PRO, an instance with all media engines leaves only those without any).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import pytest

from dynamig.mig import Geometry, GiProfile, Partition, Table, largest_sum
from tests.unit.mig.models import A30, H100, RECORDED, RTX_PRO_6000, recorded

DOCUMENTED: dict[str, Geometry] = {"H100": H100, "A30": A30, "RTX PRO 6000": RTX_PRO_6000}
if RECORDED.exists():
    DOCUMENTED |= recorded()


def documented(layout: tuple[tuple[GiProfile, Partition], ...]) -> bool:
    """Whether NVIDIA's texts allow the set, read literally; knows nothing of `dynamig.mig.limits`."""
    slices = Counter(i for _, p in layout for i in range(p.placement.start, p.placement.end))
    if any(count > 1 for count in slices.values()):
        return False
    if sum(profile.engines.ofa_engines > 0 for profile, _ in layout) > 1:
        return False
    return all(
        other.name.endswith("-me")
        for profile, other in combinations([p for p, _ in layout], 2)
        if profile.name.endswith("+me.all")
    ) and all(
        other.name.endswith("-me")
        for other, profile in combinations([p for p, _ in layout], 2)
        if profile.name.endswith("+me.all")
    )


def all_layouts(geometry: Geometry) -> Iterator[tuple[Partition, ...]]:
    """Every documented set, each once: grow by options in a fixed order, cut as soon as one is not allowed."""
    options = [(profile, p) for profile in geometry.profiles for p in profile.partitions()]

    def grow(layout: tuple[tuple[GiProfile, Partition], ...], start: int) -> Iterator[tuple[Partition, ...]]:
        yield tuple(p for _, p in layout)
        for i in range(start, len(options)):
            if documented(larger := (*layout, options[i])):
                yield from grow(larger, i + 1)

    return grow((), 0)


def test_the_recorded_models_are_there() -> None:
    if not RECORDED.exists():
        pytest.skip(f"{RECORDED.name} is not in dynamig.testing: only the hand-written GPUs were checked")
    assert len(recorded()) == 9


@pytest.mark.parametrize("model", DOCUMENTED)
def test_valid_sets_are_exactly_the_documented_ones(model: str) -> None:
    """The evidence for the rule in `dynamig.mig.limits`."""
    geometry = DOCUMENTED[model]
    expected = {frozenset(layout) for layout in all_layouts(geometry)}
    table = Table(geometry)
    found = [frozenset(layout) for layout in table.valid()]
    assert len(found) == len(set(found))
    assert set(found) == expected
    maximal = {x for x in expected if not any(x < y for y in expected if len(y) == len(x) + 1)}
    assert {frozenset(layout) for layout in table.maximal()} == maximal


@pytest.mark.parametrize("model", DOCUMENTED)
def test_every_question_on_every_reachable_set(model: str) -> None:
    table = Table(DOCUMENTED[model])
    layouts = {frozenset(layout) for layout in all_layouts(table.geometry)}
    for live in layouts:
        possible = {p for p in table.options if p not in live and live | {p} in layouts}
        assert set(table.possible(live)) == possible
        for new in table.options:
            assert table.fits(live, new) == (new in possible)
            in_the_way = set(table.blocking(live, new))
            assert bool(in_the_way) == (new not in possible)
            assert new in live or frozenset(live - in_the_way | {new}) in layouts


@pytest.mark.parametrize("model", ["H100", "A30", "RTX PRO 6000"])
def test_lost_and_remaining_on_every_reachable_set(model: str) -> None:
    table = Table(DOCUMENTED[model])
    layouts = {frozenset(layout) for layout in all_layouts(table.geometry)}
    for live in layouts:
        possible = table.possible(live)
        for new in possible:
            after = set(table.possible(live | {new}))
            assert table.lost(live, new) == tuple(p for p in possible if p not in after and p != new)
    same = {p.id: [x for x in layouts if {q.profile for q in x} <= {p.id}] for p in table.geometry.profiles}
    for live in sorted(layouts, key=sorted)[::7]:
        for profile, alone in same.items():
            most = max(len(x) for x in alone if not x & live and x | live in layouts)
            assert table.remaining(live, profile) == most


@pytest.mark.parametrize("model", DOCUMENTED)
def test_conflicts_are_the_pairs_that_never_live_together(model: str) -> None:
    table = Table(DOCUMENTED[model])
    pairs = {frozenset(x) for x in all_layouts(table.geometry) if len(x) == 2}
    for one in table.options:
        expected = tuple(p for p in table.options if p != one and frozenset({one, p}) not in pairs)
        assert table.conflicts(one) == expected


@pytest.mark.parametrize("model", DOCUMENTED)
def test_profile_amounts_that_are_no_limit_stay_within_the_largest_profile(model: str) -> None:
    """Memory, multiprocessors and copy engines: no disjoint set needs more than the full-size profile has."""
    geometry = DOCUMENTED[model]
    for amount in (
        lambda p: p.memory,
        lambda p: p.engines.multiprocessors,
        lambda p: p.engines.copy_engines,
    ):
        assert largest_sum(geometry, amount) == max(map(amount, geometry.profiles))
