"""What to do next for a claim set that has devices: let its pods run, watch over them, and what if Slurm ends its job.

A claim whose job is gone is *bare* (P9): its instance lives, and only the prolog's loan keeps native jobs away. If
somebody meant it (scancel, time limit, preemption), its pods end; else the same GPU is held again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dynamig.bridge.actions import Action, Cancel, Describe, EndPod, Note, Submit, TakeBack, Tell, Ungate, Verify
from dynamig.bridge.plan import NoPlan, Plan, no_place_for, plan_again
from dynamig.bridge.sets import ClaimSet
from dynamig.bridge.world import NodeView, World
from dynamig.protocol import names
from dynamig.protocol.device_status import outcomes
from dynamig.protocol.hold_note import Attempt
from dynamig.protocol.slurm_jobs import TOP_PRIORITY, Ending, Job
from dynamig.protocol.slurm_text import slurm_text

PATIENCE_PREPARE = 600.0
"""Seconds that a prepare may fail for passing reasons before its pod is ended (P8)."""

PATIENCE_UNSCHEDULABLE = 30.0
"""Seconds that kube-scheduler may say Unschedulable of a committed pod before the allocation is taken back (P7)."""

PATIENCE_BARE = 300.0
"""Seconds that a claim may live without a job while its node takes jobs (P9)."""

PATIENCE_SUSPENDED = 60.0
"""Seconds in all that a pod's job may be suspended: nobody pays for them, and no time limit comes (case C-65)."""

LONGEST_GRACE = 30
"""Seconds that a pod has to end once its job is over, whatever it asks for (case C-65): nobody pays for them."""

SEEN_TWICE = 2.0
"""Seconds for which a job must be missing before that is believed."""

SLURM_SETTLES = 10.0
"""Seconds after a start of slurmctld in which a missing job proves nothing: seen missing, and back (26.05.5)."""


def decide(of: ClaimSet, job: Job, world: World) -> tuple[Action, ...]:
    """For a set with a running job."""
    if of.in_use and _suspended_for(of, job, world.now) > PATIENCE_SUSPENDED:
        return end_pods(of, names.HOLD_SUSPENDED, f"{_named(job)} was suspended for more than a minute in all")
    if job.suspended:
        why = f"{_named(job)} is suspended: the pod is ended once that makes a minute in all"
        return (Tell(of, names.HOLD_SUSPENDED, why),)
    if len(of.allocated) < len(of.claims):
        return () if of.in_use else (TakeBack(of, "a set that lost one allocation loses all"),)
    match _pays_here(of, job, world):
        case None:
            return ()
        case False if of.in_use or not of.claims:
            return (*_after(of, job), Cancel(job, "it does not pay for what the claims have"))
        case False:
            return (TakeBack(of, "its Slurm job does not pay for what the claims have"),)
        case True:
            return _paid(of, job, world)


def _after(of: ClaimSet, job: Job) -> tuple[Action, ...]:
    """The next attempt, noted before a job is cancelled: so that is never taken for somebody's scancel."""
    attempt = of.attempt
    if attempt is None or attempt.number > job.identity.attempt:
        return ()
    return (Note(of, replace(attempt, number=job.identity.attempt + 1, job=None)),)


def _suspended_for(of: ClaimSet, job: Job, now: float) -> float:
    """Seconds in all that the job was suspended. Any user may suspend her job and resume it, as often as she likes,
    and Slurm does it to gang-scheduled ones: it must not be a way to pay nothing.

    The suspension of now counts from when the pod was told of it at the earliest: clocks of two machines differ.
    """
    if job.suspended_since is None:
        return job.suspended_before
    told = of.pod.told
    seen = told.since if told is not None and told.reason == names.HOLD_SUSPENDED else now
    return job.suspended_before + max(now - max(seen, job.suspended_since), 0.0)


def _named(job: Job) -> str:
    return f"Slurm job {job.key.job_id}, which pays for this pod,"


def _pays_here(of: ClaimSet, job: Job, world: World) -> bool | None:
    """Whether the running job holds what the claims have (I5, I7); None where that is not known now."""
    node = world.node_of(job.node)
    if node is None:
        return None
    if of.gpu is None:
        return all(c.view.held_by_node in (node.name, None) for c in (*of.claims, *of.leans_on))
    if job.gpu is None and job.changed:
        return False
    if job.gpu is None or job.gpu.index is None or not node.map:
        return None
    enough = of.attempt is None or job.gpu.shards >= of.attempt.shards
    same_node = all(c.view.held_by_node == node.name for c in of.claims)
    return enough and same_node and node.map.get(job.gpu.index) == of.gpu


