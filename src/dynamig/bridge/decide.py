"""What to do next for one claim set: pure, from one picture of the world to a list of actions (PROTOCOL P1-P9).

Level-triggered: nothing is remembered between two looks; what was done is read back from pods, claims and jobs. Doing
the same again changes nothing. Where an action is refused because somebody changed the object, the next look decides
anew. Sets that are committed to devices are decided on in `committed`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from dynamig.bridge import committed
from dynamig.bridge.accounts import NotPayable
from dynamig.bridge.actions import (
    Action,
    Cancel,
    Commit,
    Decision,
    EndPod,
    LetGo,
    Note,
    Release,
    Submit,
    TakeBack,
    Tell,
    Verify,
)
from dynamig.bridge.drains import drains, sick
from dynamig.bridge.extra import publications
from dynamig.bridge.failures import Setback
from dynamig.bridge.news import news
from dynamig.bridge.plan import Choice, Chooser, NoPlan, Plan, no_place_for, plan_hold
from dynamig.bridge.sets import ClaimSet, claim_sets
from dynamig.bridge.world import NodeView, PodRef, SetClaim, World
from dynamig.protocol import names
from dynamig.protocol.hold_lifecycle import HoldState
from dynamig.protocol.hold_note import Attempt, NotedDevice
from dynamig.protocol.identity import Role, surviving
from dynamig.protocol.slurm_jobs import Ending, Job, JobState
from dynamig.protocol.times import to_rfc3339

BALLAST_SECONDS = 10.0
"""How long ballast may wait for the hold that it was submitted for."""

LONGEST_PREPARE = 90.0
"""Seconds after which a prepare that had begun is in its node's report: none begins for a claim that is being deleted
or was released, one that had begun ends within the kubelet's 45 s, and reports come every 10 s."""

STARTS_AT_ONCE = 3.0
"""Seconds that Slurm may take to start a job that can start: 0.1 to 1 on an idle controller (26.05.5)."""

PATIENCE_REFUSED = 30.0
"""Seconds until a job that Slurm refused is submitted again: an account or QOS may have been made meanwhile."""

PATIENCE_PENDING = 30.0
"""Seconds that a hold waits where it should have started at once, before other nodes are asked for."""

COMMITS = 3
"""Times that a set is committed to one job (P7); then another node is asked for."""

BACK_OFF = 4.0
"""Seconds before the third commit to one job; the second comes after one, a fourth would come after its square."""

REST = 600.0
"""Seconds from the last commit until another node is asked for, once kube-scheduler could place no pod on any."""

PATIENCE_CHANGED = 30.0
"""Seconds from its submit until a hold that somebody changed is asked for anew: where every one is changed, as by a
site's own script, that must not go round all the time."""

CAN_MOVE = ("Resources", "Priority", "ReqNodeNotAvail")
"""Slurm's reasons that another node may cure. Limits of accounts and QOS hold everywhere."""

Setbacks = Callable[[str, Action], Setback | None]
"""What is known of earlier failures of such an action for a subject."""


def no_setbacks(_subject: str, _action: Action) -> None:
    return None


def decide(world: World, chooser: Callable[[World], Chooser], setbacks: Setbacks = no_setbacks) -> Iterator[Decision]:
    """One look: for each set, then for each job, for each node, and words to pods; what one set was given counts as
    taken for the next. A decision with an action that is not tried again yet waits as a whole, and takes nothing."""
    sets, ended, said = claim_sets(world), set[PodRef](), list[Tell]()
    for of in sets:
        if not ended.isdisjoint(p.ref for p in of.pods):
            continue
        actions = decide_set(of, world, chooser(world))
        decision = Decision(of.uid, tuple(a for a in actions if not isinstance(a, Tell)))
        met = _met(decision, setbacks)
        said += (*_failing(of, met), *(a for a in actions if isinstance(a, Tell)))
        if not any(setback.waits for setback in met):
            yield decision
            world = _after(world, actions)
            ended |= {a.pod.ref for a in actions if isinstance(a, EndPod)}
    by_uid = {of.uid: of for of in sets}
    of_jobs = (
        Decision(f"job {job.key.job_id}", decide_job(job, by_uid.get(job.identity.set_uid), world))
        for job in world.jobs
    )
    of_nodes = (Decision(f"node {action.node}", (action,)) for action in (*publications(world), *drains(world)))
    of_pods = (Decision(tell.of.uid, (tell,)) for tell in news(said))
    yield from (d for d in (*of_jobs, *of_nodes, *of_pods) if not any(s.waits for s in _met(d, setbacks)))


