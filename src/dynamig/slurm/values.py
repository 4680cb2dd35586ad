"""What is read from and said to slurmctld, beyond the values of `protocol.slurm_jobs`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dynamig.protocol.identity import JobKey, claims_in, identity_of
from dynamig.protocol.slurm_jobs import Ending, HeldGpu, Job, JobState, SlurmNodeName

_MEANT = frozenset({"CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE"})
_ENDED = _MEANT | {"BOOT_FAIL", "COMPLETED", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"}
_HOLDING = frozenset({"RUNNING", "SUSPENDED"})
"""A suspended job keeps its GRES: `gres_used` of its node stays as it was (tried, 26.05.5)."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as slurmctld shows it, ours or not. `states`: one base state and flags. `node`: the first it has or had.

    Minutes for `minutes`, None for no limit; seconds of the epoch for `started`, None before the start.
    """

    key: JobKey
    states: frozenset[str]
    reason: str
    admin_comment: str
    comment: str
    user: str
    partition: str
    node: SlurmNodeName | None
    restarts: int
    minutes: int | None
    priority: int | None
    started: int | None

    @property
    def state(self) -> JobState:
        if self.states & _ENDED:
            return JobState.ENDED
        return JobState.RUNNING if self.states & _HOLDING else JobState.PENDING

    @property
    def leaving(self) -> bool:
        """It has ended, but its epilog still runs on a node."""
        return "COMPLETING" in self.states

    @property
    def ending(self) -> Ending | None:
        if self.state is not JobState.ENDED:
            return None
        if "NODE_FAIL" in self.states:
            return Ending.NODE_FAIL
        return Ending.CANCELLED if self.states & _MEANT else Ending.OTHER


def job_of_ours(seen: SlurmJob, gpu: HeldGpu | None) -> Job | None:
    """The job as the bridge knows it; None if its admin_comment is not ours."""
    identity = identity_of(seen.admin_comment)
    if identity is None:
        return None
    return Job(
        key=seen.key,
        identity=identity,
        state=seen.state,
        claims=claims_in(seen.admin_comment),
        comment=seen.comment,
        reason=seen.reason,
        node=seen.node,
        gpu=gpu,
        ending=seen.ending,
    )


@dataclass(frozen=True, slots=True)
class HeldGres:
    """One GRES of a job on one node. `index`: of its GPU; None where Slurm only counts."""

    name: str
    type: str
    count: int
    index: int | None


@dataclass(frozen=True, slots=True)
class JobChanges:
    """What to change of a job; None leaves a field alone. Minutes; `start`: earliest start, seconds of the epoch (the
    present is what scontrol calls StartTime=now; 0 changes nothing)."""

    comment: str | None = None
    admin_comment: str | None = None
    minutes: int | None = None
    priority: int | None = None
    start: int | None = None


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node's row: GRES as text (`dynamig.slurm.gres` reads it) and `extra`, which other people write too."""

    name: SlurmNodeName
    states: frozenset[str]
    reason: str
    gres: str
    gres_used: str
    extra: str
    comment: str


@dataclass(frozen=True, slots=True)
class Controller:
    """slurmctld itself. `boot`: when it was started, seconds of the epoch: another value means that jobs of the last
    seconds may be lost, ended ones back, and ids given out again."""

    boot: int
    version: str
    next_job_id: int
