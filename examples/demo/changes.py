"""What happened between two snapshots, one sentence a change. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dynamig.cli.holdings import Holding, HoldingState
from dynamig.cli.words import profile, ranges
from dynamig.protocol.identity import Role
from examples.demo.seen import JobSeen, PodSeen, Snapshot

Key = tuple[str, str, str, str]

NO_REASON = ": None"
"""What Slurm says of a job that it has not tried to start yet."""


def changes(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """What is given back first, then pods and jobs, then what is handed out; only what concerns somebody who watches.

    One look shows what happened in some time, and the order within it is not seen. Told this way round, no line says
    that somebody has what another one still holds.
    """
    yield from _given_back(before, after)
    yield from _jobs_over(before, after)
    for gone in before.pods:
        if after.pod(gone.name) is None:
            yield f"{gone.name} is gone"
    for pod in after.pods:
        yield from _of_pod(before.pod(pod.name), pod)
    yield from _of_jobs(before, after)
    yield from _handed_out(before, after)


def _of_pod(before: PodSeen | None, now: PodSeen) -> Iterator[str]:
    if now.waits != (before.waits if before else "") and now.waits and not now.waits.endswith(NO_REASON):
        yield f"{now.name} is told: {now.waits.partition(' preemption:')[0]}"
    if now.node and not (before and before.node):
        yield f"{now.name} is scheduled to {now.node}"
    if now.phase != (before.phase if before else "Pending"):
        yield f"{now.name} ends" if now.phase == "Terminating" else f"{now.name} is {now.phase}"


# -- Slurm -------------------------------------------------------------------------------------------------------------


def _jobs_over(before: Snapshot, after: Snapshot) -> Iterator[str]:
    left = {job.job_id for job in after.jobs}
    for job in before.jobs:
        if job.job_id not in left:
            yield f"Slurm: {job_name(job)} is over"


def _of_jobs(before: Snapshot, after: Snapshot) -> Iterator[str]:
    was = {job.job_id: job for job in before.jobs}
    for job in after.jobs:
        last = was.get(job.job_id)
        if job.running and not (last and last.running):
            yield f"Slurm: {job_name(job)} runs on {job.node} and has {of_gpus(job)}"
        if job.native and job.held_back and not (last and last.reason == job.reason):
            yield f"Slurm: {job_name(job)} waits: {job.reason}"


def job_name(job: JobSeen) -> str:
    """`job 12 (train of alice)`, `job 14 for pod notebook`."""
    if job.purpose is None:
        return f"job {job.job_id} ({job.name} of {job.user})"
    ballast = " (ballast)" if job.purpose.identity.role is Role.BALLAST else ""
    return f"job {job.job_id} for pod {job.purpose.pod.rpartition('/')[2]}{ballast}"


def of_gpus(job: JobSeen) -> str:
    """`all of GPU 0`, `3 shards of GPU 1`: in Slurm's indices."""
    told = [f"all of GPU {index}" for index in job.gpus]
    told += [f"{number} shard{'s' if number > 1 else ''} of GPU {index}" for index, number in job.shards.items()]
    return " and ".join(told) or "no GPU"


# -- GPUs --------------------------------------------------------------------------------------------------------------


def _given_back(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Devices and loans that are gone, or must be: another claim has a device ready in their place.

    A driver makes a device only where the hardware is empty, and may report that before the API server has let go of
    the claim that was there. That one was told of when its successor came, and is not told of again.
    """
    now = {_key(h) for h in after.holdings}
    for holding in before.holdings:
        if not _replaced(holding, before) and (_key(holding) not in now or _replaced(holding, after)):
            ends = f"empty again, {holding.profile} is destroyed" if holding.profile else "given back"
            yield f"{place(holding)}: {ends}"
    lent = {gpu.name: gpu.loan for gpu in after.gpus}
    for gpu in before.gpus:
        if gpu.loan is not None and lent.get(gpu.name) != gpu.loan:
            yield f"{gpu.name}: given back by {gpu.loan.borrower}"


def _replaced(holding: Holding, by: Snapshot) -> bool:
    """Another claim has a ready device on memory slices of this one."""
    return any(
        other.state is HoldingState.READY
        and (other.namespace, other.claim) != (holding.namespace, holding.claim)
        and other.pool == holding.pool
        and set(other.memory_slices) & set(holding.memory_slices)
        for other in by.holdings
    )


def _handed_out(before: Snapshot, after: Snapshot) -> Iterator[str]:
    lent = {gpu.name: gpu.loan for gpu in before.gpus}
    for gpu in after.gpus:
        if gpu.loan is not None and lent.get(gpu.name) != gpu.loan:
            yield f"{gpu.name}: lent to {gpu.loan.borrower}, with MIG mode off"
    was = {_key(h): h.state for h in before.holdings}
    for holding in after.holdings:
        if was.get(_key(holding)) is not holding.state:
            yield from _of_device(holding)


def _of_device(holding: Holding) -> Iterator[str]:
    who = " and ".join(holding.pods) or holding.claim
    match holding.state:
        case HoldingState.READY if holding.profile:
            yield f"{place(holding)}: {holding.profile} is cut for {who}: {holding.uuid}"
        case HoldingState.READY:
            yield f"{place(holding)}: the whole GPU is ready for {who}: {holding.uuid}"
        case HoldingState.FAILED:
            yield f"{place(holding)}: {profile(holding)} for {who} failed: {holding.reason}"


def place(holding: Holding) -> str:
    """`n1/gpu-0, memory slices 0-3`."""
    taken = holding.memory_slices
    if holding.profile is None or not taken:
        return holding.pool
    return f"{holding.pool}, memory slice{'s' if len(taken) > 1 else ''} {ranges(taken)}"


def _key(holding: Holding) -> Key:
    return holding.namespace, holding.claim, holding.pool, holding.device
