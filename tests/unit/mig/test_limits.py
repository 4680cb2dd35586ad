"""Limits: which engine counts bind, and which must not."""

from __future__ import annotations

from dataclasses import replace

from dynamig.mig import (
    Geometry,
    GiProfileId,
    Table,
    capped_profiles,
    engine_totals,
    largest_sum,
    scarce_engines,
)
from tests.unit.mig.models import A30, H100, ODD, RTX_PRO_6000


def test_totals_are_what_the_full_size_profile_lists() -> None:
    assert engine_totals(H100) == H100.profile(GiProfileId(0)).engines
    assert engine_totals(RTX_PRO_6000) == RTX_PRO_6000.profile(GiProfileId(0)).engines


def test_media_engines_that_can_run_out_are_scarce_unless_instance_counts_refute_it() -> None:
    assert scarce_engines(H100) == {"ofa_engines": 1}
    assert scarce_engines(A30) == {"jpeg_engines": 1, "ofa_engines": 1}
    assert scarce_engines(RTX_PRO_6000) == {
        "decoders": 4,
        "encoders": 4,
        "jpeg_engines": 4,
        "ofa_engines": 1,
    }
    # Two of profile 7 take 4 decoders and no profile lists more than 3: no limit. The OFA is one.
    assert scarce_engines(ODD) == {"ofa_engines": 2}


def test_only_an_unexplained_instance_count_is_a_cap() -> None:
    assert capped_profiles(H100) == capped_profiles(A30) == capped_profiles(RTX_PRO_6000) == {}
    assert capped_profiles(ODD) == {GiProfileId(90): 2}


def test_an_instance_count_above_the_placements_changes_nothing() -> None:
    """NVML is on record with wrong counts on A30."""
    wrong = Geometry(tuple(replace(one, max_instances=7) if one.id == 5 else one for one in A30.profiles))
    assert scarce_engines(wrong) == scarce_engines(A30)
    assert set(Table(wrong).valid()) == set(Table(A30).valid())


def test_largest_sum_is_over_disjoint_placements() -> None:
    assert largest_sum(H100, lambda p: p.memory) == 81152
    assert largest_sum(H100, lambda p: p.engines.copy_engines) == 8
    assert largest_sum(ODD, lambda p: p.memory) == 7000  # 2x@0, 2x@3 and one small: more than 5x has
    assert largest_sum(ODD, lambda p: p.compute_slices) == 9
