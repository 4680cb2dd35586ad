"""What to do next for one claim set: pure, from one picture of the world to a list of actions (PROTOCOL P1-P9).

Level-triggered: nothing is remembered between two looks; what was done is read back from pod, claims and jobs. Doing
the same again changes nothing. Where an action is refused because somebody changed the object, the next look decides
anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynamig.bridge.plan import Choice, Chooser, NoPlan, Plan, plan_hold
from dynamig.bridge.world import PodView, SetClaim, World
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimView
from dynamig.protocol.device_status import outcomes
from dynamig.protocol.hold_note import Attempt
from dynamig.protocol.identity import JobIdentity, surviving
from dynamig.protocol.slurm_jobs import Ending, Job, JobState

PATIENCE_PREPARE = 600.0
"""Seconds that a prepare may fail for passing reasons before its pod is ended (P8)."""

PATIENCE_UNSCHEDULABLE = 30.0
"""Seconds that kube-scheduler may say Unschedulable of a committed pod before the allocation is taken back (P7)."""


@dataclass(frozen=True, slots=True)
class Tell:
    """The pod's condition says why it waits."""

    pod: PodView
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Note:
    """Finalizers and the note of an attempt are on the claims, before anything is asked of Slurm."""

    pod: PodView
    claims: tuple[SetClaim, ...]
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Submit:
    pod: PodView
    claims: tuple[SetClaim, ...]
    identity: JobIdentity
    plan: Plan


@dataclass(frozen=True, slots=True)
class Describe:
    """The job's comment says this, for people who read squeue."""

    job: Job
    text: str


@dataclass(frozen=True, slots=True)
class Cancel:
    job: Job
    why: str