def _met(decision: Decision, setbacks: Setbacks) -> list[Setback]:
    known = (setbacks(decision.subject, action) for action in decision.actions)
    return [setback for setback in known if setback is not None]


def _failing(of: ClaimSet, met: Sequence[Setback]) -> list[Tell]:
    """Words to pods that wait. Those that run need not know that a comment in squeue cannot be written."""
    waiting = replace(of, pods=tuple(p for p in of.pods if p.gated))
    return [Tell(waiting, "ActionFailed", setback.words) for setback in met if setback.words and waiting.pods]


def decide_set(of: ClaimSet, world: World, choose: Chooser) -> tuple[Action, ...]:
    if of.foreign:
        return ()
    if not of.over and of.missing:
        return (Tell(of, "WaitingForClaims", of.missing),) if of.pod.gated else ()
    job, extra = one_job(world.holds_of(of.uid), of)
    twins = () if of.over else tuple(Cancel(j, "another job holds the same set") for j in extra)
    actions = (*twins, *_in_state(of, job, world, choose), *sick(of, world))
    return tuple(a for a in actions if not (isinstance(a, Submit) and _just_refused(of, world.now)))


def _just_refused(of: ClaimSet, now: float) -> bool:
    told = of.pod.told
    return told is not None and told.reason == names.SLURM_REFUSED and now - told.since < PATIENCE_REFUSED


def _in_state(of: ClaimSet, job: Job | None, world: World, choose: Chooser) -> tuple[Action, ...]:
    match of.state(job), job:
        case HoldState.PENDING, Job() as waiting:
            return _pending(of, waiting, world, choose)
        case HoldState.RUNNING, Job() as running:
            return _running(of, running, world, choose)
        case ((HoldState.COMMITTED | HoldState.VERIFIED | HoldState.LIVE), Job() as paying):
            decided = committed.decide(of, paying, world)
            return decided if any(isinstance(a, EndPod) for a in decided) else (*decided, *_paid(of, paying, world))
        case HoldState.BARE, _:
            return committed.bare(of, job, world)
        case ((HoldState.ENDING | HoldState.RELEASED), _):
            return (*committed.hurry(of, job, world), *_ending(of, world))
        case _:
            return _planned(of, job, world, choose)


def _paid(of: ClaimSet, job: Job, world: World) -> tuple[Action, ...]:
    """Good news for pods that may run; but those whose devices a driver that fell silent has yet to make, wait."""
    pods = tuple(p for p in of.pods if not p.gated)
    if not (of.verified and pods) or job.suspended:
        return ()
    paid, node = f"Slurm job {job.key.job_id} on node {job.node} pays for it", world.node_of(job.node)
    unmade = any(not claim.view.devices_status for claim in of.claims)
    if node is not None and not node.fresh and unmade:
        return (Tell(replace(of, pods=pods), names.NODE_NOT_READY, f"{paid}, but {node.why_not}"),)
    return (Tell(replace(of, pods=pods), names.PAID, paid),)


def decide_job(job: Job, of: ClaimSet | None, world: World) -> tuple[Action, ...]:
    """Ballast that has done its work, and holds whose set is over or unknown (P4)."""
    if not job.living:
        return ()
    if job.identity.role is Role.BALLAST:
        return (Cancel(job, "ballast is not needed any more"),) if _is_done(job, world) else ()
    if of is not None and not of.over:
        return ()
    if any(c.view.held for c in world.claims_noted_for(job.identity.set_uid)):
        return ()
    if not job.ran or not job.purpose.claims:
        return (Cancel(job, "its pod is gone"),)
    return (Cancel(job, "its pod is gone and the node reports the hardware empty"),) if _is_empty(job, world) else ()


