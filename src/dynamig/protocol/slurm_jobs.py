"""Slurm as the bridge needs it: jobs of ours, nodes with their GPUs, and the port through which both are reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, NewType, Protocol

from dynamig.protocol.identity import JobIdentity, JobKey, Purpose
from dynamig.protocol.seen import Seen
from dynamig.protocol.slurm_text import SlurmText

SlurmNodeName = NewType("SlurmNodeName", str)


TOP_PRIORITY: Final = 4_294_967_000
"""Of ballast, and of holds for what already lives on a GPU: above all that Slurm gives (priority/basic counts down from
4,294,901,759), below NO_VAL (0xfffffffe, slurm.h)."""


class JobState(Enum):
    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


class Ending(Enum):
    """Why a job of ours ended. `CANCELLED` is scancel; `EXPIRED` its time limit; `PREEMPTED` a more important job."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    PREEMPTED = "preempted"
    NODE_FAIL = "node-fail"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """Shards on one GPU of a node. `index`: Slurm's; None where Slurm only counts and excludes nobody."""

    index: int | None
    shards: int


@dataclass(frozen=True, slots=True)
class Job:
    """One external job of ours. `reason`: Slurm's word for why it waits; `gpu`: what it has while it runs, None if that
    is not known now (a suspended job says nothing); `comment`: what people read in squeue; `submitted`,
    `suspended_since`: seconds of the epoch; the second is None for a job that is not suspended. One that is keeps what
    it has, and neither its time limit nor its account counts. `suspended_before`: seconds of earlier suspensions.
    `changed`: what it asks for less than it was submitted for, in words, since somebody changed it while it waited;
    empty for most."""

    key: JobKey
    purpose: Purpose
    state: JobState
    comment: str = ""
    reason: str = ""
    node: SlurmNodeName | None = None
    gpu: HeldGpu | None = None
    ending: Ending | None = None
    priority: int | None = None
    submitted: float = 0.0
    suspended_since: float | None = None
    suspended_before: float = 0.0
    changed: str = ""

    @property
    def identity(self) -> JobIdentity:
        return self.purpose.identity

    @property
    def held(self) -> bool:
        """Somebody lets it wait (`scontrol hold`). Priority 0 alone does not say that: Slurm gives it to a job that no
        node can serve any more (BadConstraints), too."""
        return self.state is JobState.PENDING and self.reason.startswith("JobHeld")

    @property
    def suspended(self) -> bool:
        return self.suspended_since is not None

    @property
    def living(self) -> bool:
        return self.state is not JobState.ENDED

    @property
    def ran(self) -> bool:
        return self.node is not None


@dataclass(frozen=True, slots=True)
class SlurmGpu:
    """One GPU of a Slurm node. `taken`: a native job has it whole; then no shard of it can be had."""

    index: int
    shards: int
    used: int
    taken: bool

    @property
    def free(self) -> int:
        return 0 if self.taken else self.shards - self.used


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """`usable`: Slurm would start a job there now as far as its state goes; `cpus`, `memory`: free there, whole ones
    and MiB. `extra`: the JSON object in the node's Extra, which other people write too; None if they have something
    else there. `drained`: it takes no new jobs, by somebody's decision; `reason`: the last that anybody
    gave, for that or for DOWN, and `reason_since` when, by slurmctld's clock, in seconds of the epoch."""

    name: SlurmNodeName
    usable: bool
    gpus: tuple[SlurmGpu, ...]
    cpus: int
    memory: int
    extra: Mapping[str, Any] | None = field(default_factory=dict)
    drained: bool = False
    reason: str = ""
    reason_since: int = 0

    def has_room_for(self, cpus: int, memory: int) -> bool:
        return self.usable and cpus <= self.cpus and memory <= self.memory

    def pick(self, cost: int) -> SlurmGpu | None:
        """The GPU that Slurm gives a job of `cost` shards now: the lowest index that fits (tried, 26.05.5)."""
        return next((g for g in sorted(self.gpus, key=lambda g: g.index) if g.free >= cost), None)

    def used(self, index: int, shards: int) -> SlurmNode:
        """The node with that many shards more in use on one GPU."""
        gpus = tuple(replace(g, used=g.used + shards) if g.index == index else g for g in self.gpus)
        return replace(self, gpus=gpus)


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """An external job to submit, for its purpose: on one of those nodes, with those shards. Minutes (None: as long as
    the partition allows). `nice`: taken off the priority that Slurm computes; without effect beside a `priority`."""

    purpose: Purpose
    comment: SlurmText
    minutes: int | None
    account: str
    user: str
    partition: str
    qos: str = ""
    priority: int | None = None
    nice: int = 0

    @property
    def identity(self) -> JobIdentity:
        return self.purpose.identity


class Jobs(Protocol):
    """slurmctld. Raises Unavailable while it does not answer; then nothing is known and nothing may be concluded."""

    def check_rights(self) -> None:
        """Nothing if we may do all of the following. Raises Refused if not: then nothing else is asked of slurmctld."""
        ...

    def submit(self, request: HoldRequest) -> JobKey: ...
    def ours(self) -> Sequence[Job]:
        """Every job with an identity of ours that slurmctld still knows, ended ones included."""
        ...

    def look(self, key: JobKey) -> Seen[Job]:
        """`Gone`: an answering controller does not know it, or the id is another job's now."""
        ...

    def cancel(self, key: JobKey) -> None: ...
    def comment(self, key: JobKey, text: SlurmText) -> None: ...
    def nodes(self) -> Sequence[SlurmNode]: ...
    def started(self) -> float:
        """When slurmctld was started, seconds of the epoch: a job of the last seconds before that may be missing."""
        ...

    def write_extra(self, node: SlurmNodeName, key: str, value: Any) -> None:
        """The JSON object in the node's Extra has `value` under `key`; None: not the key."""
        ...

    def drain(self, node: SlurmNodeName, reason: SlurmText) -> None:
        """The node takes no new jobs, for this reason of ours. Raises Conflict if somebody else's stands there."""
        ...

    def undrain(self, node: SlurmNodeName) -> None:
        """The node takes jobs again if a drain of ours kept it from that. Raises Conflict if it is not ours."""
        ...
