"""Claims that a pod waits for: no device yet, and why not. Pure, from API objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dynamig.cli.asked import Asked
from dynamig.cli.holdings import Holding, HoldingState, Name
from dynamig.cli.view import GpuView
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimView, read_claim

Object = Mapping[str, Any]

OVER = ("Succeeded", "Failed")


def waiting(
    claims: Iterable[Object], pods: Sequence[Object] | None, asked: Asked, *, slurm: bool = False
) -> list[Holding]:
    """Claims without a device that ask for one and that a pod waits for, and pods that are kept from a claim that has
    devices: another pod uses it.

    `slurm`: whether devices are Slurm's to give, as their taint says. `pods`: None if they may not be read; then the
    reason is not known, and a claim made for a pod still names it.
    """
    users = _users(pods or ())
    mine = [(obj, read_claim(obj, asked.driver)) for obj in claims if asked.claims(obj.get("spec"))]
    found = [_waits(obj, claim, users, slurm) for obj, claim in mine]
    kept_off = (h for _, claim in mine for h in _kept_off(claim, users.get((claim.ref.namespace, claim.ref.name), ())))
    return [*(h for h in found if h is not None), *kept_off]


def _kept_off(claim: ClaimView, using: Iterable[Object]) -> Iterator[Holding]:
    if claim.allocated and claim.reserved_for:
        for pod in using:
            name = pod["metadata"]["name"]
            if name not in claim.reserved_for and not pod["spec"].get("nodeName") and (why := reason(pod)):
                yield row(claim.ref.namespace, claim.ref.name, (name,), why)


def _waits(obj: Object, claim: ClaimView, users: Mapping[Name, Sequence[Object]], slurm: bool) -> Holding | None:
    if claim.allocated or claim.deleting or (claim.held and claim.held_by_node is not None):
        return None  # it has devices, or had them on that node
    using = users.get((claim.ref.namespace, claim.ref.name), ())
    pods = tuple(p["metadata"]["name"] for p in using) or tuple(_owners(obj))
    why = next(filter(None, (reason(pod, slurm=slurm) for pod in using)), "")
    return row(claim.ref.namespace, claim.ref.name, pods, why) if pods else None


def row(namespace: str, claim: str, pods: tuple[str, ...], why: str) -> Holding:
    """What waits, for the reason `why`. `claim`: empty where there is none."""
    return Holding(
        namespace=namespace,
        claim=claim,
        pods=pods,
        node=None,
        pool="",
        device="",
        gpu=None,
        profile="",
        memory_slices=(),
        state=HoldingState.WAITING,
        reason=why,
        uuid=None,
    )


NO_WORD = "no bridge has spoken of it: does one run? `kubectl -n dynamig-system get lease dynamig-bridge`"
NOT_LOOKED_AT = "nothing gates it any more, and kube-scheduler has not looked at it since"
SLURMS = f"devices here are for namespaces with the label {names.SCHEDULER_LABEL}=slurm"


def reason(pod: Object, *, slurm: bool = False) -> str:
    """Why the pod has no node: what the bridge to Slurm says, else the scheduler; empty if nobody says anything."""
    conditions = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    gates = [g["name"] for g in (pod.get("spec") or {}).get("schedulingGates") or ()]
    if names.CONDITION not in conditions and names.GATE in gates:
        return NO_WORD
    if not gates and conditions.get("PodScheduled", {}).get("reason") == "SchedulingGated":
        return NOT_LOOKED_AT
    told = [conditions.get(names.CONDITION, {}), conditions.get("PodScheduled", {})]
    messages = (str(c.get("message", "")) for c in told if c.get("status") == "False")
    # What the scheduler could preempt says nothing about devices.
    said = next(filter(None, (m.partition(" preemption:")[0] for m in messages)), "")
    return f"{said} ({SLURMS})" if said and slurm and names.CONDITION not in conditions else said


def with_users(views: Iterable[GpuView], pods: Iterable[Object]) -> list[GpuView]:
    """The views, with the pods that are to have what no pod has yet, and why those have no node."""
    users = _users(pods)
    return [replace(v, holdings=tuple(_with_users(h, users) for h in v.holdings)) for v in views]


def _with_users(holding: Holding, users: Mapping[Name, Sequence[Object]]) -> Holding:
    using = users.get((holding.namespace, holding.claim), ())
    if holding.pods or holding.state is not HoldingState.ALLOCATED or not using:
        return holding
    why = next(filter(None, map(reason, using)), "")
    return replace(holding, pods=tuple(p["metadata"]["name"] for p in using), reason=holding.reason or why)


# -- who waits -------------------------------------------------------------------------------------------------------


def _users(pods: Iterable[Object]) -> dict[Name, list[Object]]:
    """Living pods by the claims that they name."""
    found: dict[Name, list[Object]] = {}
    for pod in pods:
        if not is_over(pod):
            for claim in _claims_of(pod):
                found.setdefault((pod["metadata"]["namespace"], claim), []).append(pod)
    return found


def is_over(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in OVER


def _claims_of(pod: Object) -> Iterator[str]:
    """Names of its claims: those it names itself, and those made for it from templates."""
    named = ((pod.get("spec") or {}).get("resourceClaims")) or ()
    made = ((pod.get("status") or {}).get("resourceClaimStatuses")) or ()
    yield from (c["resourceClaimName"] for c in (*named, *made) if c.get("resourceClaimName"))


def _owners(claim: Object) -> Iterator[str]:
    owners = claim["metadata"].get("ownerReferences") or ()
    yield from (o["name"] for o in owners if o.get("kind") == "Pod" and o.get("controller"))