@dataclass(frozen=True, slots=True)
class Commit:
    """The claims are allocated to these devices, which the running job pays for."""

    pod: PodView
    claims: tuple[SetClaim, ...]
    job: Job
    node: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class Verify:
    """Read the claims of that GPU again; mark the set verified, or take it back. `footprints`: (GPU, memory slice)
    pairs of every device of the pools concerned."""

    pod: PodView
    claims: tuple[SetClaim, ...]
    job: Job
    footprints: Mapping[tuple[str, str], frozenset[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class Ungate:
    pod: PodView


@dataclass(frozen=True, slots=True)
class TakeBack:
    """The allocation goes, the hold stays (P7) or not; nothing was prepared."""

    claims: tuple[SetClaim, ...]
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
    pod: PodView
    reason: str
    message: str


Action = Tell | Note | Submit | Describe | Cancel | Commit | Verify | Ungate | TakeBack | LetGo | Release | EndPod


def decide_pod(pod: PodView, world: World, choose: Chooser) -> tuple[Action, ...]:
    """The next actions for the set of one pod of a Slurm namespace that exists."""
    claims = world.claims_of(pod)
    if claims is None:
        return (Tell(pod, "WaitingForClaims", "its resource claims are being made"),) if pod.gated else ()
    jobs = world.jobs_of(pod.ref.uid)
    if pod.deleting or pod.over:
        return _ending(pod, claims)
    job, extra = _one_job(jobs, claims)
    cancels = tuple(Cancel(j, "another job holds the same set") for j in extra)
    if job is None or job.state is JobState.ENDED:
        return (*cancels, *_without_job(pod, claims, job, world, choose))
    if job.state is JobState.PENDING:
        return (*cancels, Tell(pod, "SlurmPending", f"Slurm job {job.key.job_id} waits: {job.reason or 'queued'}"))
    return (*cancels, *_with_job(pod, claims, job, world, choose))


def decide_job(job: Job, world: World) -> tuple[Action, ...]:
    """What to do about a job whose set is over or unknown (P4)."""
    if job.state is JobState.ENDED:
        return ()
    pod = next((p for p in world.pods.values() if p.ref.uid == job.identity.set_uid), None)
    if pod is not None and not (pod.deleting or pod.over):
        return ()
    holders = [c for c in world.claims.values() if c.attempt is not None and c.attempt.set_uid == job.identity.set_uid]
    if any(c.view.held for c in holders):
        return ()
    if not job.ran:
        return (Cancel(job, "its pod is gone"),)
    return (Cancel(job, "its pod is gone and the node reports the hardware empty"),) if _empty(job, world) else ()


def _empty(job: Job, world: World) -> bool:
    """The node's driver, reporting now, lists no claim of the job: only its positive word counts (I6)."""
    node = next((n for n in world.nodes.values() if n.slurm == job.node), None)
    return node is not None and node.ready and not (node.claims & job.claims)


def _one_job(jobs: Sequence[Job], claims: Sequence[SetClaim]) -> tuple[Job | None, tuple[Job, ...]]:
    """The job of the latest attempt that stays, and the living ones that must go (P2)."""
    living = [j for j in jobs if j.state is not JobState.ENDED]
    named = next((c.attempt.job for c in claims if c.attempt is not None and c.attempt.job is not None), None)
    if not living:
        return (max(jobs, key=lambda j: (j.identity.attempt, j.key)) if jobs else None), ()
    kept = surviving([(j.key, j.state is JobState.RUNNING) for j in living], named)
    return next(j for j in living if j.key == kept), tuple(j for j in living if j.key != kept)


def _without_job(
    pod: PodView, claims: tuple[SetClaim, ...], ended: Job | None, world: World, choose: Chooser
) -> tuple[Action, ...]:
    if any(c.view.allocated for c in claims):
        return _bare(pod, claims, ended)
    noted = claims[0].attempt
    planned = plan_hold(claims, world, choose)
    if isinstance(planned, NoPlan):
        return (Tell(pod, "NoLegalPlacement", planned.why),)
    number = _next_attempt(noted, ended)
    if noted is None or noted.number != number or not all(c.view.held for c in claims):
        return (Note(pod, claims, Attempt(pod.ref.uid, number)),)
    return (Submit(pod, claims, JobIdentity(pod.ref.uid, number), planned),)


def _next_attempt(noted: Attempt | None, ended: Job | None) -> int:
    """A new attempt for each job that Slurm ended; the noted one as long as no job of it was seen."""
    if noted is None:
        return 1 if ended is None else ended.identity.attempt + 1
    return noted.number if ended is None or ended.identity.attempt < noted.number else noted.number + 1


def _bare(pod: PodView, claims: tuple[SetClaim, ...], ended: Job | None) -> tuple[Action, ...]:
    """P9: committed claims without a job. Before the pod is bound the allocation is simply taken back."""
    if pod.node is None and not any(c.view.reserved_for for c in claims):
        return (TakeBack(claims, "Slurm ended the job that pays for it"),)
    if ended is not None and ended.ending is Ending.CANCELLED:
        return (EndPod(pod, "SlurmJobEnded", f"Slurm ended job {ended.key.job_id}, which pays for this pod"),)
    return (Tell(pod, "HoldLost", "no Slurm job pays for this pod at the moment"),)


def _with_job(
    pod: PodView, claims: tuple[SetClaim, ...], job: Job, world: World, choose: Chooser
) -> tuple[Action, ...]:
    allocated = [c for c in claims if c.view.allocated]
    if not allocated:
        return _commit(pod, claims, job, world, choose)
    if len(allocated) < len(claims):
        return (TakeBack(claims, "a set that lost one allocation loses all"),)
    if not all(_verified(c.view) for c in claims):
        return (Verify(pod, claims, job, world.footprints()),)
    if pod.gated:
        return (Ungate(pod),)
    if pod.node is not None:
        return _live(pod, claims, job, world)
    waits = pod.unschedulable_since
    if waits is not None and world.now - waits > PATIENCE_UNSCHEDULABLE:
        return (TakeBack(claims, "kube-scheduler cannot place the pod there"),)
    return ()


def _live(pod: PodView, claims: tuple[SetClaim, ...], job: Job, world: World) -> tuple[Action, ...]:
    """A bound pod: its job says what it has; a prepare that failed for good ends it, for a bound pod cannot move."""
    seen = [o for c in claims for o in outcomes(c.view, world.driver)]
    for outcome in seen:
        if outcome.final or (not outcome.prepared and world.now - outcome.since > PATIENCE_PREPARE):
            return (EndPod(pod, "PrepareFailed", outcome.message),)
    ready = [o for o in seen if o.prepared]
    if len(ready) < sum(len(c.view.devices_of(world.driver)) for c in claims):
        return ()
    text = f"Kubernetes pod {pod.ref}: " + ", ".join(_device_words(o.data) for o in ready)
    return (Describe(job, text),) if job.comment != text else ()


def _device_words(data: Mapping[str, Any]) -> str:
    """`1g.10gb at 6 of GPU-..., MIG-...`: no character that readers of squeue stumble on (case C-08)."""
    if "placement" not in data:
        return f"whole {data['gpuUUID']}"
    return f"{data['profile']} at {data['placement']['start']} of {data['gpuUUID']} {data['uuid']}"


def _commit(pod: PodView, claims: tuple[SetClaim, ...], job: Job, world: World, choose: Chooser) -> tuple[Action, ...]:
    node = next((n for n in world.nodes.values() if n.slurm == job.node), None)
    if node is None or not node.ready:
        why = "it is not managed" if node is None else node.why_not
        return (Tell(pod, "NodeNotReady", f"job {job.key.job_id} runs on {job.node}, but {why}"),)
    gpu = node.map.get(job.gpu.index) if job.gpu is not None else None
    if job.gpu is None or gpu is None:
        return (Cancel(job, f"Slurm gave a GPU that the device map of {node.name} does not know"),)
    choice = choose(claims, gpu, most=job.gpu.shards)
    if isinstance(choice, Choice):
        return (Commit(pod, claims, job, node.name, choice),)
    return (Cancel(job, f"no legal placement on GPU {job.gpu.index} of {node.name}: {choice.why}"),)


def _ending(pod: PodView, claims: tuple[SetClaim, ...]) -> tuple[Action, ...]:
    """The pod is over. Claims that cannot have been prepared are let go here, the others by their node's driver."""
    actions: list[Action] = []
    for claim in claims:
        if not claim.view.held:
            continue
        if pod.node is None and not claim.view.reserved_for:
            actions.append(LetGo(claim))
        elif not claim.view.allocated and not claim.view.released:
            actions.append(Release(claim))
    return tuple(actions)


def _verified(claim: ClaimView) -> bool:
    return names.VERIFIED in claim.annotations
