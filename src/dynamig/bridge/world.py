"""What the bridge knows at one moment, as plain values: pods, claims, nodes, jobs. Nothing here asks anybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dynamig.bridge.accounts import Accounts, NotPayable, Payment, read_wish
from dynamig.bridge.by_identity import by_identity
from dynamig.bridge.fits import UNMARKED, NodeMarks, NodeRules, rules_of
from dynamig.bridge.needs import Needs, needs_of
from dynamig.dra import PublishedPool
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimView, read_claim
from dynamig.protocol.hold_note import Attempt, HoldNote, NotedDevice, hold_note
from dynamig.protocol.identity import Role
from dynamig.protocol.outages import Outages
from dynamig.protocol.slurm_jobs import Job, SlurmNode, SlurmNodeName
from dynamig.protocol.times import from_rfc3339

DEFAULT_GRACE = 30
"""Seconds that a pod has to end if it does not say (the API server's own default)."""


NOT_PLACED = ("Unschedulable", "SchedulerError")
"""Reasons of kube-scheduler for PodScheduled: the pod fits nowhere, or cannot be bound where it fits, as where the API
server refuses its reservation (PodReasonUnschedulable and PodReasonSchedulerError of k8s.io/api core/v1, 1.37)."""


@dataclass(frozen=True, slots=True, order=True)
class PodRef:
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Told:
    """What a condition of the pod says, and since when (seconds of the epoch)."""

    reason: str
    message: str
    since: float


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of a Slurm namespace. `other_gates`: scheduling gates that are not ours; no gate can be added to a pod.
    `generation`: of its spec, of which `needs` and `rules` are read: a gated pod's node selector and affinity may be
    narrowed. `claims`: names of its ResourceClaims; `unmade`: templates of those not made yet; `unschedulable`: why
    kube-scheduler gives it no node, in its words, None as long as it does not say so; `needs`: what it asks of a
    node beside devices; `payment`: who pays for it; `told`: what its condition says; times in seconds of the epoch.
    """

    ref: PodRef
    gated: bool
    other_gates: tuple[str, ...]
    generation: int
    ends_by: float | None
    grace: int
    node: str | None
    phase: str
    claims: tuple[str, ...]
    unmade: tuple[str, ...]
    created: float
    unschedulable: str | None
    needs: Needs
    rules: NodeRules
    payment: Payment | NotPayable
    told: Told | None = None

    @property
    def deleting(self) -> bool:
        return self.ends_by is not None

    @property
    def waits_for_others(self) -> bool:
        """Whether nothing is to be held for it yet: it could not be scheduled."""
        return self.gated and bool(self.other_gates)

    @property
    def over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True)
class SetClaim:
    """One claim of a set, with the API object that the allocator reads."""

    view: ClaimView
    body: Mapping[str, Any]

    @property
    def made_for(self) -> str | None:
        """UID of the pod whose claim it is; None for one that somebody made by hand.

        Its owner tells, until it is held for a set. Owners are anybody's to change, and go with the pod's deletion by
        `kubectl delete --cascade=orphan`; the note is the bridge's alone.
        """
        if self.view.held and self.attempt is not None:
            return None if self.attempt.set_uid == self.view.ref.uid else self.attempt.set_uid
        owners = self.body["metadata"].get("ownerReferences") or ()
        return next((str(o["uid"]) for o in owners if o.get("kind") == "Pod"), None)

    @property
    def barred_since(self) -> float | None:
        """Since when no prepare of it can begin, in seconds of the epoch: it is being deleted, or was released."""
        told = (self.body["metadata"].get("deletionTimestamp"), self.view.annotations.get(names.RELEASE))
        return min((from_rfc3339(t) for t in told if t is not None), default=None)

    @cached_property
    def note(self) -> HoldNote | None:
        return hold_note(self.view)

    @property
    def noted(self) -> tuple[NotedDevice, ...]:
        """Devices that the note says it has, is to have, or had."""
        return () if self.note is None else self.note.devices

    @property
    def attempt(self) -> Attempt | None:
        """Which Slurm job is to pay; None for a claim that the bridge has not noted yet."""
        return None if (note := self.note) is None else note.attempt


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that both systems have. `slurm`: empty as long as its driver does not know it. `claims`: UIDs that
    its driver reports living or intended; `reported`: when, in seconds of the epoch; `map`: Slurm index to GPU.
    `fresh`: the report is new enough to be believed; `ready`: fresh, registered, and the map is good. `gone`: an
    administrator declared it out of service; nothing of it runs any more. `marks`: what kube-scheduler goes by;
    `outages`: of GPUs that do not answer its driver, or not for long enough since."""

    name: str
    slurm: SlurmNodeName
    fresh: bool
    ready: bool
    why_not: str
    claims: frozenset[str]
    reported: float
    map: Mapping[int, GpuUuid]
    gone: bool = False
    marks: NodeMarks = UNMARKED
    outages: Outages = field(default_factory=dict)

    @property
    def slurm_outages(self) -> Outages:
        """Of GPUs that Slurm gives out: those of the map, and where there is none, any."""
        if not (self.outages and self.slurm):
            return {}
        ours = set(self.map.values()) or self.outages.keys()
        return {gpu: outage for gpu, outage in self.outages.items() if gpu in ours}


@dataclass(frozen=True, slots=True)
class World:
    """One picture of everything. `pools`: ours, complete ones only, by GPU; `claims`: all, by UID; `slurm_started`:
    slurmctld, in seconds of the epoch; `promised`: devices that this very look has decided on, by claim UID."""

    now: float
    driver: str
    pods: Mapping[str, PodView]
    claims: Mapping[str, SetClaim]
    pools: Mapping[GpuUuid, PublishedPool]
    classes: Mapping[str, Mapping[str, Any]]
    nodes: Mapping[str, NodeView]
    jobs: Sequence[Job]
    slurm_nodes: Mapping[SlurmNodeName, SlurmNode]
    slurm_started: float = 0.0
    promised: Mapping[str, tuple[NotedDevice, ...]] = field(default_factory=dict)

    def footprints(self) -> Footprints:
        return _footprints(self.pools)

    def holds_of(self, set_uid: str) -> tuple[Job, ...]:
        """Jobs that pay, paid or are to pay for a set; ballast left out."""
        return _holds(self.jobs).get(set_uid, ())

    def claims_noted_for(self, set_uid: str) -> tuple[SetClaim, ...]:
        """Claims whose note says that they are, or were, of this set."""
        return _noted(self.claims).get(set_uid, ())

    def node_of(self, slurm: SlurmNodeName | None) -> NodeView | None:
        views = () if slurm is None else _by_slurm(self.nodes).get(slurm, ())
        return views[-1] if views else None

    def of_slurm(self) -> Mapping[SlurmNodeName, Sequence[NodeView]]:
        """Nodes by their name in Slurm: two where two say that they are the same one."""
        return _by_slurm(self.nodes)

    def promising(self, devices: Mapping[str, tuple[NotedDevice, ...]], node: SlurmNodeName, cost: int) -> World:
        """The picture after `devices` were decided on, for `cost` shards on their GPU."""
        gpu = next((d.gpu for found in devices.values() for d in found), None)
        view, slurm = self.node_of(node), self.slurm_nodes.get(node)
        index = None if view is None else next((i for i, g in view.map.items() if g == gpu), None)
        nodes = (
            self.slurm_nodes if slurm is None or index is None else {**self.slurm_nodes, node: slurm.used(index, cost)}
        )
        return replace(self, promised={**self.promised, **devices}, slurm_nodes=nodes)


Footprints = Mapping[tuple[str, str], frozenset[tuple[str, int]]]
"""(pool, device) to the (GPU, memory slice) pairs that it takes; a GPU without partitions is slice -1."""


@by_identity(keep=1)
def _footprints(pools: Mapping[GpuUuid, PublishedPool]) -> Footprints:
    return {taken: slices for gpu, pool in pools.items() for taken, slices in _footprints_of(gpu, pool).items()}


@by_identity(keep=1 << 14)
def _footprints_of(gpu: GpuUuid, pool: PublishedPool) -> Footprints:
    return {(pool.name, d.name): frozenset((gpu, s) for s in d.memory_slices or (-1,)) for d in pool.devices}


@by_identity(keep=1)
def _holds(jobs: Sequence[Job]) -> Mapping[str, tuple[Job, ...]]:
    found: dict[str, list[Job]] = {}
    for job in jobs:
        if job.identity.role is Role.HOLD:
            found.setdefault(job.identity.set_uid, []).append(job)
    return {uid: tuple(of_set) for uid, of_set in found.items()}


@by_identity(keep=1)
def _noted(claims: Mapping[str, SetClaim]) -> Mapping[str, tuple[SetClaim, ...]]:
    found: dict[str, list[SetClaim]] = {}
    for claim in claims.values():
        if claim.attempt is not None:
            found.setdefault(claim.attempt.set_uid, []).append(claim)
    return {uid: tuple(of_set) for uid, of_set in found.items()}


@by_identity(keep=1)
def _by_slurm(nodes: Mapping[str, NodeView]) -> Mapping[SlurmNodeName, Sequence[NodeView]]:
    found: dict[SlurmNodeName, list[NodeView]] = {}
    for node in nodes.values():
        found.setdefault(node.slurm, []).append(node)
    return found


def read_pod(obj: Mapping[str, Any], accounts: Accounts) -> PodView:
    """The view of one API object."""
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    gates = [g["name"] for g in spec.get("schedulingGates") or ()]
    made = {s["name"]: s.get("resourceClaimName") for s in status.get("resourceClaimStatuses") or ()}
    claims, unmade = list[str](), list[str]()
    for entry in spec.get("resourceClaims") or ():
        name = entry.get("resourceClaimName") or made.get(entry["name"])
        if name is not None:
            claims.append(str(name))
        elif entry["name"] not in made:  # made with a null name: the template needs no claim
            unmade.append(str(entry.get("resourceClaimTemplateName")))
    return PodView(
        ref=PodRef(meta["namespace"], meta["name"], meta["uid"]),
        gated=names.GATE in gates,
        other_gates=tuple(g for g in gates if g != names.GATE),
        generation=meta.get("generation", 0),
        ends_by=_time(meta["deletionTimestamp"]) if meta.get("deletionTimestamp") else None,
        grace=spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE),
        node=spec.get("nodeName"),
        phase=status.get("phase", ""),
        claims=tuple(dict.fromkeys(claims)),
        unmade=tuple(unmade),
        created=_time(meta.get("creationTimestamp")),
        unschedulable=_unschedulable(status),
        needs=needs_of(spec),
        rules=rules_of(spec),
        payment=accounts.payment(read_wish(obj)),
        told=_condition(status, names.CONDITION),
    )


def read_set_claim(obj: Mapping[str, Any], driver: str) -> SetClaim:
    return SetClaim(read_claim(obj, driver), obj)


def _unschedulable(status: Mapping[str, Any]) -> str | None:
    told = _condition(status, "PodScheduled")
    return told.message if told is not None and told.reason in NOT_PLACED else None


def _condition(status: Mapping[str, Any], kind: str) -> Told | None:
    """A pod has at most one condition of a type."""
    found = next((c for c in status.get("conditions") or () if c["type"] == kind), None)
    if found is None:
        return None
    return Told(found.get("reason", ""), found.get("message", ""), _time(found.get("lastTransitionTime")))


def _time(text: str | None) -> float:
    """Seconds of the epoch of an RFC 3339 time; 0 where there is none."""
    return 0.0 if text is None else from_rfc3339(text)