def _paid(of: ClaimSet, job: Job, world: World) -> tuple[Action, ...]:
    attempt = of.attempt
    if attempt is not None and (attempt.job != job.key or attempt.bare_since is not None):
        shards = attempt.shards if job.gpu is None else job.gpu.shards
        known = replace(attempt, number=job.identity.attempt, job=job.key, bare_since=None, shards=shards)
        return (Note(of, known),)
    if why := _fits_no_more(of, job, world):
        return (TakeBack(of, why),)
    if not of.verified:
        return (Verify(of, job, world.footprints()), *let_run(of))
    if gates := let_run(of):
        return gates
    if any(p.node is not None for p in of.pods):
        return _live(of, job, world)
    if of.allocated and _is_stranded(of, world):
        return (TakeBack(of, "kube-scheduler cannot place its pods there"),)
    return ()


def _fits_no_more(of: ClaimSet, job: Job, world: World) -> str:
    """Why its pod, which has our gate yet, cannot be where its devices are: it was narrowed, or the node was closed to
    it, since they were chosen. Empty if it can."""
    node = world.node_of(job.node)
    return no_place_for(of, node) if node is not None and let_run(of) and not of.in_use else ""


def _is_stranded(of: ClaimSet, world: World) -> bool:
    """Kube-scheduler has tried for long enough to place pods that are paid for, and found no node for any (P7).

    PodScheduled alone does not say how long: its time stays that of the gate (UpdatePodCondition, Kubernetes 1.37.2),
    and that of an earlier commit. So it counts from the last commit, and from when a pod was told that it is paid for.
    """
    if not of.unschedulable:
        return False
    told = [p.told for p in of.pods if not p.gated]
    since = [t.since if t is not None and t.reason == names.PAID else world.now for t in told]
    if of.attempt is not None and of.attempt.committed is not None:
        since.append(of.attempt.committed)
    return world.now - max(since) > PATIENCE_UNSCHEDULABLE


def let_run(of: ClaimSet) -> tuple[Action, ...]:
    """The pod whose set it is may be scheduled; nothing for one that may already, or for a hand-made claim."""
    return (Ungate(of.pod),) if of.of_one_pod and of.pod.gated else ()


def _live(of: ClaimSet, job: Job, world: World) -> tuple[Action, ...]:
    """Pods that are bound: their job says what it has; a prepare that failed for good ends them, for a bound pod cannot
    move; and so does an instance that is gone, as after a reset of its GPU: nobody prepares it for them again."""
    seen = [o for c in of.claims for o in outcomes(c.view, world.driver)]
    for outcome in seen:
        if outcome.final or (not outcome.prepared and world.now - outcome.since > PATIENCE_PREPARE):
            lost = outcome.reason == names.INSTANCE_LOST
            return end_pods(of, outcome.reason if lost else "PrepareFailed", outcome.message)
    ready = [o for o in seen if o.prepared]
    if len(ready) < sum(len(c.view.devices_of(world.driver)) for c in of.claims):
        return ()
    has = " and ".join(_device_words(o.data) for o in ready) or "no GPU of its own"
    text = slurm_text(f"Kubernetes pod {of.called}: {has}")
    return (Describe(job, text),) if job.comment != text else ()


def _device_words(data: Mapping[str, Any]) -> str:
    """`1g.10gb at 6 of GPU-... MIG-...`"""
    if "placement" not in data:
        return f"whole {data['gpuUUID']}"
    return f"{data['profile']} at {data['placement']['start']} of {data['gpuUUID']} {data['uuid']}"


# -- bare --------------------------------------------------------------------------------------------------------------


def bare(of: ClaimSet, job: Job | None, world: World) -> tuple[Action, ...]:
    """`job`: the one that is over, or the next one that waits; None if Slurm knows none."""
    if of.claims and not of.in_use:
        return (TakeBack(of, "the Slurm job that pays for it is over"),)
    waiting = job if job is not None and job.living else None
    if waiting is None and not of.in_use and _home(of) is None:
        return ()  # the claims that its pod leans on have no place now, and come first
    if waiting is None and job is not None and (why := _meant(of, job, world)):
        return end_pods(of, *why)
    node = world.nodes.get(_home(of) or "")
    if node is None or not _takes_jobs(node, world):
        return _clock_stands(of, waiting)
    return _hold_again(of, job, node, world) if waiting is None else _held_again(of, waiting, world)


def _takes_jobs(node: NodeView, world: World) -> bool:
    slurm = world.slurm_nodes.get(node.slurm)
    return slurm is not None and slurm.usable


def _clock_stands(of: ClaimSet, waiting: Job | None) -> tuple[Action, ...]:
    """While the node of the set takes no jobs: nothing that is asked of it could start."""
    shut = f"node {_home(of)} does not take jobs now"
    if waiting is None:
        why = f"its Slurm job is gone, and {shut}"
    else:
        why = f"Slurm job {waiting.key.job_id}, which is to pay for it again, waits: {shut}"
    return (Tell(of, "HoldLost", why), *_since(of, of.attempt, None))


