"""Carries out what `decide` decided: each action is a few writes, and each write may be the last before a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import structlog

from dynamig.bridge.accounts import NotPayable
from dynamig.bridge.actions import (
    Action,
    Cancel,
    Commit,
    Describe,
    Drain,
    EndPod,
    LetGo,
    Note,
    Publish,
    Release,
    Submit,
    TakeBack,
    Tell,
    Undrain,
    Ungate,
    Verify,
)
from dynamig.bridge.plan import Filler
from dynamig.bridge.sets import ClaimSet
from dynamig.bridge.world import Footprints
from dynamig.errors import Conflict, Refused
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimView
from dynamig.protocol.hold_note import HoldNote, NotedDevice, noted_devices
from dynamig.protocol.identity import JobIdentity, Purpose, Role
from dynamig.protocol.ports import SetObjects
from dynamig.protocol.seen import Found
from dynamig.protocol.slurm_jobs import TOP_PRIORITY, HoldRequest, Job, Jobs, JobState
from dynamig.protocol.slurm_text import slurm_text
from dynamig.protocol.times import to_rfc3339

log = structlog.get_logger(__name__)


class Hands:
    """Effects of the bridge. `wall`: seconds of the epoch."""

    def __init__(
        self,
        objects: SetObjects,
        jobs: Jobs,
        driver: str,
        wall: Callable[[], float],
    ) -> None:
        self._objects = objects
        self._jobs = jobs
        self._driver = driver
        self._wall = wall

    def run(self, action: Action) -> None:
        """The action was carried out. Raises Conflict or Unavailable where the next look must decide anew."""
        match action:
            case Tell(of, reason, message):
                self._tell(of, reason, message)
            case Note():
                self._note(action)
            case Submit():
                self._submit(action)
            case Describe(job, text):
                self._jobs.comment(job.key, text)
            case Publish(node, value):
                self._jobs.write_extra(node, names.EXTRA_KEY, value)
            case Drain(node, why):
                log.warning("draining", node=node, why=why)
                self._jobs.drain(node, why)
            case Undrain(node):
                log.info("undraining", node=node)
                self._jobs.undrain(node)
            case Cancel(job, why):
                log.info("cancelled", job=job.key.job_id, role=job.identity.role.value, why=why)
                self._jobs.cancel(job.key)
            case Commit():
                self._commit(action)
            case Verify():
                self._verify(action)
            case Ungate(pod):
                ref = pod.ref
                self._objects.ungate(ref.namespace, ref.name, ref.uid, pod.generation)
            case TakeBack(of, why):
                log.info("taken_back", pods=of.names, claims=[str(c.view.ref) for c in of.claims], why=why)
                for claim in of.allocated:
                    self._objects.deallocate(claim.view)
            case LetGo(claim):
                view = claim.view
                self._objects.let_go(self._objects.deallocate(view) if view.allocated else view)
            case Release(claim):
                self._objects.note(claim.view, {names.RELEASE: to_rfc3339(self._wall())})
            case EndPod(pod, reason, message, grace):
                log.info("ending_pod", pod=str(pod.ref), reason=reason, message=message)
                self._objects.end(pod.ref.namespace, pod.ref.name, pod.ref.uid, reason, message, grace)

    def _tell(self, of: ClaimSet, reason: str, message: str) -> None:
        for pod in of.pods:
            self._objects.tell(pod.ref.namespace, pod.ref.name, pod.ref.uid, reason, message)

    def _note(self, action: Note) -> None:
        gone = dict.fromkeys((names.NODE, names.RELEASE, names.VERIFIED)) if action.anew else {}
        for claim in action.of.claims:
            note = HoldNote(() if action.anew else claim.noted, action.attempt)
            self._objects.note(claim.view, {**gone, names.HOLD: note.to_json()})

    def _submit(self, action: Submit) -> None:
        """A job that is refused is the user's trouble, told on the pod; it is asked for again after a while."""
        try:
            self._submit_missing(action)
        except Refused as refused:
            log.warning("submit_refused", pods=action.of.names, code=refused.code, error=str(refused))
            self._tell(action.of, names.SLURM_REFUSED, str(refused))

    def _submit_missing(self, action: Submit) -> None:
        """Looked for by identity first: a late answer to an earlier submit must not make a twin (P2). Ballast goes
        before the hold, and above it: both start in the same cycle of Slurm's scheduler (tried, 26.05.5)."""
        there = set() if action.is_new else {j.identity for j in self._jobs.ours() if j.living}
        for request in self._requests(action):
            if request.identity not in there:
                key = self._jobs.submit(request)
                asked = request.purpose
                log.info(
                    "submitted",
                    pods=action.of.names,
                    job=key.job_id,
                    role=request.identity.role.value,
                    nodes=asked.nodes,
                    shards=asked.shards,
                )

    def _requests(self, action: Submit) -> Iterator[HoldRequest]:
        of, plan, attempt = action.of, action.plan, action.attempt
        payment = of.pod.payment
        if isinstance(payment, NotPayable):  # allowed once, when the job that is lost was submitted
            raise Refused(payment.reason, payment.why)
        hold = HoldRequest(
            purpose=Purpose(
                JobIdentity(of.uid, attempt.number),
                pod=of.called,
                claims=frozenset(c.view.ref.uid for c in of.claims),
                nodes=plan.nodes,
                shards=plan.cost,
                cpus=of.needs.cpus,
                memory=of.needs.memory,
            ),
            comment=slurm_text(f"Kubernetes pod {of.called}"),
            minutes=payment.minutes,
            account=payment.account,
            user=payment.user,
            partition=payment.partition,
            qos=payment.qos,
            priority=attempt.priority,
            nice=payment.nice,
        )
        for filler in plan.ballast:
            yield _ballast(hold, filler)
        yield hold

    def _commit(self, action: Commit) -> None:
        """Finalizers and words first, then the allocation (P5); a crash between is finished by the next look."""
        choice = action.choice
        for claim in action.of.claims:
            picks = [p for p in choice.picks if p.claim_uid == claim.view.ref.uid]
            devices = tuple(NotedDevice(p.pool, p.device, choice.gpu) for p in picks)
            note = HoldNote(devices, action.attempt).to_json()
            noted = self._objects.note(claim.view, {names.NODE: action.node, names.HOLD: note, names.VERIFIED: None})
            allocation = _allocation(choice.devices[claim.view.ref.uid], action.node, self._wall())
            self._objects.allocate(noted, allocation)
        log.info(
            "committed",
            pods=action.of.names,
            job=action.job.key.job_id,
            gpu=choice.gpu,
            devices=[p.device for p in choice.picks],
        )

    def _verify(self, action: Verify) -> None:
        """P5: the job still runs and nobody else has a memory slice of ours. Overlap: the later set takes its back.

        Raises: Conflict NOT_PAID, OVERLAP; Unavailable. Then nothing that builds on it may follow.
        """
        self._see_paying(action.job)
        ours = {c.view.ref.uid for c in action.of.claims}
        everybody = self._objects.all_held()
        mine = [c for c in everybody if c.ref.uid in ours]
        rivals = [c for c in everybody if c.ref.uid not in ours and self._overlap(c, mine, action.footprints)]
        if any(_comes_first(rival, mine) for rival in rivals):
            for claim in mine:
                self._objects.deallocate(claim)
        if rivals:
            named = ", ".join(str(rival.ref) for rival in rivals)
            raise Conflict("OVERLAP", f"{action.of.names}: {named} has memory slices of it too", "it is decided anew")
        for claim in mine:
            self._objects.note(claim, {names.VERIFIED: to_rfc3339(self._wall())})

    def _see_paying(self, job: Job) -> None:
        """The job runs and has what it had when that was decided on. Raises Conflict NOT_PAID."""
        found = self._jobs.look(job.key)
        if not (isinstance(found, Found) and found.value.state is JobState.RUNNING and not found.value.suspended):
            raise Conflict("NOT_PAID", f"job {job.key.job_id} is not seen running any more", "it is decided anew")
        if (found.value.node, found.value.gpu) != (job.node, job.gpu):
            raise Conflict("NOT_PAID", f"job {job.key.job_id} has something else by now", "it is decided anew")

    def _overlap(self, other: ClaimView, mine: list[ClaimView], footprints: Footprints) -> bool:
        """Whether they share a memory slice. A device of the same pool that is not published any more may share any."""
        theirs = _held_devices(other, self._driver)
        return any(
            _may_share(a, b, footprints) for claim in mine for a in _held_devices(claim, self._driver) for b in theirs
        )


