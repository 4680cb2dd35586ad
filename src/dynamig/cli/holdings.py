"""Who has, or waits for, which device: claims as people ask about them. Pure, from API objects.

A claim tells more than its allocation: that a driver made the device, that it could not and why, or that the claim ends
while the device may still be there (our finalizer is on it although the allocation is gone). Facts that a ResourceSlice
has as well are taken from there; for a device that is not published they are what the driver wrote on the claim, and
what nobody says is `unknown`, never a guess.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dynamig.dra import PublishedDevice, PublishedPool
from dynamig.protocol import names
from dynamig.protocol.claims import AllocatedDevice, ClaimView
from dynamig.protocol.hold_note import hold_note, noted_devices

UNKNOWN_PROFILE = "unknown"

Object = Mapping[str, Any]
Name = tuple[str, str]
"""Namespace and name."""


class HoldingState(Enum):
    """How far a claim is with one of its devices."""

    WAITING = "waiting"
    ALLOCATED = "allocated"
    READY = "ready"
    FAILED = "failed"
    LEAVING = "leaving"
    ADMIN = "admin"


STATES: Mapping[HoldingState, str] = {
    HoldingState.WAITING: "a pod waits for a device; the reason is Slurm's, the scheduler's, or what is not there",
    HoldingState.ALLOCATED: "the device is chosen and not made; the reason is what the bridge or the kubelet says",
    HoldingState.READY: "the driver made the device and containers can use it; a reason is bad news of the bridge's",
    HoldingState.FAILED: "the driver could not make it and says why; the kubelet tries again",
    HoldingState.LEAVING: "its pods or the claim end; the device may still be on the GPU and is not given to anybody",
    HoldingState.ADMIN: "looks at the device (adminAccess) and holds nothing",
}


@dataclass(frozen=True, slots=True)
class Holding:
    """One device that a claim has; with the state WAITING, a claim or a pod that waits for its devices.

    `claim`: empty where a pod waits and has none. `node`: None if nothing names it. `gpu`: UUID of the physical GPU.
    `profile`: None for the full GPU, UNKNOWN_PROFILE if neither slices nor the claim tell, empty while the claim waits.
    `memory_slices`: those of the GPU that are taken, ascending; empty where the GPU has none or they are not known.
    `reason`: why it failed or waits, what keeps an allocated one from being ready, or what threatens it. `uuid`: of
    the MIG device, or of the full GPU; known once it is ready. `job`: id of the Slurm job that pays, as the bridge
    noted it; None without Slurm, and while no job runs.
    """

    namespace: str
    claim: str
    pods: tuple[str, ...]
    node: str | None
    pool: str
    device: str
    gpu: str | None
    profile: str | None
    memory_slices: tuple[int, ...]
    state: HoldingState
    reason: str
    uuid: str | None
    job: int | None = None


def holding_json(holding: Holding) -> dict[str, Any]:
    """The device as `dynamig ps --json` prints it; fields are only ever added."""
    return {
        "namespace": holding.namespace,
        "claim": holding.claim,
        "pods": list(holding.pods),
        "node": holding.node,
        "pool": holding.pool,
        "device": holding.device,
        "gpu": holding.gpu,
        "profile": holding.profile,
        "memory_slices": list(holding.memory_slices),
        "state": holding.state.value,
        "reason": holding.reason,
        "uuid": holding.uuid,
        "slurm_job": holding.job,
    }


# -- devices that claims have ----------------------------------------------------------------------------------------


def holdings(
    pools: Sequence[PublishedPool], claims: Iterable[ClaimView], driver: str, ending: Collection[Name] = ()
) -> list[Holding]:
    """Every device of `driver` that a claim has. `pools`: of all drivers; `ending`: pods that are over or being
    deleted."""
    mine = [p for p in pools if p.driver == driver]
    devices = {(p.name, d.name): d for p in mine for d in p.devices}
    nodes = {p.name: p.node for p in mine}
    others = {p.name for p in pools if p.driver != driver}
    return [
        _holding(claim, driver, one, devices.get((one.pool, one.device)), nodes.get(one.pool), _leaves(claim, ending))
        for claim in claims
        for one in _devices_of(claim, driver)
        if one.request or _noted_by(driver, one.pool, nodes.keys(), others)
    ]


def _leaves(claim: ClaimView, ending: Collection[Name]) -> bool:
    """Whether nobody goes on with it: it is deleted, or all its pods end."""
    pods = [(claim.ref.namespace, pod) for pod in claim.reserved_for]
    return claim.deleting or (bool(pods) and all(pod in ending for pod in pods))


def _devices_of(claim: ClaimView, driver: str) -> Sequence[AllocatedDevice]:
    """Devices of a claim: those allocated, else those that our note on it says may still live."""
    return claim.devices_of(driver) or (_noted(claim, driver) if claim.held and not claim.allocated else ())


def _noted(claim: ClaimView, driver: str) -> Sequence[AllocatedDevice]:
    """The note is the driver's; one that cannot be read hides devices, so the claim is shown without any."""
    note = hold_note(claim)
    if note is None:
        return [AllocatedDevice("", driver, "?", "?")]
    return [AllocatedDevice("", driver, d.pool, d.device) for d in note.devices]


