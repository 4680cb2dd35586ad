"""Publishing order: small first, and inside a profile what keeps large placements alive."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dynamig.mig import Geometry, Partition, first_fit_order
from tests.unit.mig.models import A30, BY_HAND, H100, RTX_PRO_6000


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


def test_only_offered_profiles_count_as_lost() -> None:
    """With 1g and 4g alone, 7 and 3g are nothing to protect, but 4g still is."""
    ones_and_four = [p.id for p in H100.profiles if p.name in ("1g.10gb", "4g.40gb")]
    assert starts(H100, first_fit_order(H100, ones_and_four)) == {
        "1g.10gb": [4, 5, 6, 0, 1, 2, 3],
        "4g.40gb": [0],
    }
