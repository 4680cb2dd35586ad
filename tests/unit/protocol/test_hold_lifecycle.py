"""How far a hold is, read off what is seen; and that the table lets every hold come to an end."""

from __future__ import annotations

from itertools import product

import pytest

from dynamig.protocol.hold_lifecycle import NEXT, HoldFacts, HoldState, hold_state
from dynamig.protocol.slurm_jobs import JobState

ALL = [
    HoldFacts(over, held, job, devices, verified, in_use)
    for over, held, job, devices, verified, in_use in product(
        (False, True), (False, True), (None, *JobState), (False, True), (False, True), (False, True)
    )
]


def test_every_hold_can_end() -> None:
    ends = {HoldState.RELEASED}
    while more := {s for s, following in NEXT.items() if following & ends} - ends:
        ends |= more
    assert ends == set(HoldState)


def test_every_state_can_be_seen_and_every_sight_has_one() -> None:
    assert {hold_state(seen) for seen in ALL} == set(HoldState) == NEXT.keys()


@pytest.mark.parametrize("seen", [s for s in ALL if s.devices and not s.over and s.job is not JobState.RUNNING])
def test_devices_without_a_running_job_are_bare_whatever_else_is_seen(seen: HoldFacts) -> None:
    assert hold_state(seen) is HoldState.BARE


@pytest.mark.parametrize("seen", [s for s in ALL if s.over])
def test_what_is_held_is_not_released(seen: HoldFacts) -> None:
    assert (hold_state(seen) is HoldState.RELEASED) is not seen.held