def _is_empty(job: Job, world: World) -> bool:
    """The node's driver, reporting now, lists no claim of the job: only its positive word counts (I6), or an
    administrator's, that the node is powered off. Where two say that they are that node, the word of both."""
    nodes = () if job.node is None else world.of_slurm().get(job.node, ())
    return bool(nodes) and all(n.gone or (n.fresh and not (n.claims & job.purpose.claims)) for n in nodes)


def _is_done(ballast: Job, world: World) -> bool:
    """Its hold does not wait any more, or has waited long enough. A hold that is not there yet may be on its way."""
    holds = [j for j in world.holds_of(ballast.identity.set_uid) if j.identity.attempt == ballast.identity.attempt]
    waits = not holds or any(j.state is JobState.PENDING for j in holds)
    return not waits or world.now - ballast.submitted > BALLAST_SECONDS


def one_job(jobs: Sequence[Job], of: ClaimSet) -> tuple[Job | None, tuple[Job, ...]]:
    """The job that stays, and the living ones that must go (P2): only the latest attempt counts."""
    noted = [c.attempt for c in of.claims if c.attempt is not None]
    named = next((a.job for a in noted if a.job is not None), None)
    living = [j for j in jobs if j.living]
    if not living:
        return max(jobs, key=lambda j: (j.identity.attempt, j.key == named, j.key), default=None), ()
    latest = max(j.identity.attempt for j in living)
    kept = surviving(
        [(j.key, j.state is JobState.RUNNING) for j in living if j.identity.attempt == latest or j.key == named], named
    )
    return next(j for j in living if j.key == kept), tuple(j for j in living if j.key != kept)


# -- no job ------------------------------------------------------------------------------------------------------------


def _planned(of: ClaimSet, ended: Job | None, world: World, choose: Chooser) -> tuple[Action, ...]:
    if isinstance(payment := of.pod.payment, NotPayable):
        return (Tell(of, payment.reason, payment.why),)
    if of.of_one_pod and of.pod.waits_for_others:
        gates = ", ".join(of.pod.other_gates)
        return (Tell(of, names.OTHER_GATES, f"Slurm is asked once its other scheduling gates are gone: {gates}"),)
    if wait := _not_yet(of, world):
        return wait
    noted = of.attempt
    attempt = _next_attempt(of, noted, ended)
    if (why := _scancelled(noted, ended)) is not None:
        return committed.end_pods(of, "SlurmJobCancelled", why)
    planned = plan_hold(of, world, choose, excluded=attempt.excluded)
    if isinstance(planned, NoPlan):
        return (Tell(of, "NoLegalPlacement", planned.why),)
    if _was_tried(planned, attempt, world) and _rests(of, attempt, world):
        tried, when = ", ".join(attempt.excluded), to_rfc3339(int((attempt.committed or 0.0) + REST))
        why = f"kube-scheduler cannot place the pod on {tried}: one is tried again at {when}, or for a new pod"
        return (Tell(of, "Unschedulable", why),)
    is_noted = not of.claims or (noted == attempt and all(c.view.held for c in of.claims))
    if is_noted:
        return (Submit(of, attempt, planned),)
    return (Note(of, attempt, of.never_prepared), Submit(of, attempt, planned, is_new=True))


def _not_yet(of: ClaimSet, world: World) -> tuple[Action, ...]:
    """Hand-made claims that the pod leans on come first; and what an earlier use of one left must be gone: it may have
    been prepared, and is not committed again before its node has let go of it (P3), or is known never to have had it.
    """
    for claim in of.leans_on:
        if not claim.view.allocated or not claim.view.verified:
            return (Tell(of, "WaitingForClaims", f"claim {claim.view.ref.name} has no device yet"),)
    for claim in of.claims:
        used = claim.made_for is None and claim.view.held and bool(claim.noted)
        if used or claim.view.released or claim.view.deleting:
            told = Tell(of, "WaitingForClaims", f"claim {claim.view.ref.name} is still being let go by its node")
            return (told, *_end_use(claim, world))
    return ()