def _noted_by(driver: str, pool: str, mine: Iterable[str], others: Iterable[str]) -> bool:
    """Whether a noted device is this driver's. A note has no driver: its pool tells, else it is the usual one's."""
    return pool in mine or (driver == names.DRIVER_NAME and pool not in others)


def _holding(
    claim: ClaimView, driver: str, one: AllocatedDevice, known: PublishedDevice | None, node: str | None, leaves: bool
) -> Holding:
    entry = _status_of(claim, driver, one)
    data = entry.get("data") or {}
    state, reason = (HoldingState.LEAVING, "") if leaves else _state(claim, driver, one, entry)
    return Holding(
        namespace=claim.ref.namespace,
        claim=claim.ref.name,
        pods=claim.reserved_for,
        node=node or claim.held_by_node or claim.allocated_on,
        pool=one.pool,
        device=one.device,
        gpu=(known.gpu if known else None) or data.get("gpuUUID") or _noted_gpu(claim, one),
        profile=known.profile if known else _told_profile(data),
        memory_slices=() if one.admin_access else known.memory_slices if known else _placed(data),
        state=state,
        reason=reason,
        uuid=data.get("uuid"),
        job=_paying(claim),
    )


def _paying(claim: ClaimView) -> int | None:
    note = hold_note(claim)
    job = note.attempt.job if note and note.attempt else None
    return job.job_id if job else None


def _status_of(claim: ClaimView, driver: str, one: AllocatedDevice) -> Object:
    wanted = (driver, one.pool, one.device)
    entries = (e for e in claim.devices_status if (e.get("driver"), e.get("pool"), e.get("device")) == wanted)
    return next(entries, {})


def _told_profile(data: Object) -> str | None:
    """As the driver reported it (`protocol.device_status`): the full GPU's UUID is the GPU's."""
    if data.get("uuid") is not None and data.get("uuid") == data.get("gpuUUID"):
        return None
    return str(data.get("profile") or UNKNOWN_PROFILE)


def _noted_gpu(claim: ClaimView, one: AllocatedDevice) -> str | None:
    return next((d.gpu for d in noted_devices(claim) if (d.pool, d.device) == (one.pool, one.device)), None)


def _placed(data: Object) -> tuple[int, ...]:
    """Memory slices as the driver reported them on the claim (`protocol.device_status`)."""
    at = data.get("placement")
    return tuple(range(at["start"], at["start"] + at["size"])) if at else ()


def _state(claim: ClaimView, driver: str, one: AllocatedDevice, entry: Object) -> tuple[HoldingState, str]:
    condition = next((c for c in entry.get("conditions") or () if c["type"] == names.PREPARED), None)
    if not claim.devices_of(driver):
        return HoldingState.LEAVING, ""
    if one.admin_access:
        return HoldingState.ADMIN, ""
    if condition is None:
        return HoldingState.ALLOCATED, ""
    if condition["status"] == "True":
        return HoldingState.READY, ""
    return HoldingState.FAILED, str(condition.get("message", ""))