def _ballast(hold: HoldRequest, filler: Filler) -> HoldRequest:
    """For a moment (P2): it ends by itself where nobody is left to end it. It takes the least processors and memory."""
    of = hold.purpose
    return replace(
        hold,
        purpose=Purpose(
            replace(of.identity, role=Role.BALLAST, part=filler.index),
            pod=of.pod,
            nodes=of.nodes,
            shards=filler.shards,
        ),
        comment=slurm_text(f"for a moment: makes room for {of.pod} on another GPU"),
        minutes=1,
        priority=TOP_PRIORITY,
    )


def _allocation(devices: Mapping[str, Any], node: str, now: float) -> dict[str, Any]:
    """As kube-scheduler accepts it from outside: with a time stamp and a node selector, without reservation."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "allocationTimestamp": to_rfc3339(now),
        "devices": dict(devices),
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }


def _held_devices(claim: ClaimView, driver: str) -> set[tuple[str, str]]:
    """(pool, device) pairs that a claim has, allocated or still noted."""
    has = {(d.pool, d.device) for d in claim.devices_of(driver)}
    return has | {(d.pool, d.device) for d in noted_devices(claim)}


def _may_share(a: tuple[str, str], b: tuple[str, str], footprints: Footprints) -> bool:
    taken_a, taken_b = footprints.get(a), footprints.get(b)
    if taken_a is None or taken_b is None:
        return a[0] == b[0]
    return bool(taken_a & taken_b)


def _comes_first(rival: ClaimView, mine: list[ClaimView]) -> bool:
    """Verified, reserved or not ours to judge: it stays. Between two unverified the smaller UID stays."""
    if rival.verified or rival.reserved_for or not rival.held:
        return True
    return rival.ref.uid < min(c.ref.uid for c in mine)