def _meant(of: ClaimSet, ended: Job, world: World) -> tuple[str, str] | None:
    """Reason and words for a job that somebody meant to end. The bridge itself cancels one that ran elsewhere, and one
    after which it has noted another."""
    node = world.node_of(ended.node)
    if node is not None and node.name != _home(of):
        return None
    if of.attempt is not None and ended.identity.attempt < of.attempt.number:
        return None
    match ended.ending:
        case Ending.CANCELLED:
            return "SlurmJobCancelled", f"{_named(ended)} was cancelled"
        case Ending.EXPIRED:
            return "SlurmTimeLimit", f"{_named(ended)} reached its time limit"
        case Ending.PREEMPTED:
            return "SlurmPreempted", f"{_named(ended)} gave way to a more important one"
    return None


def _hold_again(of: ClaimSet, ended: Job | None, node: NodeView, world: World) -> tuple[Action, ...]:
    """Nobody meant it: slurmctld lost the job, or the node failed. The clock runs."""
    attempt = of.attempt
    if attempt is None:
        return (Submit(of, Attempt(of.uid, _last(ended) + 1), Plan((node.slurm,), 0)),)
    if attempt.bare_since is None:
        settled = ended is not None or world.now - world.slurm_started > SLURM_SETTLES
        return _since(of, attempt, world.now) if settled else ()
    waited = world.now - attempt.bare_since
    if waited > PATIENCE_BARE:
        return end_pods(of, "HoldLost", "its Slurm job is gone, and its GPU could not be held again")
    if ended is None and waited < SEEN_TWICE:
        return ()
    return _ask_again(of, attempt, ended, node, world)


def _ask_again(of: ClaimSet, attempt: Attempt, ended: Job | None, node: NodeView, world: World) -> tuple[Action, ...]:
    """A new attempt for a job that is over or lost; then a hold of the same GPU, above everything that waits."""
    if of.gpu is None:
        return (Tell(of, "HoldLost", "its Slurm job is gone, and the claim does not say which GPU it is on"),)
    last = max(attempt.number if attempt.job is not None else 0, _last(ended))
    if last >= attempt.number:
        return (Note(of, replace(attempt, number=last + 1, job=None)),)
    planned = plan_again(of, world, of.gpu, node, attempt.shards)
    if isinstance(planned, NoPlan):
        return (Tell(of, "HoldLost", f"its Slurm job is gone: {planned.why}"),)
    return (Submit(of, replace(attempt, priority=TOP_PRIORITY), planned),)


def _home(of: ClaimSet) -> str | None:
    """The Kubernetes node where the set lives, or is to live: where the claims are that its pod leans on."""
    own, others = ([c.view.held_by_node for c in claims] for claims in (of.claims, of.leans_on))
    nodes = (*own, *(p.node for p in of.pods), *others)
    return next((n for n in nodes if n is not None), None)


def _last(ended: Job | None) -> int:
    return 0 if ended is None else ended.identity.attempt


def _held_again(of: ClaimSet, job: Job, world: World) -> tuple[Action, ...]:
    """A new hold of a bare set that waits in Slurm. The clock runs."""
    attempt = of.attempt
    if attempt is not None and attempt.bare_since is None:
        return _since(of, attempt, world.now)
    since = None if attempt is None else attempt.bare_since
    if since is not None and world.now - since > PATIENCE_BARE:
        return (*end_pods(of, "HoldLost", f"Slurm job {job.key.job_id}, which is to pay for this pod, does not start"),)
    if not job.reason:
        return ()  # Slurm has not looked at it yet
    return (Tell(of, "HoldLost", f"Slurm job {job.key.job_id}, which is to pay for it again, waits: {job.reason}"),)


def _since(of: ClaimSet, attempt: Attempt | None, when: float | None) -> tuple[Action, ...]:
    return () if attempt is None or attempt.bare_since == when else (Note(of, replace(attempt, bare_since=when)),)


# -- words -------------------------------------------------------------------------------------------------------------


def end_pods(of: ClaimSet, reason: str, message: str) -> tuple[Action, ...]:
    pods = (pod for pod in of.pods if not pod.deleting)
    return tuple(EndPod(pod, reason, message, min(pod.grace, LONGEST_GRACE)) for pod in pods)


def hurry(of: ClaimSet, job: Job | None, world: World) -> tuple[Action, ...]:
    """Pods that somebody gave longer to end than their job, which is over now, pays for."""
    if job is None or job.living:
        return ()
    late = (p for p in of.leaving if p.ends_by is not None and p.ends_by - world.now > LONGEST_GRACE + 1)
    message = f"Slurm job {job.key.job_id}, which paid for this pod, is over"
    return tuple(EndPod(pod, "SlurmJobOver", message, LONGEST_GRACE) for pod in late)