def _end_use(claim: SetClaim, world: World) -> tuple[Action, ...]:
    """Its node is to let go of it; where it was taken back before any pod was bound, no node ever knew of it."""
    if not (claim.view.released or claim.view.deleting):
        return (Release(claim),)
    return (LetGo(claim),) if claim.view.held and _is_nowhere(claim, world) else ()


def _next_attempt(of: ClaimSet, noted: Attempt | None, ended: Job | None) -> Attempt:
    """A new one for each job that Slurm ended; the noted one as long as no job of it was seen."""
    last = 0 if ended is None else ended.identity.attempt
    if noted is None or noted.set_uid != of.uid:
        return Attempt(of.uid, last + 1)
    if last < noted.number:
        return noted
    return Attempt(of.uid, last + 1, excluded=noted.excluded, committed=noted.committed)


def _was_tried(planned: Plan, attempt: Attempt, world: World) -> bool:
    """Whether kube-scheduler could not place the pods there before; no other node can serve them now."""
    nodes = (world.node_of(name) for name in planned.nodes)
    return any(n is not None and n.name in attempt.excluded for n in nodes)


def _rests(of: ClaimSet, attempt: Attempt, world: World) -> bool:
    """Whether the last try is not long ago, and no pod is new since: others have the shards meanwhile."""
    last = attempt.committed
    return last is not None and world.now - last < REST and all(p.created <= last for p in of.pods)


def _scancelled(noted: Attempt | None, ended: Job | None) -> str | None:
    """Words for a hold that somebody cancelled: we cancel one only after the next attempt was noted."""
    if ended is None or ended.ending is not Ending.CANCELLED or noted is None or ended.identity.attempt < noted.number:
        return None
    return f"Slurm job {ended.key.job_id}, which was to pay for this pod, was cancelled"


# -- a job that waits --------------------------------------------------------------------------------------------------


def _pending(of: ClaimSet, job: Job, world: World, choose: Chooser) -> tuple[Action, ...]:
    """It waits with Slurm's reason, and is asked for anew where it could start now and Slurm does not know it."""
    if job.held:
        number = job.key.job_id
        why = f"Slurm job {number}, which is to pay for this pod, is held ({job.reason}): scontrol release {number}"
        return (Tell(of, names.HOLD_HELD, why),)
    if job.changed:
        return _changed(of, job, world)
    if why := _astray(of, _of_nodes(job, world)):
        return _instead(of, job, why)
    tell = Tell(of, "SlurmPending", f"Slurm job {job.key.job_id} waits: {job.reason or 'queued'}")
    if world.now - job.submitted < STARTS_AT_ONCE:
        return (tell,)
    stuck = _of_nodes(job, world) if _is_stuck(job, world) else ()
    noted = of.attempt or Attempt(of.uid, job.identity.attempt)
    better = plan_hold(of, world, choose, excluded=noted.excluded, stuck=stuck)
    if isinstance(better, NoPlan) or not _moves(job, better, world) or _was_tried(better, noted, world):
        return (tell,)
    return (tell, *_instead(of, job, f"it can start on {', '.join(better.nodes)}"))


def _changed(of: ClaimSet, job: Job, world: World) -> tuple[Action, ...]:
    """Nothing is committed to a hold that asks for less than its set needs: it would be paid for by nobody."""
    why = f"somebody changed Slurm job {job.key.job_id}, which is to pay for this pod: it asks for {job.changed}"
    told = Tell(of, names.HOLD_CHANGED, f"{why}. It is asked for anew")
    return (told, *_instead(of, job, why)) if world.now - job.submitted > PATIENCE_CHANGED else (told,)


def expects_a_start(world: World) -> bool:
    """Whether Slurm may start a hold of ours any moment now: one that was submitted just now."""
    return any(j.state is JobState.PENDING and world.now - j.submitted < STARTS_AT_ONCE for j in world.jobs)


def _is_stuck(job: Job, world: World) -> bool:
    return job.reason.startswith(CAN_MOVE) and world.now - job.submitted > PATIENCE_PENDING


