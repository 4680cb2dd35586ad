"""What the bridge knows at one moment, as plain values: pods, claims, nodes, jobs. Nothing here asks anybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynamig.dra import PublishedPool
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimView, read_claim
from dynamig.protocol.hold_note import Attempt, HoldNote, hold_note
from dynamig.protocol.slurm_jobs import Job, SlurmNode, SlurmNodeName
from dynamig.protocol.times import from_rfc3339


@dataclass(frozen=True, slots=True, order=True)
class PodRef:
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of a Slurm namespace. `claims`: names of its ResourceClaims; `pending_claims`: some are not made yet."""

    ref: PodRef
    gated: bool
    deleting: bool
    node: str | None
    phase: str
    claims: tuple[str, ...]
    pending_claims: bool
    created: float
    unschedulable_since: float | None

    @property
    def over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class SetClaim:
    """One claim of a set, with the API object that the allocator reads."""

    view: ClaimView
    body: Mapping[str, Any]

    @property
    def note(self) -> HoldNote | None:
        return hold_note(self.view)

    @property
    def attempt(self) -> Attempt | None:
        """Which Slurm job is to pay; None for a claim that the bridge has not noted yet."""
        return None if (note := self.note) is None else note.attempt


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that both systems have. `claims`: UIDs that its driver reports living or intended; `reported`: when, in
    seconds of the epoch; `map`: Slurm index to GPU. `ready`: driver fresh, registered, and the map is good."""

    name: str
    slurm: SlurmNodeName
    ready: bool
    why_not: str
    claims: frozenset[str]
    reported: float
    map: Mapping[int, GpuUuid]


@dataclass(frozen=True, slots=True)
class World:
    """One picture of everything. `pools`: ours, complete ones only, by GPU; `claims`: every claim that has a device of
    ours allocated or carries our finalizer, by UID."""

    now: float
    driver: str
    pods: Mapping[str, PodView]
    claims: Mapping[str, SetClaim]
    pools: Mapping[GpuUuid, PublishedPool]
    classes: Mapping[str, Mapping[str, Any]]
    nodes: Mapping[str, NodeView]
    jobs: Sequence[Job]
    slurm_nodes: Mapping[SlurmNodeName, SlurmNode]

    def claims_of(self, pod: PodView) -> tuple[SetClaim, ...] | None:
        """The pod's claims; None while one of them is not made yet."""
        by_name = {(c.view.ref.namespace, c.view.ref.name): c for c in self.claims.values()}
        found = [by_name.get((pod.ref.namespace, name)) for name in pod.claims]
        if pod.pending_claims or any(c is None for c in found):
            return None
        return tuple(c for c in found if c is not None)

    def footprints(self) -> Mapping[tuple[str, str], frozenset[tuple[str, int]]]:
        """(pool, device) to the (GPU, memory slice) pairs that it takes; a GPU without partitions is slice -1."""
        return {
            (pool.name, device.name): frozenset((gpu, s) for s in device.memory_slices or (-1,))
            for gpu, pool in self.pools.items()
            for device in pool.devices
        }

    def jobs_of(self, set_uid: str) -> tuple[Job, ...]:
        return tuple(j for j in self.jobs if j.identity.set_uid == set_uid)


@dataclass(frozen=True, slots=True)
class Account:
    """Who pays in Slurm for a namespace (the administrator's map)."""

    user: str = "dynamig"
    account: str = ""
    partition: str = ""
    qos: str = ""
    minutes: int | None = None


def read_pod(obj: Mapping[str, Any]) -> PodView:
    """The view of one API object."""
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    made = {s["name"]: s.get("resourceClaimName") for s in status.get("resourceClaimStatuses") or ()}
    claims, pending = [], False
    for entry in spec.get("resourceClaims") or ():
        name = entry.get("resourceClaimName") or made.get(entry["name"])
        if name is not None:
            claims.append(str(name))
        elif entry["name"] not in made:  # made with a null name: the template needs no claim
            pending = True
    return PodView(
        ref=PodRef(meta["namespace"], meta["name"], meta["uid"]),
        gated=any(g["name"] == names.GATE for g in spec.get("schedulingGates") or ()),
        deleting=meta.get("deletionTimestamp") is not None,
        node=spec.get("nodeName"),
        phase=status.get("phase", ""),
        claims=tuple(claims),
        pending_claims=pending,
        created=_time(meta.get("creationTimestamp")),
        unschedulable_since=_unschedulable(status),
    )


def read_set_claim(obj: Mapping[str, Any], driver: str) -> SetClaim:
    return SetClaim(read_claim(obj, driver), obj)


def _unschedulable(status: Mapping[str, Any]) -> float | None:
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return _time(condition.get("lastTransitionTime"))
    return None


def _time(text: str | None) -> float:
    """Seconds of the epoch of an RFC 3339 time; 0 where there is none."""
    return 0.0 if text is None else from_rfc3339(text)
