"""Carries out what `decide` decided: each action is a few writes, and each write may be the last before a crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from dynamig.bridge import decide
from dynamig.bridge.plan import Choice
from dynamig.bridge.world import Account, PodView, SetClaim
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimView
from dynamig.protocol.hold_note import Attempt, HoldNote, NotedDevice, hold_note
from dynamig.protocol.ports import SetObjects
from dynamig.protocol.seen import Found
from dynamig.protocol.slurm_jobs import HoldRequest, Job, Jobs, JobState
from dynamig.protocol.times import to_rfc3339

Footprints = Mapping[tuple[str, str], frozenset[tuple[str, int]]]
log = structlog.get_logger(__name__)


class Hands:
    """Effects of the bridge. `account`: who pays for a namespace; `wall`: seconds of the epoch."""

    def __init__(
        self,
        objects: SetObjects,
        jobs: Jobs,
        driver: str,
        account: Callable[[str], Account],
        wall: Callable[[], float],
    ) -> None:
        self._objects = objects
        self._jobs = jobs
        self._driver = driver
        self._account = account
        self._wall = wall

    def run(self, action: decide.Action) -> None:
        """The action was carried out. Raises Conflict or Unavailable where the next look must decide anew."""
        match action:
            case decide.Tell(pod, reason, message):
                self._objects.tell(pod.ref.namespace, pod.ref.name, pod.ref.uid, reason, message)
            case decide.Note(_, claims, attempt):
                for claim in claims:
                    self._objects.note(claim.view, {names.HOLD: HoldNote((), attempt).to_json()})
            case decide.Submit():
                self._submit(action)
            case decide.Describe(job, text):
                self._jobs.comment(job.key, text)
            case decide.Cancel(job, why):
                log.info("cancelled", job=job.key.job_id, why=why)
                self._jobs.cancel(job.key)
            case decide.Commit(pod, claims, job, node, choice):
                self._commit(pod, claims, job, node, choice)
            case decide.Verify():
                self._verify(action)
            case decide.Ungate(pod):
                ref = pod.ref
                self._objects.ungate(ref.namespace, ref.name, ref.uid)
            case decide.TakeBack(claims, why):
                log.info("taken_back", claims=[str(c.view.ref) for c in claims], why=why)
                for claim in claims:
                    if claim.view.allocated:
                        self._objects.deallocate(claim.view)
            case decide.LetGo(claim):
                view = claim.view
                self._objects.let_go(self._objects.deallocate(view) if view.allocated else view)
            case decide.Release(claim):
                self._objects.note(claim.view, {names.RELEASE: to_rfc3339(self._wall())})
            case decide.EndPod(pod, reason, message):
                self._objects.end(pod.ref.namespace, pod.ref.name, pod.ref.uid, reason, message)

    def _submit(self, action: decide.Submit) -> None:
        """Looked for by identity first: a late answer to an earlier submit must not make a twin (P2)."""
        if any(j.identity == action.identity and j.state is not JobState.ENDED for j in self._jobs.ours()):
            return
        account = self._account(action.pod.ref.namespace)
        key = self._jobs.submit(
            HoldRequest(
                identity=action.identity,
                admin_comment=action.identity.to_comment(
                    pod=str(action.pod.ref), claims=[c.view.ref.uid for c in action.claims]
                ),
                comment=f"Kubernetes pod {action.pod.ref}",
                nodes=action.plan.nodes,
                shards=action.plan.cost,
                cpus=1,
                memory=1,
                minutes=account.minutes,
                account=account.account,
                user=account.user,
                partition=account.partition,
                qos=account.qos,
            )
        )
        log.info("submitted", pod=str(action.pod.ref), job=key.job_id, nodes=action.plan.nodes, shards=action.plan.cost)

    def _commit(self, pod: PodView, claims: tuple[SetClaim, ...], job: Job, node: str, choice: Choice) -> None:
        """Finalizers and words first, then the allocation (P5); a crash between is finished by the next look."""
        for claim in claims:
            picks = [p for p in choice.picks if p.claim_uid == claim.view.ref.uid]
            devices = tuple(NotedDevice(p.pool, p.device, choice.gpu) for p in picks)
            note = HoldNote(devices, Attempt(pod.ref.uid, job.identity.attempt, job.key))
            noted = self._objects.note(claim.view, {names.NODE: node, names.HOLD: note.to_json()})
            results: list[dict[str, Any]] = [
                {"request": p.request, "driver": self._driver, "pool": p.pool, "device": p.device} for p in picks
            ]
            self._objects.allocate(noted, _allocation(results, node, self._wall()))
        log.info(
            "committed", pod=str(pod.ref), job=job.key.job_id, gpu=choice.gpu, devices=[p.device for p in choice.picks]
        )

    def _verify(self, action: decide.Verify) -> None:
        """P5: the job still runs and nobody else has a memory slice of ours. Overlap: the later set takes its back."""
        found = self._jobs.look(action.job.key)
        if not (isinstance(found, Found) and found.value.state is JobState.RUNNING):
            return
        ours = {c.view.ref.uid for c in action.claims}
        everybody = self._objects.all_held()
        mine = [c for c in everybody if c.ref.uid in ours]
        rivals = [c for c in everybody if c.ref.uid not in ours and self._overlap(c, mine, action.footprints)]
        if any(_comes_first(rival, mine) for rival in rivals):
            for claim in mine:
                self._objects.deallocate(claim)
        elif not rivals:
            for claim in mine:
                self._objects.note(claim, {names.VERIFIED: to_rfc3339(self._wall())})

    def _overlap(self, other: ClaimView, mine: list[ClaimView], footprints: Footprints) -> bool:
        """Whether they share a memory slice. A device of the same pool that is not published any more may share any."""
        theirs = _held_devices(other, self._driver)
        return any(
            _may_share(a, b, footprints) for claim in mine for a in _held_devices(claim, self._driver) for b in theirs
        )


def _allocation(results: list[dict[str, Any]], node: str, now: float) -> dict[str, Any]:
    """As kube-scheduler accepts it from outside: with a time stamp and a node selector, without reservation."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "allocationTimestamp": to_rfc3339(now),
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }


def _held_devices(claim: ClaimView, driver: str) -> set[tuple[str, str]]:
    """(pool, device) pairs that a claim has, allocated or still noted."""
    note = hold_note(claim)
    return {(d.pool, d.device) for d in claim.devices_of(driver)} | {
        (d.pool, d.device) for d in (note.devices if note else ())
    }


def _may_share(a: tuple[str, str], b: tuple[str, str], footprints: Footprints) -> bool:
    taken_a, taken_b = footprints.get(a), footprints.get(b)
    if taken_a is None or taken_b is None:
        return a[0] == b[0]
    return bool(taken_a & taken_b)


def _comes_first(rival: ClaimView, mine: list[ClaimView]) -> bool:
    """Verified, reserved or not ours to judge: it stays. Between two unverified the smaller UID stays."""
    if names.VERIFIED in rival.annotations or rival.reserved_for or not rival.held:
        return True
    return rival.ref.uid < min(c.ref.uid for c in mine)
