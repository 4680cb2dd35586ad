"""Slurm as the bridge needs it: jobs of ours, nodes with their GPUs, and the port through which both are reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NewType, Protocol

from dynamig.protocol.identity import JobIdentity, JobKey
from dynamig.protocol.seen import Seen

SlurmNodeName = NewType("SlurmNodeName", str)


class JobState(Enum):
    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


class Ending(Enum):
    """Why a job of ours ended. `CANCELLED` covers scancel, time limit and preemption: somebody meant it."""

    CANCELLED = "cancelled"
    NODE_FAIL = "node-fail"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """Shards on one GPU of a node. `index`: Slurm's."""

    index: int
    shards: int


@dataclass(frozen=True, slots=True)
class Job:
    """One external job of ours. `reason`: Slurm's word for why it waits; `gpu`: what it has once it runs; `claims`:
    UIDs of the claims that it pays for; `comment`: what people read in squeue."""

    key: JobKey
    identity: JobIdentity
    state: JobState
    claims: frozenset[str] = frozenset()
    comment: str = ""
    reason: str = ""
    node: SlurmNodeName | None = None
    gpu: HeldGpu | None = None
    ending: Ending | None = None

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
    """`usable`: Slurm would start a job there now as far as its state goes."""

    name: SlurmNodeName
    usable: bool
    gpus: tuple[SlurmGpu, ...]

    def pick(self, cost: int) -> SlurmGpu | None:
        """The GPU that Slurm gives a job of `cost` shards now: the lowest index that fits (tried, 26.05.5)."""
        return next((g for g in sorted(self.gpus, key=lambda g: g.index) if g.free >= cost), None)


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """An external job to submit. `nodes`: it starts on one of them. Minutes, MiB, shards."""

    identity: JobIdentity
    admin_comment: str
    comment: str
    nodes: tuple[SlurmNodeName, ...]
    shards: int
    cpus: int
    memory: int
    minutes: int | None
    account: str
    user: str
    partition: str
    qos: str = ""
    priority: int | None = None


class Jobs(Protocol):
    """slurmctld. Raises Unavailable while it does not answer; then nothing is known and nothing may be concluded."""

    def submit(self, request: HoldRequest) -> JobKey: ...
    def ours(self) -> Sequence[Job]:
        """Every job with an identity of ours that slurmctld still knows, ended ones included."""
        ...

    def look(self, key: JobKey) -> Seen[Job]:
        """`Gone`: an answering controller does not know it, or the id is another job's now."""
        ...

    def cancel(self, key: JobKey) -> None: ...
    def comment(self, key: JobKey, text: str) -> None: ...
    def nodes(self) -> Sequence[SlurmNode]: ...