def _of_nodes(job: Job, world: World) -> tuple[str, ...]:
    return tuple(n.name for n in world.nodes.values() if n.slurm in job.purpose.nodes)


def _moves(job: Job, better: Plan, world: World) -> bool:
    """Whether a plan that starts now asks for something else than the job does. Ballast that did not help is not tried
    again for a while."""
    if better.choice is None:
        return False
    same = better.cost == job.purpose.shards and set(better.nodes) <= set(job.purpose.nodes)
    return not same or (bool(better.ballast) and world.now - job.submitted > PATIENCE_PENDING)


def _instead(
    of: ClaimSet, job: Job, why: str, *, not_on: str | None = None, wrong_pick: bool = False, anew: bool = False
) -> tuple[Action, ...]:
    """Another attempt takes the job's place, and its place in the queue unless it had its turn in vain (`not_on`).
    Noted first, so that what ends the job can never look like somebody's scancel."""
    excluded = () if of.attempt is None else of.attempt.excluded
    if not_on is not None:
        excluded = (*(n for n in excluded if n != not_on), not_on)
    following = Attempt(
        of.uid,
        job.identity.attempt + 1,
        priority=job.priority + 1 if job.priority and not_on is None else None,
        excluded=excluded,
        committed=None if of.attempt is None else of.attempt.committed,
    )
    return (Note(of, following, anew or of.never_prepared), Cancel(job, why, wrong_pick))


def _astray(of: ClaimSet, nodes: Collection[str]) -> str:
    """Why a job on these nodes is of no use to a pod that has no device yet: a claim that it leans on is not there. It
    was taken back meanwhile, and gets another place."""
    gone = (c.view for c in of.leans_on if c.view.held_by_node not in nodes)
    return next((f"claim {c.ref.name} is on {c.held_by_node or 'no node'} now" for c in gone), "")


# -- a job that runs ---------------------------------------------------------------------------------------------------


def _running(of: ClaimSet, job: Job, world: World, choose: Chooser) -> tuple[Action, ...]:
    node = world.node_of(job.node)
    if node is None or not node.ready:
        why = "it is not managed" if node is None else node.why_not
        return (Tell(of, names.NODE_NOT_READY, f"job {job.key.job_id} runs on {job.node}, but {why}"),)
    if job.changed:
        return _changed(of, job, world)
    if leaves := _leaves(of, job, node, world):
        return leaves
    if wait := _not_yet(of, world):
        return wait
    if not of.claims:
        return committed.let_run(of)
    if job.gpu is None:
        return (Tell(of, "SlurmPending", f"Slurm job {job.key.job_id} runs, and Slurm does not say what it has"),)
    if job.gpu.index is None:
        why = f"Slurm counts the shards of {job.node} without saying on which GPU: gres.conf needs a File for each"
        return (Tell(of, "NoGpuIndex", why), *_instead(of, job, why))
    gpu = node.map.get(job.gpu.index)
    if gpu is None:
        why = f"the device map of {node.name} does not know GPU {job.gpu.index}, which Slurm gave"
        return _instead(of, job, why, wrong_pick=True)
    choice = choose(of, gpu, most=job.gpu.shards)
    if not isinstance(choice, Choice):
        why = f"no legal placement on GPU {job.gpu.index} of {node.name}: {choice.why}"
        return _instead(of, job, why, wrong_pick=True)
    return _commit(of, job, node, choice, world)


def _commit(of: ClaimSet, job: Job, node: NodeView, choice: Choice, world: World) -> tuple[Action, ...]:
    """At most COMMITS times to one job, ever more slowly (P7): kube-scheduler may have cleared the allocation."""
    noted = of.attempt or Attempt(of.uid, job.identity.attempt)
    if noted.committed is not None and world.now - noted.committed < BACK_OFF ** (noted.commits - 1):
        return ()
    if noted.commits >= COMMITS:
        return _elsewhere(of, job, node)
    paying = replace(
        noted,
        number=job.identity.attempt,
        job=job.key,
        shards=0 if job.gpu is None else job.gpu.shards,
        commits=noted.commits + 1,
        committed=world.now,
    )
    return (Commit(of, job, paying, node.name, choice), Verify(of, job, world.footprints()), *committed.let_run(of))


