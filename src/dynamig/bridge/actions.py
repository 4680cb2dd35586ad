"""What the bridge can do: each action is a few writes, decided by `decide` and carried out by `act`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynamig.bridge.plan import Choice, Plan
from dynamig.bridge.sets import ClaimSet
from dynamig.bridge.world import Footprints, PodView, SetClaim
from dynamig.protocol.hold_note import Attempt
from dynamig.protocol.slurm_jobs import Job, SlurmNodeName
from dynamig.protocol.slurm_text import SlurmText


@dataclass(frozen=True, slots=True)
class Tell:
    """The condition of the set's pods says why they wait."""

    of: ClaimSet
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Note:
    """Finalizers and the attempt are on the claims; devices that are noted there stay. `anew`: what an earlier commit
    left on them goes, since nothing of it can be on any hardware: devices, node, release."""

    of: ClaimSet
    attempt: Attempt
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Submit:
    """Ballast first, then the hold. `attempt`: its number and, where it takes another job's place, its priority;
    `is_new`: it is noted in this very look, so no job of it can be there."""

    of: ClaimSet
    attempt: Attempt
    plan: Plan
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Describe:
    """The job's comment says this, for people who read squeue."""

    job: Job
    text: SlurmText


@dataclass(frozen=True, slots=True)
class Publish:
    """The node's Extra in Slurm says what pods hold there, for people who read scontrol; None: nothing."""

    node: SlurmNodeName
    value: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Drain:
    """Slurm starts nothing new on the node, for this reason."""

    node: SlurmNodeName
    why: SlurmText


@dataclass(frozen=True, slots=True)
class Undrain:
    """A drain of ours ends."""

    node: SlurmNodeName


@dataclass(frozen=True, slots=True)
class Cancel:
    """`wrong_pick`: Slurm started it on a GPU where its set has no place."""

    job: Job
    why: str
    wrong_pick: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """The claims are allocated to these devices, which the running job pays for."""

    of: ClaimSet
    job: Job
    attempt: Attempt
    node: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class Verify:
    """Read the claims of that GPU again; mark the set verified, or take it back. `footprints`: of every device."""

    of: ClaimSet
    job: Job
    footprints: Footprints


@dataclass(frozen=True, slots=True)
class Ungate:
    pod: PodView


@dataclass(frozen=True, slots=True)
class TakeBack:
    """The allocation goes; nothing was prepared. The finalizer stays."""

    of: ClaimSet
    why: str


@dataclass(frozen=True, slots=True)
class LetGo:
    """A claim that cannot have been prepared loses allocation and finalizer (P3, first case)."""

    claim: SetClaim


@dataclass(frozen=True, slots=True)
class Release:
    """The bridge lets go of an allocation that ended; the node's driver does the rest."""

    claim: SetClaim


@dataclass(frozen=True, slots=True)
class EndPod:
    """`grace`: whole seconds that it has to end."""

    pod: PodView
    reason: str
    message: str
    grace: int


Action = (
    Tell
    | Note
    | Submit
    | Describe
    | Publish
    | Drain
    | Undrain
    | Cancel
    | Commit
    | Verify
    | Ungate
    | TakeBack
    | LetGo
    | Release
    | EndPod
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows for one subject: a claim set, a job or a node, named alike in every look. Each action is the
    condition of those after it."""

    subject: str
    actions: tuple[Action, ...]
