"""What is read from and said to slurmctld, beyond the values of `protocol.slurm_jobs`. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from dynamig.protocol.identity import JobKey, Purpose, purpose_of
from dynamig.protocol.slurm_jobs import Ending, HeldGpu, Job, JobState, SlurmNodeName

_ENDINGS = {
    "CANCELLED": Ending.CANCELLED,
    "TIMEOUT": Ending.EXPIRED,
    "DEADLINE": Ending.EXPIRED,
    "PREEMPTED": Ending.PREEMPTED,
    "NODE_FAIL": Ending.NODE_FAIL,
    "BOOT_FAIL": Ending.OTHER,
    "COMPLETED": Ending.OTHER,
    "FAILED": Ending.OTHER,
    "OUT_OF_MEMORY": Ending.OTHER,
}
"""Base states that a job does not leave."""
_SHARDS = re.compile(r"shard(?::[^:,=]+)?[:=](\d+)(?=,|$)")
"""In `gres/shard:2`, `gres/gpu:1,gres/shard:h100:2`; what slurmctld keeps is what was asked for, not normalised."""

_HOLDING = frozenset({"RUNNING", "SUSPENDED"})
"""A suspended job keeps its GRES: `gres_used` of its node stays as it was (tried, 26.05.5)."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as slurmctld shows it, ours or not. `states`: one base state and flags. `node`: the first it has or had.

    Minutes for `minutes`, None for no limit; seconds of the epoch for `submitted`, `started` and `turned`, when it was
    suspended or resumed last, 0 for never; seconds for `ran`, how long it had run until it was suspended last. What it
    asks for now: `gres` of each node as text, `nodes` and `cpus` that it has or at least wants, `memory` of a node in
    MiB, None if asked otherwise.
    """

    key: JobKey
    states: frozenset[str]
    reason: str
    admin_comment: str
    comment: str
    user: str
    partition: str
    node: SlurmNodeName | None
    minutes: int | None
    priority: int | None
    submitted: int
    gres: str = ""
    nodes: int = 1
    cpus: int = 1
    memory: int | None = None
    started: int = 0
    turned: int = 0
    ran: int = 0

    @property
    def suspended_since(self) -> float | None:
        return float(self.turned) if "SUSPENDED" in self.states else None

    @property
    def suspended_before(self) -> float:
        """Seconds of all suspensions that have ended: until `turned` it had run for `ran`, and was suspended else. That
        is so while it is suspended as while it runs again (tried, 26.05.5)."""
        return float(max(self.turned - self.started - self.ran, 0)) if self.turned else 0.0

    @property
    def state(self) -> JobState:
        if self.states & _ENDINGS.keys():
            return JobState.ENDED
        return JobState.RUNNING if self.states & _HOLDING else JobState.PENDING

    @property
    def ending(self) -> Ending | None:
        return next((ending for state, ending in _ENDINGS.items() if state in self.states), None)


def job_of_ours(seen: SlurmJob, gpu: HeldGpu | None) -> Job | None:
    """The job as the bridge knows it; None if its admin_comment is not ours."""
    purpose = purpose_of(seen.admin_comment)
    if purpose is None:
        return None
    return Job(
        key=seen.key,
        purpose=purpose,
        state=seen.state,
        comment=seen.comment,
        reason=seen.reason,
        node=seen.node,
        gpu=gpu,
        ending=seen.ending,
        priority=seen.priority,
        submitted=float(seen.submitted),
        suspended_since=seen.suspended_since,
        suspended_before=seen.suspended_before,
        changed=changed(seen, purpose),
    )


def changed(seen: SlurmJob, purpose: Purpose) -> str:
    """What the job asks for less than its purpose says, or otherwise; empty for nothing. A site's job_submit may ask
    for more, or name types."""
    shards = sum(int(count) for count in _SHARDS.findall(seen.gres))
    wrong = (
        (shards < purpose.shards, f"{shards} shards instead of {purpose.shards}"),
        (seen.nodes > 1, f"{seen.nodes} nodes instead of one"),
        (seen.cpus < purpose.cpus, f"{seen.cpus} processors instead of {purpose.cpus}"),
        (seen.memory is not None and seen.memory < purpose.memory, f"{seen.memory} MiB instead of {purpose.memory}"),
    )
    return " and ".join(words for found, words in wrong if found)


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
    """A node's row: GRES as text (`dynamig.slurm.gres` reads it), processors and MiB that no job has, and `extra`,
    which other people write too. `reason_since`: in seconds of the epoch, 0 without a reason."""

    name: SlurmNodeName
    states: frozenset[str]
    reason: str
    reason_since: int
    gres: str
    gres_used: str
    cpus: int
    memory: int
    extra: str
    comment: str


def extra_of(node: NodeInfo) -> dict[str, Any] | None:
    """The JSON object in the node's Extra, empty for none; None for text that is something else."""
    try:
        body = json.loads(node.extra) if node.extra else {}
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


@dataclass(frozen=True, slots=True)
class Controller:
    """slurmctld itself. `boot`: when it was started, seconds of the epoch: another value means that jobs of the last
    seconds may be lost, ended ones back, and ids given out again."""

    boot: int
    version: str
