"""The life of a claim on its node, as one table. A step that is not in it raises and changes nothing.

    absent -> held -> intended -> prepared -> retiring -> held -> absent

`held`: the claim may carry our finalizer, and nothing of it is on the hardware: not begun, or gone again.
`intended`: written while the placements were seen empty and before the first act, so that what exists there
afterwards can be shown to be ours. `retiring`: to be destroyed, never handed out again.
The state is on disk before the act that it announces and after the act that it reports.

From `absent` or `held` to `prepared` leads `adopt`: an administrator says that what lives at the places of a claim
whose record was lost is that claim's (`dynamig driver adopt`).

`held` is left out where nothing can go wrong between: a claim goes from absent to intended in one write, and a
crash after the finalizer and before that write is found at start, by the claim itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from dynamig.errors import InvariantBroken


class State(Enum):
    ABSENT = "absent"
    HELD = "held"
    INTENDED = "intended"
    PREPARED = "prepared"
    RETIRING = "retiring"


class Event(Enum):
    HOLD = "hold"
    """The finalizer is, or may be, on the claim; the hardware was not touched."""
    INTEND = "intend"
    """The placements are free and the first act on hardware follows."""
    MADE = "made"
    """Every device of the claim exists, was read back, and its CDI file is written."""
    ADOPT = "adopt"
    """The record was lost while the claim's pod ran; its devices were found alive, and a person says whose they are."""
    RETIRE = "retire"
    """Unprepare was asked for, prepare failed, or a crash left it half done."""
    GONE = "gone"
    """The hardware was read and nothing of the claim is on it."""
    TOLD = "told"
    """The claim object is gone or no longer carries our finalizer."""


NEXT: Mapping[tuple[State, Event], State] = MappingProxyType(
    {
        (State.ABSENT, Event.HOLD): State.HELD,
        (State.ABSENT, Event.INTEND): State.INTENDED,
        (State.ABSENT, Event.ADOPT): State.PREPARED,
        (State.HELD, Event.HOLD): State.HELD,
        (State.HELD, Event.INTEND): State.INTENDED,
        (State.HELD, Event.ADOPT): State.PREPARED,
        (State.INTENDED, Event.MADE): State.PREPARED,
        (State.INTENDED, Event.RETIRE): State.RETIRING,
        (State.PREPARED, Event.RETIRE): State.RETIRING,
        (State.RETIRING, Event.GONE): State.HELD,
        (State.HELD, Event.TOLD): State.ABSENT,
    }
)

OWNS_HARDWARE = frozenset({State.INTENDED, State.PREPARED, State.RETIRING})
"""States in which instances on the claim's placements are ours, and count as used."""


def step(state: State, event: Event) -> State:
    """The state after `event`. Raises InvariantBroken where the table has no such step."""
    try:
        return NEXT[state, event]
    except KeyError:
        raise InvariantBroken(
            "ILLEGAL_STEP", f"claim lifecycle: {event.value} in state {state.value}", "report this as a bug"
        ) from None
