"""The claim lifecycle: the table, what it leads to, and that an illegal step changes nothing."""

from __future__ import annotations

import dataclasses

import pytest

from dynamig.errors import InvariantBroken
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.lifecycle import NEXT, OWNS_HARDWARE, Event, State, step
from dynamig.protocol.records import ClaimRecord


def test_from_every_state_a_claim_can_end() -> None:
    ends = {State.ABSENT}
    while True:
        more = {before for (before, _), after in NEXT.items() if after in ends} | ends
        if more == ends:
            break
        ends = more
    assert ends == set(State)


def test_hardware_is_left_only_through_the_proof_that_it_is_gone() -> None:
    leaving = {(s, e) for (s, e), after in NEXT.items() if s in OWNS_HARDWARE and after not in OWNS_HARDWARE}
    assert leaving == {(State.RETIRING, Event.GONE)}


@pytest.mark.parametrize(("state", "event"), [(s, e) for s in State for e in Event if (s, e) not in NEXT])
def test_an_illegal_step_raises_and_changes_nothing(state: State, event: Event) -> None:
    record = ClaimRecord(ClaimRef("ns", "c", "u"), state, (), "boot", 1.0)
    kept = dataclasses.replace(record)
    with pytest.raises(InvariantBroken, match=event.value):
        record.after(event, now=2.0)
    assert record == kept


def test_a_legal_step_notes_the_time() -> None:
    record = ClaimRecord(ClaimRef("ns", "c", "u"), State.ABSENT, (), "boot", 1.0)
    assert record.after(Event.INTEND, now=2.0).since == 2.0
    assert step(State.ABSENT, Event.HOLD) is State.HELD
