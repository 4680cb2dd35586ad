"""Table: what fits, what is in the way, what is lost, and all layouts there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from dynamig.errors import Refused
from dynamig.mig import Geometry, GiProfileId, Partition, Placement, Table
from tests.unit.mig.models import A30, BY_HAND, H100, ODD, RTX_PRO_6000, only, recorded

ONE, ME, TWICE, TWO, THREE, FOUR, SEVEN = (GiProfileId(i) for i in (19, 20, 15, 14, 9, 5, 0))
SIZES = {ONE: 1, ME: 1, TWICE: 2, TWO: 2, THREE: 4, FOUR: 4, SEVEN: 8}


def at(profile: GiProfileId, start: int) -> Partition:
    """A partition of the H100."""
    return Partition(profile, Placement(start, SIZES[profile]))


@pytest.fixture(scope="module")
def h100() -> Table:
    return Table(H100)


BASE = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")


@pytest.mark.parametrize(
    ("geometry", "maximal", "multisets", "valid"),
    [
        (only(H100, *BASE), 19, 14, 298),
        (only(H100, *BASE, "1g.20gb"), 78, 38, 723),
        (only(H100, *BASE, "1g.10gb+me"), 67, 24, 1089),
        (H100, 239, 64, 2319),
        (only(A30, "1g.6gb", "2g.12gb", "4g.24gb"), 5, 4, 26),
        (A30, 17, 8, 76),
        (only(RTX_PRO_6000, "1g.24gb", "2g.48gb", "4g.96gb"), 5, 4, 26),
    ],
    ids=["7 base", "7 double", "7 +me", "7 all", "A30 base", "A30 all", "RTX PRO base"],
)
def test_counts_of_layouts_on_record(geometry: Geometry, maximal: int, multisets: int, valid: int) -> None:
    """The table "Counts of maximal configurations" of our MIG reference."""
    table = Table(geometry)
    layouts = list(table.maximal())
    assert len(set(layouts)) == len(layouts) == maximal
    assert len({tuple(sorted(p.profile for p in layout)) for layout in layouts}) == multisets
    assert sum(1 for _ in table.valid()) == valid


def test_before_r510_a_7_slice_gpu_had_one_layout_less() -> None:
    """4g and 3g could not live together (MIG user guide, Concepts): 18 maximal placement sets, 13 multisets."""
    layouts = [x for x in Table(only(H100, *BASE)).maximal() if not {FOUR, THREE} <= {p.profile for p in x}]
    assert len(layouts) == 18
    assert len({tuple(sorted(p.profile for p in layout)) for layout in layouts}) == 13


@pytest.mark.parametrize("model", recorded())
def test_every_recorded_model_has_the_counts_of_its_family(model: str) -> None:
    table = Table(recorded()[model])
    layouts = list(table.maximal())
    multisets = {tuple(sorted(p.profile for p in layout)) for layout in layouts}
    expected = (17, 8, 76) if model.startswith("A30") else (239, 64, 2319)
    assert (len(layouts), len(multisets), sum(1 for _ in table.valid())) == expected


def test_layouts_of_some_profiles_are_those_of_a_gpu_that_lists_no_others(h100: Table) -> None:
    base = [one.id for one in H100.profiles if one.name in BASE]
    fewer = Table(only(H100, *BASE))
    assert {frozenset(x) for x in h100.maximal(base)} == {frozenset(x) for x in fewer.maximal()}
    assert {frozenset(x) for x in h100.valid(base)} == {frozenset(x) for x in fewer.valid()}


def test_layouts_are_lazy(h100: Table) -> None:
    assert next(h100.valid()) == ()
    assert next(h100.maximal())[0] == h100.options[0]


@pytest.mark.parametrize(
    ("live", "new", "fits"),
    [
        ([at(ONE, 0)], at(FOUR, 0), False),
        ([at(ONE, 3)], at(FOUR, 0), False),
        ([at(ONE, 4)], at(FOUR, 0), True),
        ([at(ONE, 6)], at(FOUR, 0), True),
        ([at(THREE, 4)], at(FOUR, 0), True),  # C-03, since R510
        ([at(FOUR, 0)], at(THREE, 4), True),
        ([at(THREE, 0)], at(ONE, 3), False),  # three compute slices, four memory slices
        ([at(ME, 0)], at(ME, 6), False),  # disjoint, but one OFA
        ([at(ME, 0)], at(ONE, 6), True),
        ([at(ONE, i) for i in range(6)], at(TWICE, 6), True),
        ([at(ONE, 0)], at(SEVEN, 0), False),
    ],
)
def test_asymmetries_of_the_seven_slice_family(h100: Table, live: list[Partition], new: Partition, fits: bool) -> None:
    assert h100.fits(live, new) is fits
    assert (h100.blocking(live, new) == ()) is fits


def test_there_is_no_2g_on_the_last_two_slices(h100: Table) -> None:
    with pytest.raises(Refused) as refusal:
        h100.fits([], at(TWO, 6))
    assert refusal.value.code == "UNKNOWN_PARTITION"
    assert "{0}:2, {2}:2, {4}:2" in refusal.value.next_step


def test_what_blocks_4g(h100: Table) -> None:
    """From the placements on record: everything that starts on slices 0 to 3."""
    starts = {(p.profile, p.placement.start) for p in h100.conflicts(at(FOUR, 0))}
    expected = {(ONE, i) for i in range(4)} | {(ME, i) for i in range(4)}
    assert starts == expected | {(TWICE, 0), (TWICE, 2), (TWO, 0), (TWO, 2), (THREE, 0), (SEVEN, 0)}


def test_the_one_ofa_is_a_conflict_without_overlap(h100: Table) -> None:
    assert {at(ME, i) for i in range(1, 7)} < set(h100.conflicts(at(ME, 0)))


def test_blocking_names_who_is_in_the_way(h100: Table) -> None:
    live = [at(ONE, 0), at(ME, 2), at(TWO, 4), at(ONE, 6)]
    assert h100.blocking(live, at(FOUR, 0)) == (at(ONE, 0), at(ME, 2))
    assert h100.blocking(live, at(ME, 3)) == (at(ME, 2),)
    assert h100.blocking(live, at(ONE, 3)) == ()


def test_who_only_holds_engines_is_in_the_way_only_if_they_are_short() -> None:
    """Two plus one decoders of four: the 1g on the right is not what keeps the other 2g from the left half."""
    table = Table(RTX_PRO_6000)
    plain, quarter = Partition(GiProfileId(5), Placement(0, 6)), Partition(GiProfileId(14), Placement(6, 3))
    assert table.blocking([plain, quarter], Partition(GiProfileId(35), Placement(0, 6))) == (plain,)
    all_media = Partition(GiProfileId(64), Placement(0, 6))
    assert table.blocking([plain, quarter], all_media) == (plain, quarter)


def test_live_instances_may_be_unlisted_or_overlap(h100: Table) -> None:
    """A quarantined instance takes its slices, whatever NVML lists today."""
    stray = Partition(TWO, Placement(5, 2))
    assert not h100.fits([stray, at(TWO, 4)], at(ONE, 6))
    assert h100.blocking([stray, at(TWO, 4)], at(ONE, 6)) == (stray,)
    assert h100.blocking([stray, at(TWO, 4)], at(ONE, 5)) == (stray, at(TWO, 4))
    assert h100.fits([stray, at(TWO, 4)], at(FOUR, 0))


def test_a_live_instance_of_an_unlisted_profile_may_have_every_scarce_engine(h100: Table) -> None:
    stranger = Partition(GiProfileId(44), Placement(2, 1))
    for taken in (at(TWO, 2), at(ME, 0), at(SEVEN, 0)):  # +me and 7g want the one OFA
        assert h100.blocking([at(ONE, 6), stranger], taken)[-1] == stranger
        assert not h100.fits([stranger], taken)
    for free in (at(ONE, 1), at(TWO, 0), at(THREE, 4)):
        assert h100.fits([stranger], free)
    assert (h100.remaining([stranger], ONE), h100.remaining([stranger], ME)) == (6, 0)


@pytest.mark.parametrize(
    "ask",
    [
        lambda t, stranger: t.fits([], stranger),
        lambda t, stranger: t.index(stranger),
        lambda t, stranger: t.remaining([], stranger.profile),
    ],
)
def test_an_unknown_profile_is_refused(h100: Table, ask: Callable[[Table, Partition], object]) -> None:
    with pytest.raises(Refused, match="no profile with ID 44"):
        ask(h100, Partition(GiProfileId(44), Placement(0, 1)))


@pytest.mark.parametrize(
    ("live", "profile", "left"),
    [
        ([], ONE, 7),
        ([], ME, 1),
        ([], TWICE, 4),
        ([], TWO, 3),
        ([], THREE, 2),
        ([at(ONE, 6)], ONE, 6),
        ([at(ONE, 6)], TWICE, 3),
        ([at(TWO, 4)], THREE, 1),
        ([at(ME, 0)], ME, 0),
        ([at(SEVEN, 0)], ONE, 0),
        ([at(ONE, 1), at(ONE, 5)], TWO, 1),
    ],
)
def test_remaining_capacity(h100: Table, live: list[Partition], profile: GiProfileId, left: int) -> None:
    assert h100.remaining(live, profile) == left


def test_remaining_respects_a_cap_that_no_engine_explains() -> None:
    table = Table(ODD)
    capped = GiProfileId(90)
    assert table.remaining([], capped) == 2
    assert table.remaining([Partition(capped, Placement(4, 1))], capped) == 1


def test_lost_is_what_becomes_impossible(h100: Table) -> None:
    right, left = h100.lost([], at(ONE, 6)), h100.lost([], at(ONE, 0))
    assert set(right) == {at(ME, 6), at(TWICE, 6), at(THREE, 4), at(SEVEN, 0)}
    assert at(FOUR, 0) in left
    assert at(FOUR, 0) not in right
    with pytest.raises(Refused) as refusal:
        h100.lost([at(THREE, 0)], at(ONE, 1))
    assert (refusal.value.code, refusal.value.what) == ("NO_ROOM", "19@{1}:1 does not fit beside 9@{0}:4")


@pytest.mark.parametrize("name", BY_HAND)
def test_max_instances_of_each_profile_can_live_together(name: str) -> None:
    table = Table(BY_HAND[name])
    most = Counter({p.id: 0 for p in table.geometry.profiles})
    for layout in table.valid():
        for profile, count in Counter(p.profile for p in layout).items():
            most[profile] = max(most[profile], count)
    assert most == {p.id: p.max_instances for p in table.geometry.profiles}
