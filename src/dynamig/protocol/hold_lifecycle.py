"""The life of a hold, as one table: how far a claim set is with the Slurm job that pays for it.

    planned -> pending -> running -> committed -> verified -> live -> ending -> released

Nobody keeps the state: it is read off pods, claims and job at each look (`hold_state`), and says what is decided next.
`NEXT` is what may follow what; a step outside it would be a fault of the bridge, and tests look for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from dynamig.protocol.slurm_jobs import JobState


class HoldState(Enum):
    PLANNED = "planned"
    """No job and no device: a place is looked for."""
    PENDING = "pending"
    """Its job waits in Slurm."""
    RUNNING = "running"
    """Its job runs, and the claims have no devices yet."""
    COMMITTED = "committed"
    """The claims are allocated; whether somebody else has the same memory slices is not looked up yet."""
    VERIFIED = "verified"
    """Alone on its memory slices; its pods may be scheduled."""
    LIVE = "live"
    """Bound to a node: something of it may be on the hardware."""
    BARE = "bare"
    """The claims have devices, and no job runs that pays for them."""
    ENDING = "ending"
    """No pod needs it any more; something may still be on the hardware."""
    RELEASED = "released"
    """Nothing of it is held. Its job is cancelled once the node says that the hardware is empty."""


NEXT: Mapping[HoldState, frozenset[HoldState]] = MappingProxyType(
    {
        HoldState.PLANNED: frozenset({HoldState.PENDING, HoldState.RUNNING, HoldState.ENDING, HoldState.RELEASED}),
        HoldState.PENDING: frozenset({HoldState.RUNNING, HoldState.PLANNED, HoldState.ENDING, HoldState.RELEASED}),
        HoldState.RUNNING: frozenset({HoldState.COMMITTED, HoldState.PLANNED, HoldState.ENDING, HoldState.RELEASED}),
        HoldState.COMMITTED: frozenset(
            {HoldState.VERIFIED, HoldState.LIVE, HoldState.RUNNING, HoldState.BARE, HoldState.ENDING}
        ),
        HoldState.VERIFIED: frozenset(
            {HoldState.LIVE, HoldState.COMMITTED, HoldState.RUNNING, HoldState.BARE, HoldState.ENDING}
        ),
        HoldState.LIVE: frozenset({HoldState.BARE, HoldState.ENDING, HoldState.RELEASED}),
        HoldState.BARE: frozenset(
            {HoldState.LIVE, HoldState.VERIFIED, HoldState.COMMITTED, HoldState.PLANNED, HoldState.ENDING}
        ),
        HoldState.ENDING: frozenset({HoldState.RELEASED, HoldState.PLANNED, HoldState.VERIFIED}),
        HoldState.RELEASED: frozenset({HoldState.PLANNED}),
    }
)
"""The last two go on only for a claim made by hand that another pod uses. Committed goes to live where the set was
taken back after its pod had lost the gate, which cannot be put on again: kube-scheduler binds it at once."""


@dataclass(frozen=True, slots=True)
class HoldFacts:
    """What is seen of a set. `over`: no pod needs it; `held`: a claim carries our finalizer; `job`: state of the job
    that is to pay, None for none; `devices`: a claim is allocated, or its pod may run without; `verified`: all are;
    `in_use`: a pod of it is bound, or a claim reserved."""

    over: bool
    held: bool
    job: JobState | None
    devices: bool
    verified: bool
    in_use: bool


def hold_state(seen: HoldFacts) -> HoldState:
    if seen.over:
        return HoldState.ENDING if seen.held else HoldState.RELEASED
    if not seen.devices:
        match seen.job:
            case JobState.PENDING:
                return HoldState.PENDING
            case JobState.RUNNING:
                return HoldState.RUNNING
            case _:
                return HoldState.PLANNED
    if seen.job is not JobState.RUNNING:
        return HoldState.BARE
    if not seen.verified:
        return HoldState.COMMITTED
    return HoldState.LIVE if seen.in_use else HoldState.VERIFIED
