"""Shards pay for every layout: no legal set of partitions costs more than the GPU has, and none costs nothing."""

from __future__ import annotations

import pytest

from dynamig.errors import Refused
from dynamig.mig import Geometry, Table
from dynamig.protocol.shards import Units, units_of, units_of_geometry
from tests.unit.mig.models import A30, H100, ODD, RTX_PRO_6000


@pytest.mark.parametrize("geometry", [H100, A30, RTX_PRO_6000, ODD], ids=["H100", "A30", "RTX PRO 6000", "odd"])
def test_no_layout_costs_more_than_the_gpu(geometry: Geometry) -> None:
    units = units_of_geometry(geometry)
    seen = 0
    for layout in Table(geometry).maximal():
        costs = [units.cost(range(p.placement.start, p.placement.end)) for p in layout]
        assert all(c >= 1 for c in costs)
        assert sum(costs) <= units.count, layout
        seen += 1
    assert seen > 1


def test_a_7_slice_gpu_has_7_shards() -> None:
    units = units_of_geometry(H100)
    assert units.count == 7
    by_name = {(p.name, at.start): units.cost(range(at.start, at.end)) for p in H100.profiles for at in p.placements}
    assert by_name["1g.10gb", 6] == 1
    assert by_name["1g.20gb", 6] == 1
    assert by_name["3g.40gb", 0] == 4
    assert by_name["3g.40gb", 4] == 3
    assert by_name["7g.80gb", 0] == 7


def test_a_device_that_does_not_say_what_it_takes_costs_the_whole_gpu() -> None:
    assert units_of_geometry(H100).cost(()) == 7


def test_memory_slices_before_the_first_unit_belong_to_it() -> None:
    units = Units((2, 4))
    assert units.cost((0, 1)) == units.cost((0, 2)) == 1
    assert units.cost((1, 4)) == 2


def test_a_gpu_without_partitions_has_no_shards() -> None:
    with pytest.raises(Refused, match="no shards"):
        units_of([(), ()])
