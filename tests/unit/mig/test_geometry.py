"""Geometry: a placement knows its mask, and nonsense is refused by the profile's name."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from dynamig.errors import Refused
from dynamig.mig import Engines, Geometry, GiProfileId, Placement
from tests.unit.mig.models import A30, H100, ODD, RTX_PRO_6000


def test_mask_has_one_bit_per_memory_slice() -> None:
    assert [Placement(0, 1).mask, Placement(4, 4).mask, Placement(0, 8).mask] == [0b1, 0b1111_0000, 0xFF]


def test_overlap_is_a_common_memory_slice() -> None:
    places = [Placement(start, size) for start, size in product(range(6), range(1, 4))]
    for one, other in product(places, places):
        shared = set(range(one.start, one.end)) & set(range(other.start, other.end))
        assert one.overlaps(other) == bool(shared) == bool(one.mask & other.mask)


def test_memory_slices_reach_to_the_highest_end() -> None:
    assert [g.memory_slices for g in (H100, A30, RTX_PRO_6000, ODD)] == [8, 4, 12, 5]


def test_placement_reads_as_nvidia_smi_prints_it() -> None:
    assert str(Placement(4, 2)) == "{4}:2"
    assert str(H100.profiles[0].partitions()[3]) == "19@{3}:1"


def test_engine_maximum_is_per_engine() -> None:
    assert Engines.maximum([Engines(1, 5), Engines(3, 2, 4)]) == Engines(3, 5, 4)


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Refused) as refusal:
        H100.profile(GiProfileId(77))
    assert refusal.value.code == "UNKNOWN_PROFILE"
    assert "19 (1g.10gb)" in refusal.value.next_step


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": " "}, "no printable name"),
        ({"name": "1g\n"}, "no printable name"),
        ({"placements": ()}, "no placement"),
        ({"placements": (Placement(0, 1), Placement(2, 2))}, "different sizes, {0}:1 and {2}:2"),
        ({"placements": (Placement(0, 1), Placement(0, 1))}, "a placement twice"),
        ({"placements": (Placement(-1, 1),)}, "impossible placement"),
        ({"placements": (Placement(0, 0),)}, "impossible placement"),
        ({"max_instances": 0}, "0 instances at most"),
        ({"compute_slices": 0}, "0 compute slices"),
        ({"memory": 0}, "0 MiB of memory"),
        ({"engines": Engines(decoders=-1)}, "-1 decoders"),
        ({"id": GiProfileId(20)}, "has the ID of profile '1g.10gb+me'"),
    ],
)
def test_nonsense_is_refused_by_name(change: dict[str, object], said: str) -> None:
    broken = replace(H100.profiles[0], **change)  # type: ignore[arg-type]
    with pytest.raises(Refused) as refusal:
        Geometry((H100.profiles[1], broken))
    assert refusal.value.code == "BAD_GEOMETRY"
    assert said in refusal.value.what
    assert repr(broken.name) in refusal.value.what


def test_a_gpu_without_profiles_has_no_geometry() -> None:
    with pytest.raises(Refused, match="lists no profile"):
        Geometry(())
