"""Loans (PROTOCOL P10, P11): a native job's process starts on a GPU only after the node's driver has lent it.

The rule holds on the node, whatever Slurm's books say. A loan is kept on disk, survives reboots of both sides, and
ends by the epilog or by slurmctld's word; silence, a reboot or missing steps end nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dynamig.errors import Refused, Unavailable
from dynamig.mig import GpuUuid
from dynamig.protocol.gpus import LiveInstance
from dynamig.protocol.invariants import i4_ours
from dynamig.protocol.records import ClaimRecord


@dataclass(frozen=True, slots=True, order=True)
class Borrower:
    """One run of one native job: the same id after a requeue is another borrower."""

    job_id: int
    sluid: str
    restart: int

    def __str__(self) -> str:
        return f"Slurm job {self.job_id}" + (f" (restart {self.restart})" if self.restart else "")


@dataclass(frozen=True, slots=True)
class Loan:
    """A whole GPU lent to one job. `since`: seconds of the epoch."""

    gpu: GpuUuid
    borrower: Borrower
    since: float


class JobSeen(Enum):
    """What slurmctld says of a borrower. `GONE`: unknown to an answering controller, and the node's GresUsed lacks the
    index; `OTHER`: the id belongs to another job now."""

    ACTIVE = "active"
    ENDED = "ended"
    OTHER = "other"
    GONE = "gone"
    SILENT = "silent"


def loan_is_over(seen: JobSeen) -> bool:
    """Only an answer ends a loan (P11)."""
    return seen in (JobSeen.ENDED, JobSeen.OTHER, JobSeen.GONE)


def check_lendable(
    gpu: GpuUuid,
    borrower: Borrower,
    loans: Mapping[GpuUuid, Loan],
    records: Iterable[ClaimRecord],
    live: Iterable[LiveInstance],
) -> None:
    """Nothing if `gpu` may be lent to `borrower` now (again for the one who has it already).

    Raises: Unavailable LENT or CLAIMED for what will end; Refused QUARANTINED for an instance that nobody can be shown
    to own (P13). Callers hold the GPU's lock.
    """
    loan = loans.get(gpu)
    if loan is not None and loan.borrower != borrower:
        raise Unavailable("LENT", f"{gpu} is lent to {loan.borrower}", "it is given back by that job's epilog")
    owners = [r for r in records if r.owns_hardware and any(d.gpu == gpu for d in r.devices)]
    if owners:
        named = ", ".join(str(r.ref) for r in owners)
        raise Unavailable("CLAIMED", f"{gpu} is used by claim {named}", "`dynamig ps` shows the pods")
    if strangers := [i for i in live if not i4_ours(gpu, i, owners)]:
        raise Refused(
            "QUARANTINED", f"{gpu} has {', '.join(map(str, strangers))}", "nobody can be shown to own it: remove it"
        )


def loan_to_json(loan: Loan) -> dict[str, Any]:
    who = loan.borrower
    return {
        "v": 1,
        "gpu": loan.gpu,
        "job": {"id": who.job_id, "sluid": who.sluid, "restart": who.restart},
        "since": loan.since,
    }


def loan_from_json(body: Mapping[str, Any]) -> Loan:
    """Raises: Unavailable NEWER_JOURNAL; KeyError, TypeError, ValueError for what is no loan."""
    if int(body["v"]) > 1:
        raise Unavailable("NEWER_JOURNAL", f"loan of version {body['v']}", "run the newer dynamig")
    job = body["job"]
    borrower = Borrower(int(job["id"]), str(job["sluid"]), int(job["restart"]))
    return Loan(GpuUuid(str(body["gpu"])), borrower, float(body["since"]))
