"""The life of a hold, as one table: what an external job keeps in Slurm for one claim set.

    planned -> submitted -> running -> committed -> verified -> live -> retiring -> released
                                                       |          |
                                                       +-> bare <-+       Slurm ended the job under us

No state is kept by the bridge: each is read from pod, claims and job, and this table says what may follow. `bare`
is left by a new job on the same GPU, or by the end of the pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from dynamig.errors import InvariantBroken


class Hold(Enum):
    PLANNED = "planned"
    """A node and a cost are chosen and noted on the claims; no job is known yet."""
    SUBMITTED = "submitted"
    """The job is in Slurm's queue."""
    RUNNING = "running"
    """The job runs; nothing is allocated for it yet."""
    COMMITTED = "committed"
    """The claims are allocated to its GPU; not checked again yet."""
    VERIFIED = "verified"
    """Checked again: alone on its memory slices; the pod may go."""
    LIVE = "live"
    """The pod is bound."""
    RETIRING = "retiring"
    """The pod is over; the node has not reported the hardware empty yet."""
    RELEASED = "released"
    """Claims and job are gone."""
    BARE = "bare"
    """Committed claims without a job."""


class Happening(Enum):
    SUBMIT = "submit"
    START = "start"
    ALLOCATE = "allocate"
    CHECK = "check"
    BIND = "bind"
    END = "end"
    CANCEL = "cancel"
    LOSE = "lose"
    REHOLD = "rehold"
    DEALLOCATE = "deallocate"
    ABANDON = "abandon"


NEXT: Mapping[tuple[Hold, Happening], Hold] = MappingProxyType(
    {
        (Hold.PLANNED, Happening.SUBMIT): Hold.SUBMITTED,
        (Hold.SUBMITTED, Happening.START): Hold.RUNNING,
        (Hold.RUNNING, Happening.ALLOCATE): Hold.COMMITTED,
        (Hold.COMMITTED, Happening.CHECK): Hold.VERIFIED,
        (Hold.VERIFIED, Happening.BIND): Hold.LIVE,
        (Hold.LIVE, Happening.END): Hold.RETIRING,
        (Hold.RETIRING, Happening.CANCEL): Hold.RELEASED,
        # the scheduler cleared the allocation, or the check found an overlap
        (Hold.COMMITTED, Happening.DEALLOCATE): Hold.RUNNING,
        (Hold.VERIFIED, Happening.DEALLOCATE): Hold.RUNNING,
        # pod or claim deleted before anything was prepared
        (Hold.PLANNED, Happening.ABANDON): Hold.RELEASED,
        (Hold.SUBMITTED, Happening.ABANDON): Hold.RELEASED,
        (Hold.RUNNING, Happening.ABANDON): Hold.RELEASED,
        (Hold.COMMITTED, Happening.ABANDON): Hold.RETIRING,
        (Hold.VERIFIED, Happening.ABANDON): Hold.RETIRING,
        # Slurm ended the job: before the commit the set is planned anew, after it the claims are bare
        (Hold.SUBMITTED, Happening.LOSE): Hold.PLANNED,
        (Hold.RUNNING, Happening.LOSE): Hold.PLANNED,
        (Hold.COMMITTED, Happening.LOSE): Hold.BARE,
        (Hold.VERIFIED, Happening.LOSE): Hold.BARE,
        (Hold.LIVE, Happening.LOSE): Hold.BARE,
        (Hold.BARE, Happening.REHOLD): Hold.LIVE,
        (Hold.BARE, Happening.END): Hold.RETIRING,
        (Hold.RETIRING, Happening.LOSE): Hold.RETIRING,
    }
)


def step(state: Hold, happening: Happening) -> Hold:
    """The state after `happening`. Raises InvariantBroken where the table has no such step."""
    try:
        return NEXT[state, happening]
    except KeyError:
        raise InvariantBroken(
            "ILLEGAL_STEP", f"hold lifecycle: {happening.value} in state {state.value}", "report this as a bug"
        ) from None