def _leaves(of: ClaimSet, job: Job, node: NodeView, world: World) -> tuple[Action, ...]:
    """What ends a job that is of no use to the set where it runs."""
    if why := no_place_for(of, node):
        return _instead(of, job, f"{node.name}: {why}")
    if why := _astray(of, (node.name,)):
        return _instead(of, job, why)
    if of.attempt is not None and of.attempt.number > job.identity.attempt and node.name in of.attempt.excluded:
        return (Cancel(job, f"another node than {node.name} was asked for since"),)  # noted, and then not cancelled
    return _elsewhere(of, job, node, anew=True) if _is_left(of, node, world) else ()


def _is_left(of: ClaimSet, node: NodeView, world: World) -> bool:
    """Whether a hand-made claim has lost its devices on the node because kube-scheduler cannot place its pods, and is
    known to be on no hardware. One commit is enough here, where a generated claim has COMMITS: it takes as long."""
    if of.of_one_pod or not of.unschedulable:
        return False
    views = [c.view for c in of.claims]
    here = all(v.held and v.released and not v.deleting and v.held_by_node == node.name for v in views)
    return here and all(_is_nowhere(c, world) for c in of.claims)


def _elsewhere(of: ClaimSet, job: Job, node: NodeView, *, anew: bool = False) -> tuple[Action, ...]:
    why = f"kube-scheduler cannot place the pod on {node.name}"
    told = f"{why}: {of.scheduler_says}" if of.scheduler_says else why
    return (Tell(of, "Unschedulable", told), *_instead(of, job, why, not_on=node.name, anew=anew))


# -- over --------------------------------------------------------------------------------------------------------------


def _ending(of: ClaimSet, world: World) -> tuple[Action, ...]:
    """What cannot have been prepared, or is gone with its node, is let go here; the rest by its node's driver (P3)."""
    actions: list[Action] = []
    for claim in (c for c in of.claims if c.view.held):
        if not claim.view.reserved_for and (of.never_bound or _is_nowhere(claim, world)):
            actions.append(LetGo(claim))
        elif claim.view.allocated and not claim.view.reserved_for and not (claim.made_for and claim.view.deleting):
            actions.append(TakeBack(replace(of, claims=(claim,)), "no pod uses it any more"))
        elif not (claim.view.allocated or claim.view.released or claim.view.deleting):
            actions.append(Release(claim))  # a claim that is being deleted needs no word
    return tuple(actions)


def _is_nowhere(claim: SetClaim, world: World) -> bool:
    """Whether nothing of the claim can be on any hardware: it never had a device, its node is powered off, or its node
    was never asked to prepare it, and says so long after the last prepare that could have begun."""
    node = world.nodes.get(claim.view.held_by_node or "")
    if not claim.noted and not claim.view.allocated:
        return True
    if node is None or node.gone:
        return node is not None
    barred = claim.barred_since
    if claim.view.allocated or barred is None:
        return False
    return node.reported - barred > LONGEST_PREPARE and claim.view.ref.uid not in node.claims


def _after(world: World, actions: Sequence[Action]) -> World:
    """The picture for the next set: what this one was given is taken."""
    for action in actions:
        match action:
            case Submit(_, _, Plan(nodes, cost, Choice() as choice), _):
                world = world.promising(devices_of(choice), nodes[0], cost)
            case Commit(_, job, _, _, choice) if job.node is not None:
                world = world.promising(devices_of(choice), job.node, 0)
    return world


def devices_of(choice: Choice) -> dict[str, tuple[NotedDevice, ...]]:
    """By claim UID."""
    found: dict[str, tuple[NotedDevice, ...]] = {}
    for pick in choice.picks:
        noted = NotedDevice(pick.pool, pick.device, choice.gpu)
        found[pick.claim_uid] = (*found.get(pick.claim_uid, ()), noted)
    return found
