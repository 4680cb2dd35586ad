"""Claim sets (PROTOCOL P1): what is paid for by one Slurm job. Pure, from one picture of the world.

The claims that Kubernetes made for one pod are a set. A claim that somebody made by hand may serve several pods: it is
a set of its own, held first and paying for its GPU only; each pod that uses it pays cpu and memory in its own set, on
the node where the claim is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dynamig.bridge.needs import LEAST, Needs
from dynamig.bridge.world import PodView, SetClaim, World
from dynamig.mig import GpuUuid
from dynamig.protocol.hold_lifecycle import HoldFacts, HoldState, hold_state
from dynamig.protocol.hold_note import Attempt
from dynamig.protocol.slurm_jobs import Job
from dynamig.protocol.slurm_text import listed

CLAIMS_ARE_MADE = 10.0
"""Seconds after which a pod's claims have been made, unless something is in the way."""


@dataclass(frozen=True, slots=True)
class ClaimSet:
    """`uid`: the pod's, or that of a claim made by hand. `pods`: those alive that use it, oldest first; none when it is
    over. `leans_on`: hand-made claims of its pod, which have sets of their own. `missing`: why it is not complete.
    `never_bound`: its pod is there and has no node, so nothing of it can have been prepared (P3). `leaving`: pods that
    are being deleted and have not ended."""

    uid: str
    pods: tuple[PodView, ...]
    claims: tuple[SetClaim, ...]
    needs: Needs = LEAST
    leans_on: tuple[SetClaim, ...] = ()
    missing: str = ""
    never_bound: bool = False
    leaving: tuple[PodView, ...] = ()

    @property
    def pod(self) -> PodView:
        """The pod whose set it is, or the first that uses it; only for sets that are not over."""
        return self.pods[0]

    @property
    def over(self) -> bool:
        return not self.pods

    @property
    def foreign(self) -> bool:
        """Nothing of it was ever gated or held: its pods were there before their namespace was Slurm's."""
        held = any(c.view.held for c in (*self.claims, *self.leans_on))
        return not (self.over or held or any(p.gated for p in self.pods))

    @property
    def of_one_pod(self) -> bool:
        return not self.over and self.uid == self.pod.ref.uid

    @property
    def names(self) -> str:
        """Its pods, for people."""
        return ", ".join(str(p.ref) for p in self.pods)

    @property
    def called(self) -> str:
        """Its pods in Slurm, where there is room for few."""
        return listed([str(p.ref) for p in self.pods])

    @property
    def attempt(self) -> Attempt | None:
        """Which Slurm job is to pay, as its claims say; None without claims, or before the first note."""
        return self.claims[0].attempt if self.claims else None

    @property
    def gpu(self) -> GpuUuid | None:
        """Where the devices are that its claims have, or last had: all on one GPU."""
        return next((d.gpu for c in self.claims[:1] for d in c.noted), None)

    @property
    def allocated(self) -> tuple[SetClaim, ...]:
        return tuple(c for c in self.claims if c.view.allocated)

    @property
    def committed(self) -> bool:
        """Whether its pods may be running: it has devices, or it needs none and its pod is not gated any more."""
        return bool(self.allocated) if self.claims else not self.pod.gated

    @property
    def in_use(self) -> bool:
        """Whether something of it may be prepared: then no allocation is taken back."""
        return any(p.node is not None for p in self.pods) or any(c.view.reserved_for for c in self.claims)

    @property
    def never_prepared(self) -> bool:
        """Whether nothing of it is on any hardware or can come there, whatever its claims were to have before (P3):
        they have no devices, and were made for a pod that was never bound. Others may have those places."""
        return self.of_one_pod and self.never_bound and not (self.allocated or self.in_use)

    @property
    def unschedulable(self) -> bool:
        """Whether kube-scheduler finds no node for any of its pods that it may place. Gated ones do not count: they go
        where the claims go."""
        free = [p for p in self.pods if not p.gated]
        return bool(free) and not self.in_use and all(p.unschedulable is not None for p in free)

    @property
    def scheduler_says(self) -> str:
        """Why kube-scheduler finds no node, in its words for the first of its pods; empty if it says nothing."""
        return next((p.unschedulable for p in self.pods if p.unschedulable), "")

    def state(self, job: Job | None) -> HoldState:
        return hold_state(
            HoldFacts(
                over=self.over,
                held=any(c.view.held for c in self.claims),
                job=None if job is None else job.state,
                devices=not self.over and self.committed,
                verified=self.verified,
                in_use=self.in_use,
            )
        )

    @property
    def verified(self) -> bool:
        return all(c.view.allocated and c.view.verified for c in self.claims)


