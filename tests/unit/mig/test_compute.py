"""Inside a GPU instance: what it can be cut into, and what is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynamig.errors import Refused
from dynamig.mig import CiPartition, CiProfileId, Cuts, GiProfileId, Placement, cuts, possible_ids
from tests.unit.mig.models import A30, H100, RTX_PRO_6000, recorded_by_key

A100 = recorded_by_key()["a100-40gb"]
ONE, TWICE, TWO, THREE, SEVEN = (GiProfileId(i) for i in (19, 15, 14, 9, 0))


def at(profile: int, start: int, size: int = 1) -> CiPartition:
    return CiPartition(CiProfileId(profile), Placement(start, size))


def test_a_3g_of_an_a100_is_cut_as_the_user_guide_prints_it() -> None:
    """lcip of 3g.20gb: 1c ID 0 x3 with 14 SM, 2c ID 1 x1 with 28, 3g ID 2 x1 with 42."""
    rows = [(p.id, p.compute_slices, p.max_instances, p.multiprocessors) for p in cuts(A100, THREE).profiles]
    assert rows == [(0, 1, 3, 14), (1, 2, 1, 28), (2, 3, 1, 42)]


def test_a_7g_is_cut_into_1_2_3_4_and_7() -> None:
    rows = {p.compute_slices: (p.id, p.max_instances) for p in cuts(A100, SEVEN).profiles}
    assert rows == {1: (0, 7), 2: (1, 3), 3: (2, 2), 4: (3, 1), 7: (4, 1)}


def test_double_memory_on_hopper_is_filled_by_a_wide_slice() -> None:
    """H100: constant 7 has 26 multiprocessors, 0 leaves 10 of them idle; a 2g instance offers both."""
    assert [(p.id, p.multiprocessors) for p in cuts(H100, TWICE).profiles] == [(0, 16), (7, 26)]
    rows = [(p.id, p.max_instances, p.multiprocessors) for p in cuts(H100, TWO).profiles]
    assert rows == [(0, 2, 16), (1, 1, 32), (7, 1, 26)]
    assert [p.id for p in cuts(A100, TWICE).profiles] == [0]


def test_slices_and_multiprocessors_both_bind() -> None:
    three, two = cuts(H100, THREE), cuts(H100, TWO)
    assert three.fits([at(0, 0)], at(1, 0, 2)) is False  # the same compute slice
    assert three.fits([at(0, 2)], at(1, 0, 2)) is True
    assert two.fits([at(7, 0)], at(0, 1)) is False  # 26 + 16 multiprocessors of 32
    assert two.remaining([at(0, 0)], CiProfileId(0)) == 1
    assert two.remaining([at(7, 0)], CiProfileId(0)) == 0


def test_a_profile_of_another_gpu_is_refused() -> None:
    with pytest.raises(Refused, match="UNKNOWN_PROFILE"):
        cuts(A30, ONE)


def test_ids_tell_the_share_of_the_gpu() -> None:
    assert possible_ids(H100, SEVEN) == (0,)
    assert possible_ids(H100, THREE) == (1, 2)
    assert possible_ids(H100, TWO) == possible_ids(H100, TWICE) == (3, 4, 5, 6)
    assert possible_ids(H100, ONE) == tuple(range(7, 15))
    assert possible_ids(A30, GiProfileId(14)) == possible_ids(RTX_PRO_6000, GiProfileId(14)) == (3, 4, 5, 6)


def test_no_more_of_one_profile_than_its_count() -> None:
    """A profile with room and multiprocessors for two, that NVML counts once."""
    two = cuts(A30, GiProfileId(5))
    one = two.profile(CiProfileId(0))
    assert two.remaining([], one.id) == 2
    counted = Cuts(two.multiprocessors, (replace(one, max_instances=1),))
    assert counted.remaining([], one.id) == 1
    assert not counted.fits([at(0, 0)], at(0, 1))
