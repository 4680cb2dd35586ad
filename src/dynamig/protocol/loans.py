"""Loans (PROTOCOL P10, P11): a native job's process starts on a GPU only after the node's driver has lent it.

The rule holds on the node, whatever Slurm's books say. A loan is kept on disk, survives reboots of both sides, and
ends by the epilog or by slurmctld's word; silence, a reboot or missing steps end nothing. slurmctld's word alone is not
enough where it may have forgotten, in a crash, what runs here: then the node must say too that no step lives.

    free -> lent(job) -> free

What is said here of Slurm was seen with slurmctld and slurmd 26.05.5: docs/decisions/0011-the-loan.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from dynamig.errors import InvariantBroken, Refused, Unavailable
from dynamig.mig import GpuUuid
from dynamig.protocol.gpus import LiveInstance
from dynamig.protocol.records import ClaimRecord
from dynamig.protocol.seen import Found, Gone, Seen, Unknown

VERSION = 1


@dataclass(frozen=True, slots=True, order=True)
class Borrower:
    """One run of one native job. `sluid` tells the runs of a job apart: each requeue gives it a new one. It is empty
    for a Slurm that has none; then `restart`, the count of its requeues, does."""

    job_id: int
    sluid: str
    restart: int

    def __str__(self) -> str:
        return f"Slurm job {self.job_id}" + (f" (restart {self.restart})" if self.restart else "")

    @property
    def run(self) -> str:
        """Tells this run from every other one, of jobs with the same id too: ids are given out again."""
        return f"{self.job_id}/{self.sluid or self.restart}"

    def is_same_run(self, other: Borrower) -> bool:
        if self.job_id != other.job_id:
            return False
        if self.sluid and other.sluid:
            return self.sluid == other.sluid
        return self.restart == other.restart

    def is_ended_by(self, epilog: Borrower) -> bool:
        """Whether the epilog that names itself so is this run's. slurmd counts a requeue before it runs the epilog of
        the run that was requeued, so without SLUIDs the epilog's count may be greater than the run's, never less."""
        if self.job_id != epilog.job_id:
            return False
        if self.sluid and epilog.sluid:
            return self.sluid == epilog.sluid
        return self.restart <= epilog.restart


@dataclass(frozen=True, slots=True)
class Loan:
    """A whole GPU lent to one job. `since`: seconds of the epoch."""

    gpu: GpuUuid
    borrower: Borrower
    since: float


# -- slurmctld's word ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job as an answering slurmctld has it. `states`: base state and flags, such as PENDING and COMPLETING; `nodes`:
    those that it has now, none where that is not told: it waits, or is over."""

    states: frozenset[str]
    sluid: str
    restart: int
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as an answering slurmctld has it. `used`: Slurm indices of its GPUs that jobs hold (GresUsed)."""

    name: str
    states: frozenset[str]
    used: frozenset[int]


class JobSeen(Enum):
    """What slurmctld says of a borrower. `GONE`: unknown to an answering controller, and the node's GresUsed lacks the
    index; `OTHER`: the id belongs to another job, or to another run of it, now; `UNSTARTED`: this very run waits to be
    started, so a crash has thrown slurmctld back to a time before; `ELSEWHERE`: it runs on without this node, which it
    gave up (`scontrol update NodeList=`) or lost; `UNHEARD`: it was given up because its node was, or was said to be,
    down."""

    ACTIVE = "active"
    ENDED = "ended"
    OTHER = "other"
    GONE = "gone"
    UNSTARTED = "unstarted"
    ELSEWHERE = "elsewhere"
    UNHEARD = "unheard"
    SILENT = "silent"


TERMINAL = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    }
)
"""Base states that a run does not leave (slurm.h, job_states)."""

COMPLETING = "COMPLETING"
"""Flag: processes or epilog of the last run are not over on some node."""

OUT_OF_TOUCH = frozenset({"DOWN", "NOT_RESPONDING", "UNKNOWN"})
"""Node states in which slurmctld ends jobs on its own, without a word from the node: their processes may live on."""


def judge(borrower: Borrower, index: int | None, job: Seen[JobFacts], node: Seen[NodeFacts]) -> JobSeen:
    """What the answers of slurmctld prove about `borrower`, who has the GPU of Slurm index `index` (None: not known).

    A requeued job carries the SLUID of its next run while the last one still completes, so COMPLETING comes first.
    """
    if isinstance(job, Unknown) or not isinstance(node, Found) or node.value.states & OUT_OF_TOUCH:
        return JobSeen.SILENT
    if isinstance(job, Gone):
        return JobSeen.SILENT if index is None or index in node.value.used else JobSeen.GONE
    if COMPLETING in job.value.states:
        return JobSeen.ACTIVE
    if not borrower.is_same_run(Borrower(borrower.job_id, job.value.sluid, job.value.restart)):
        return JobSeen.OTHER
    if "PENDING" in job.value.states:
        return JobSeen.UNSTARTED
    if "NODE_FAIL" in job.value.states:
        return JobSeen.UNHEARD
    if job.value.states & TERMINAL:
        return JobSeen.ENDED
    return JobSeen.ELSEWHERE if job.value.nodes and node.value.name not in job.value.nodes else JobSeen.ACTIVE


def used_but_for(
    node: Seen[NodeFacts], asker: Borrower, indices: Collection[int], job: Seen[JobFacts]
) -> Seen[NodeFacts]:
    """The node's answer without the use of `indices` by `asker`, whose prolog asks for them, if `job`, slurmctld's
    answer about it, has that run active: Slurm gives an index to one job at a time, so nobody else uses these."""
    if not isinstance(node, Found) or judge(asker, None, job, node) is not JobSeen.ACTIVE:
        return node
    return Found(replace(node.value, used=node.value.used - frozenset(indices)))


DISOWNED = frozenset({JobSeen.OTHER, JobSeen.GONE, JobSeen.UNSTARTED, JobSeen.ELSEWHERE, JobSeen.UNHEARD})
"""slurmctld does not know of a run with this loan, or does not know what became of it here. It may live on: slurmctld
may have forgotten it in a crash, or ended it without its node."""

MAY_BE_OVER = DISOWNED | {JobSeen.ENDED}
"""What is worth asking the node for its steps."""

LAUNCH_S = 60.0
"""Seconds within which a run that has its loan has its first step: slurmd launches it once all prologs have ended."""


_NOT_OVER = {
    JobSeen.ACTIVE: "slurmctld says that it is not over",
    JobSeen.SILENT: "no answer of slurmctld proves it over: it is silent, has lost touch with this node, "
    "or has the GPU in use",
}
_NO_LONGER = {
    JobSeen.ENDED: "slurmctld says that it is over",
    JobSeen.OTHER: "slurmctld has another run or job under its id",
    JobSeen.GONE: "slurmctld does not know it",
    JobSeen.UNSTARTED: "slurmctld says that it has not started",
    JobSeen.ELSEWHERE: "slurmctld says that it has this node no more",
    JobSeen.UNHEARD: "slurmctld gave it up with its node",
}


def why_it_stands(seen: JobSeen, has_steps: Seen[bool], age_s: float) -> str | None:
    """Why a loan is not over, for people; None if it is. Only an answer ends a loan (P11). `has_steps`: whether a step
    of the job's id lives on this node, as the node itself says. `age_s`: seconds since the loan was made.

    A job that ended while slurmctld did not hear from the node may live on for a while after the node's return.
    """
    if seen not in MAY_BE_OVER:
        return _NOT_OVER[seen]
    if has_steps == Found(True):
        return f"{_NO_LONGER[seen]}, but slurmd's spool folder on this node still has a step of it"
    if seen is JobSeen.ENDED:
        return None
    if not isinstance(has_steps, Found):
        silence = has_steps.reason if isinstance(has_steps, Unknown) else has_steps.proof
        return f"{_NO_LONGER[seen]}, and the node does not say whether a step of it lives: {silence}"
    return f"{_NO_LONGER[seen]}, but a run may need a minute to start" if age_s < LAUNCH_S else None


# -- what may be lent ----------------------------------------------------------------------------------------------


def check_lendable(
    gpu: GpuUuid,
    borrower: Borrower,
    loans: Mapping[GpuUuid, Loan],
    records: Iterable[ClaimRecord],
    live: Iterable[LiveInstance],
) -> None:
    """Nothing if `gpu` may be lent to `borrower` now (again for the one who has it already).

    `records`: all of the journal; `live`: the instances on the GPU, none for a GPU that is not ours to manage.
    Raises: Unavailable LENT or CLAIMED for what will end; Refused QUARANTINED for an instance that nobody can be shown
    to own (P13). Callers hold the GPU's lock.
    """
    loan = loans.get(gpu)
    if loan is not None and not loan.borrower.is_same_run(borrower):
        raise Unavailable("LENT", f"{gpu} is lent to {loan.borrower}", "it is given back by that job's epilog")
    owners = [r for r in records if r.owns_hardware and any(d.gpu == gpu for d in r.devices)]
    if owners:
        named = ", ".join(str(r.ref) for r in owners)
        raise Unavailable("CLAIMED", f"{gpu} is used by claim {named}", "`dynamig ps` shows the pods")
    if strangers := tuple(live):  # no record owns anything here, so none proves them to be ours
        raise Refused(
            "QUARANTINED", f"{gpu} has {', '.join(map(str, strangers))}", "nobody can be shown to own it: remove it"
        )


def check_apart(loans: Iterable[GpuUuid], records: Iterable[ClaimRecord]) -> None:
    """I8: no GPU is lent while a claim of ours has, or is about to have, anything on it. Raises InvariantBroken."""
    lent = frozenset(loans)
    for record in records:
        for gpu in {d.gpu for d in record.devices} & lent if record.owns_hardware else ():
            raise InvariantBroken("I8", f"{gpu} is lent and has claim {record.ref} ({record.state.value})")


# -- on disk and on the wire -----------------------------------------------------------------------------------------


def loan_to_json(loan: Loan) -> dict[str, Any]:
    who = loan.borrower
    return {
        "v": VERSION,
        "gpu": loan.gpu,
        "job": {"id": who.job_id, "sluid": who.sluid, "restart": who.restart},
        "since": loan.since,
    }


def loan_from_json(body: Mapping[str, Any]) -> Loan:
    """Raises: Unavailable NEWER_JOURNAL; KeyError, TypeError, ValueError for what is no loan."""
    if int(body["v"]) > VERSION:
        raise Unavailable("NEWER_JOURNAL", f"loan of version {body['v']}", "run the newer dynamig")
    job = body["job"]
    borrower = Borrower(int(job["id"]), str(job["sluid"]), int(job["restart"]))
    return Loan(GpuUuid(str(body["gpu"])), borrower, float(body["since"]))