def claim_sets(world: World) -> tuple[ClaimSet, ...]:
    """All of them, in the order in which they are served: hand-made claims first, then by the age of their pods."""
    by_name = {(c.view.ref.namespace, c.view.ref.name): c for c in world.claims.values()}
    pods = sorted(world.pods.values(), key=lambda p: (p.created, p.ref))
    users: dict[str, list[PodView]] = {}
    leaving: dict[str, list[PodView]] = {}
    of_pods: list[ClaimSet] = []
    for pod in pods:
        found = [by_name.get((pod.ref.namespace, name)) for name in pod.claims]
        claims = tuple(c for c in found if c is not None)
        by_hand = tuple(c for c in claims if c.made_for is None)
        if not (pod.over or pod.waits_for_others):
            for claim in by_hand:
                (leaving if pod.deleting else users).setdefault(claim.view.ref.uid, []).append(pod)
        absent = [name for name, claim in zip(pod.claims, found, strict=True) if claim is None]
        missing = _not_its_own(pod, claims) or _missing(pod, absent, world.now)
        of_pods.append(_of_pod(pod, claims, by_hand, missing))
    return (*_by_hand(world, users, leaving), *of_pods, *_orphans(world, {s.uid for s in of_pods}))


def _not_its_own(pod: PodView, claims: Iterable[SetClaim]) -> str:
    """Why the pod cannot have claims that were made for other pods: they end with those, and so does what is paid for
    them. Empty if it names none."""
    others = [c.view.ref.name for c in claims if c.made_for not in (None, pod.ref.uid)]
    if not others:
        return ""
    return (
        f"ResourceClaim {', '.join(others)} was made for another pod and ends with it: what pods share is a claim that "
        "somebody made by hand (kind ResourceClaim), named in resourceClaimName of each. Make a new pod"
    )


def _missing(pod: PodView, absent: Sequence[str], now: float) -> str:
    """Why not all claims of the pod are there, for its user; empty if they are. Kubernetes' controller makes those of a
    pod in their order and stops at the first that fails (k8s.io/kubernetes v1.37.2, resourceclaim/controller.go)."""
    if not pod.unmade and not absent:
        return ""
    if now - pod.created < CLAIMS_ARE_MADE:
        return "its resource claims are being made"
    where, said = pod.ref.namespace, list[str]()
    if absent:
        said.append(f"there is no ResourceClaim {', '.join(absent)} in namespace {where}")
    if pod.unmade:
        templates = ", ".join(dict.fromkeys(pod.unmade))
        said.append(
            f"Kubernetes has not made its claim from ResourceClaimTemplate {templates}: usually there is none of that "
            f"name in namespace {where} (kubectl -n {where} get resourceclaimtemplates), else the pod's event "
            "FailedResourceClaimCreation says why"
        )
    return "; ".join(said)


def _of_pod(pod: PodView, claims: Iterable[SetClaim], by_hand: tuple[SetClaim, ...], missing: str) -> ClaimSet:
    alive = not (pod.deleting or pod.over)
    return ClaimSet(
        uid=pod.ref.uid,
        pods=(pod,) if alive else (),
        claims=tuple(c for c in claims if c.made_for == pod.ref.uid),
        needs=pod.needs,
        leans_on=by_hand,
        missing=missing,
        never_bound=pod.node is None,
        leaving=(pod,) if pod.deleting and not pod.over else (),
    )


def _by_hand(world: World, users: Mapping[str, list[PodView]], leaving: Mapping[str, list[PodView]]) -> list[ClaimSet]:
    """Of hand-made claims that are used, or were and are still held."""
    return [
        ClaimSet(uid := claim.view.ref.uid, tuple(users.get(uid, ())), (claim,), leaving=tuple(leaving.get(uid, ())))
        for claim in sorted(world.claims.values(), key=lambda c: c.view.ref)
        if claim.view.ref.uid in users or (claim.made_for is None and _noted_for(claim) == claim.view.ref.uid)
    ]


def _orphans(world: World, known: set[str]) -> list[ClaimSet]:
    """Claims made for pods that are gone without a trace (forced deletion, or one that orphans them), and that are
    still held."""
    left: dict[str, list[SetClaim]] = {}
    for claim in world.claims.values():
        uid = _noted_for(claim)
        if claim.made_for is not None and uid == claim.made_for and uid not in known and claim.view.held:
            left.setdefault(uid, []).append(claim)
    return [ClaimSet(uid, (), tuple(claims)) for uid, claims in sorted(left.items())]


def _noted_for(claim: SetClaim) -> str | None:
    return None if claim.attempt is None else claim.attempt.set_uid
