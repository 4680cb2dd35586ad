"""Publishing order: small first, and inside a profile what keeps large placements alive."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dynamig.mig import Geometry, Partition, first_fit_order
from tests.unit.mig.models import A30, BY_HAND, H100, RTX_PRO_6000, profile


def starts(geometry: Geometry, order: Iterable[Partition]) -> dict[str, list[int]]:
    """Starts of each profile in order; the keys are in order too."""
    found: dict[str, list[int]] = {}
    for partition in order:
        found.setdefault(geometry.profile(partition.profile).name, []).append(partition.placement.start)
    return found


def test_order_of_the_h100() -> None:
    assert list(starts(H100, first_fit_order(H100)).items()) == [
        ("1g.10gb", [6, 4, 5, 0, 1, 2, 3]),
        ("1g.10gb+me", [6, 4, 5, 0, 1, 2, 3]),
        ("1g.20gb", [6, 4, 0, 2]),
        ("2g.20gb", [4, 0, 2]),
        ("3g.40gb", [4, 0]),
        ("4g.40gb", [0]),
        ("7g.80gb", [0]),
    ]


def test_symmetric_gpus_are_filled_from_the_left() -> None:
    assert starts(A30, first_fit_order(A30))["1g.6gb"] == [0, 1, 2, 3]
    assert starts(RTX_PRO_6000, first_fit_order(RTX_PRO_6000))["1g.24gb"] == [0, 3, 6, 9]


def test_media_engines_go_last_among_equal_sizes() -> None:
    names = list(starts(RTX_PRO_6000, first_fit_order(RTX_PRO_6000)))
    assert names[:5] == ["1g.24gb-me", "1g.24gb", "1g.24gb+gfx", "1g.24gb+me", "1g.24gb+me.all"]


@pytest.mark.parametrize("name", BY_HAND)
def test_every_partition_once_and_sizes_ascend(name: str) -> None:
    geometry = BY_HAND[name]
    order = first_fit_order(geometry)
    assert sorted(order) == list(geometry.partitions())
    sizes = [partition.placement.size for partition in order]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("name", BY_HAND)
def test_the_order_in_which_nvml_lists_profiles_does_not_matter(name: str) -> None:
    geometry = BY_HAND[name]
    assert first_fit_order(Geometry(geometry.profiles[::-1])) == first_fit_order(geometry)


@pytest.mark.parametrize(
    ("offered", "order"),
    [
        (("1g.10gb", "4g.40gb"), [4, 5, 6, 0, 1, 2, 3]),  # 4g on the left is all there is to protect
        (("1g.10gb", "3g.40gb"), [0, 1, 2, 3, 4, 5, 6]),  # the left half is full with four
        (("1g.10gb", "2g.20gb", "3g.40gb"), [6, 4, 5, 0, 1, 2, 3]),  # after 6, slice 4 costs only a 2g
    ],
)
def test_only_offered_profiles_count_as_lost(offered: tuple[str, ...], order: list[int]) -> None:
    ids = [p.id for p in H100.profiles if p.name in offered]
    found = starts(H100, first_fit_order(H100, ids))
    assert found["1g.10gb"] == order
    assert tuple(found) == offered


def test_among_equal_memory_slices_fewer_compute_slices_come_first() -> None:
    big, small = (
        profile(name, id, 0, compute, 10, (1, 0, 0, 0, 0, 0), 1, (0,), 2)
        for name, id, compute in (("big", 1, 2), ("small", 2, 1))
    )
    assert [p.profile for p in first_fit_order(Geometry((big, small)))] == [2, 1]
