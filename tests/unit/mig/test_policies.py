"""Policies: one answer each, the same every time."""

from __future__ import annotations

import pytest

from dynamig.errors import Refused
from dynamig.mig import GiProfileId, Partition, Placement, Table, drivers_choice, fewest_lost, first_fit
from tests.unit.mig.models import H100

ONE, TWO, THREE = GiProfileId(19), GiProfileId(14), GiProfileId(9)
TABLE = Table(H100)


def test_first_fit_takes_the_first_published() -> None:
    first = first_fit(TABLE, [], ONE)
    assert first == Partition(ONE, Placement(6, 1))
    assert first_fit(TABLE, [first], ONE) == Partition(ONE, Placement(4, 1))


def test_fewest_lost_completes_a_broken_half() -> None:
    """A 1g on slice 1 has already cost 4g and 3g on the left: put the next one beside it."""
    broken = Partition(ONE, Placement(1, 1))
    assert fewest_lost(TABLE, [broken], ONE) == Partition(ONE, Placement(0, 1))
    assert first_fit(TABLE, [broken], ONE) == Partition(ONE, Placement(6, 1))


def test_demand_weighs_what_is_lost() -> None:
    """Who only ever wants 1g and 2g does not mind losing 3g and 7g, but does mind losing a 2g."""
    assert fewest_lost(TABLE, [], ONE, {TWO: 1.0}) == Partition(ONE, Placement(6, 1))
    assert fewest_lost(TABLE, [], TWO, {THREE: 1.0}) == Partition(TWO, Placement(4, 2))


def test_nothing_fits() -> None:
    full = [Partition(GiProfileId(0), Placement(0, 8))]
    assert fewest_lost(TABLE, full, ONE) is None
    assert first_fit(TABLE, full, ONE) is None


def test_unknown_profile() -> None:
    for policy in (first_fit, fewest_lost):
        with pytest.raises(Refused):
            policy(TABLE, [], GiProfileId(44))


def placed(*profiles: GiProfileId) -> list[int | None]:
    """Where the driver puts instances of these profiles on an empty H100, one after the other."""
    live: list[Partition] = []
    starts: list[int | None] = []
    for profile in profiles:
        chosen = drivers_choice(TABLE, live, profile)
        starts.append(chosen.placement.start if chosen else None)
        live += [chosen] if chosen else []
    return starts


def test_the_driver_places_as_public_outputs_show() -> None:
    assert placed(*[ONE] * 7) == [6, 4, 5, 0, 1, 2, 3]
    assert placed(THREE, THREE) == [4, 0]
    assert placed(ONE, ONE, TWO, THREE) == [6, 4, 0, None]  # the MIG user guide's failing order
    assert None not in placed(THREE, ONE, TWO, ONE)


def test_the_driver_makes_no_second_owner_of_an_engine() -> None:
    assert placed(GiProfileId(20), GiProfileId(20)) == [6, None]
