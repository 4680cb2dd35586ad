"""What the cluster's GPUs look like to people: who holds which memory slices. Pure, from API objects.

ResourceSlices say what exists and what is withdrawn, claims say who has it: allocated, prepared, or still leaving
(our finalizer is on the claim although its allocation is gone). Facts that both have are taken from the slices; a
device that is no longer published is shown by what the driver wrote on the claim. Slices of other drivers work the
same, with one pool for each GPU or one for all GPUs of a node.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Any

from dynamig.dra import PublishedDevice, PublishedPool, read_pools
from dynamig.protocol import names
from dynamig.protocol.claims import AllocatedDevice, ClaimView, read_claim

UNKNOWN_PRODUCT = "unknown product"
WITHDRAWING = ("NoSchedule", "NoExecute")
"""Taint effects that keep new claims away; others only inform (resource.k8s.io/v1 DeviceTaintEffect)."""


class HoldingState(Enum):
    """How far a claim is with one of its devices."""

    ALLOCATED = "allocated"
    READY = "ready"
    FAILED = "failed"
    LEAVING = "leaving"
    ADMIN = "admin"


STATES: Mapping[HoldingState, str] = {
    HoldingState.ALLOCATED: "the scheduler chose the device; the driver has not reported it ready",
    HoldingState.READY: "the driver made the device and containers can use it",
    HoldingState.FAILED: "the driver could not make it and says why; the kubelet tries again",
    HoldingState.LEAVING: "the claim ends; the device may still be on the GPU and is not given to anybody",
    HoldingState.ADMIN: "looks at the device (adminAccess) and holds nothing",
}


@dataclass(frozen=True, slots=True)
class Holding:
    """One device that a claim has.

    `node`: None if nothing names it. `gpu`: UUID of the physical GPU. `profile`: None for the full GPU.
    `memory_slices`: those of the GPU that are taken, ascending; empty where the GPU has none or they are not known.
    `reason`: why it failed. `uuid`: of the MIG device, or of the full GPU; known once it is ready.
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


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """`devices` devices of a GPU carry the taint `key`, so no new claim gets them."""

    key: str
    devices: int


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU.

    `memory_slices`: how many it has, 0 if it is not partitioned. `devices`: how many are published. `withdrawn`: memory
    slices that only tainted devices would use, so nobody can get them; an instance of unknown owner is among them.
    `problem`: why the scheduler does not use what is published, in words; None if it does.
    """

    node: str | None
    pool: str
    name: str
    product: str
    uuid: str | None
    memory_slices: int
    devices: int
    holdings: tuple[Holding, ...]
    withdrawn: tuple[int, ...]
    withdrawals: tuple[Withdrawal, ...]
    problem: str | None

    @property
    def held(self) -> frozenset[int]:
        return frozenset(s for h in self.holdings for s in h.memory_slices)

    @property
    def free(self) -> tuple[int, ...]:
        """Memory slices that are in nobody's claim and not withdrawn."""
        return tuple(s for s in range(self.memory_slices) if s not in self.held and s not in self.withdrawn)

    @property
    def idle(self) -> bool:
        return not self.holdings


def gpu_views(
    slices: Iterable[Mapping[str, Any]], claims: Iterable[Mapping[str, Any]], driver: str = names.DRIVER_NAME
) -> tuple[GpuView, ...]:
    """Every GPU that `driver` publishes, by node and name, with who holds what.

    A GPU that is in claims and no longer published is there too, and says so.
    """
    pools = [p for p in read_pools(slices) if p.driver == driver]
    holdings = _holdings(pools, [read_claim(c, driver) for c in claims], driver)
    published = [_gpu(pool, gpu, devices, holdings) for pool in pools for gpu, devices in _gpus_of(pool)]
    shown = {h for view in published for h in view.holdings}
    lost = [h for h in holdings if h not in shown]
    return tuple(sorted((*published, *_unpublished(lost)), key=lambda v: (v.node or "", v.name)))


def gpu_json(view: GpuView) -> dict[str, Any]:
    """The GPU as `dynamig gpus --json` prints it; fields are only ever added."""
    return {
        "name": view.name,
        "node": view.node,
        "pool": view.pool,
        "product": view.product,
        "uuid": view.uuid,
        "memory_slices": view.memory_slices,
        "free": list(view.free),
        "withdrawn": list(view.withdrawn),
        "withdrawals": [{"taint": w.key, "devices": w.devices} for w in view.withdrawals],
        "devices": view.devices,
        "problem": view.problem,
        "holdings": [holding_json(h) for h in view.holdings],
    }


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
    }


# -- GPUs ------------------------------------------------------------------------------------------------------------


def _gpus_of(pool: PublishedPool) -> list[tuple[str | None, tuple[PublishedDevice, ...]]]:
    """The pool's devices by the GPU that they are of; a pool without any counts as one GPU, so that it is seen."""
    ordered = sorted(pool.devices, key=lambda d: d.gpu or "")
    found = [(gpu or None, tuple(group)) for gpu, group in groupby(ordered, key=lambda d: d.gpu or "")]
    return found or [(None, ())]


def _gpu(
    pool: PublishedPool, gpu: str | None, devices: tuple[PublishedDevice, ...], holdings: Sequence[Holding]
) -> GpuView:
    alone = len(_gpus_of(pool)) == 1
    mine = [h for h in holdings if h.pool == pool.name and (alone or h.gpu == gpu)]
    count = max((s + 1 for d in devices for s in d.memory_slices), default=0)
    return GpuView(
        node=pool.node,
        pool=pool.name,
        name=pool.name if alone else f"{pool.name}/{_own_name(gpu, devices)}",
        product=_product(devices),
        uuid=gpu,
        memory_slices=count,
        devices=len(devices),
        holdings=_ordered(mine),
        withdrawn=_withdrawn(devices, count),
        withdrawals=_withdrawals(devices),
        problem=pool.problem or (None if devices else "nothing of it is published"),
    )


def _own_name(gpu: str | None, devices: tuple[PublishedDevice, ...]) -> str:
    """What tells the GPU from others of its pool: the full GPU's device name, else the UUID."""
    full = next((d.name for d in devices if d.type == "gpu"), None)
    return full or gpu or devices[0].name


def _product(devices: tuple[PublishedDevice, ...]) -> str:
    told = (d.attributes.get("productName") for d in devices)
    return next((name for name in told if isinstance(name, str)), UNKNOWN_PRODUCT)


def _ordered(holdings: Iterable[Holding]) -> tuple[Holding, ...]:
    return tuple(sorted(holdings, key=lambda h: (h.memory_slices, h.namespace, h.claim, h.device)))


def _keeps_away(device: PublishedDevice) -> bool:
    return any(t.effect in WITHDRAWING for t in device.taints)


def _withdrawn(devices: tuple[PublishedDevice, ...], count: int) -> tuple[int, ...]:
    """Memory slices with at least one device, all of whose devices are tainted.

    The taints do not say where a foreign instance sits, only which devices it is in the way of. It can sit only here,
    since a device over any of its slices is tainted.
    """
    tainted = {s for d in devices if _keeps_away(d) for s in d.memory_slices}
    usable = {s for d in devices if not _keeps_away(d) for s in d.memory_slices}
    return tuple(s for s in range(count) if s in tainted - usable)


def _withdrawals(devices: tuple[PublishedDevice, ...]) -> tuple[Withdrawal, ...]:
    counts = Counter(key for d in devices for key in {t.key for t in d.taints if t.effect in WITHDRAWING})
    return tuple(Withdrawal(key, number) for key, number in sorted(counts.items()))


def _unpublished(holdings: Iterable[Holding]) -> list[GpuView]:
    """GPUs that claims hold and nobody publishes: the node left, or its administrator took the GPU out."""

    def key(h: Holding) -> tuple[str, str]:
        return h.pool, h.gpu or ""

    return [
        GpuView(
            node=next((h.node for h in group if h.node), None),
            pool=pool,
            name=pool,
            product=UNKNOWN_PRODUCT,
            uuid=gpu or None,
            memory_slices=max((s + 1 for h in group for s in h.memory_slices), default=0),
            devices=0,
            holdings=_ordered(group),
            withdrawn=(),
            withdrawals=(),
            problem="no longer published, but in claims",
        )
        for (pool, gpu), found in groupby(sorted(holdings, key=key), key=key)
        for group in [list(found)]
    ]


# -- claims ----------------------------------------------------------------------------------------------------------


def _holdings(pools: Sequence[PublishedPool], claims: Iterable[ClaimView], driver: str) -> list[Holding]:
    devices = {(p.name, d.name): d for p in pools for d in p.devices}
    nodes = {p.name: p.node for p in pools}
    return [
        _holding(claim, driver, one, devices.get((one.pool, one.device)), nodes.get(one.pool))
        for claim in claims
        for one in _devices_of(claim, driver)
    ]


def _devices_of(claim: ClaimView, driver: str) -> Sequence[AllocatedDevice]:
    """Devices of a claim: those allocated, else those that our note on it says may still live."""
    return claim.devices_of(driver) or (_noted(claim, driver) if claim.held else ())


def _noted(claim: ClaimView, driver: str) -> Sequence[AllocatedDevice]:
    """The note is the driver's; one that cannot be read hides devices, so the claim is shown without any."""
    try:
        noted = json.loads(claim.annotations[names.HOLD])["devices"]
        return [AllocatedDevice("", driver, str(d["pool"]), str(d["device"])) for d in noted]
    except (KeyError, ValueError, TypeError):
        return [AllocatedDevice("", driver, "?", "?")]


def _holding(
    claim: ClaimView, driver: str, one: AllocatedDevice, known: PublishedDevice | None, node: str | None
) -> Holding:
    entry = _status_of(claim, driver, one)
    data = entry.get("data") or {}
    state, reason = _state(claim, driver, one, entry)
    return Holding(
        namespace=claim.ref.namespace,
        claim=claim.ref.name,
        pods=claim.reserved_for,
        node=node or claim.held_by_node,
        pool=one.pool,
        device=one.device,
        gpu=(known.gpu if known else None) or data.get("gpuUUID"),
        profile=known.profile if known else data.get("profile"),
        memory_slices=() if one.admin_access else known.memory_slices if known else _placed(data),
        state=state,
        reason=reason,
        uuid=data.get("uuid"),
    )


def _status_of(claim: ClaimView, driver: str, one: AllocatedDevice) -> Mapping[str, Any]:
    wanted = (driver, one.pool, one.device)
    entries = (e for e in claim.devices_status if (e.get("driver"), e.get("pool"), e.get("device")) == wanted)
    return next(entries, {})


def _placed(data: Mapping[str, Any]) -> tuple[int, ...]:
    """Memory slices as the driver reported them on the claim (`protocol.device_status`)."""
    at = data.get("placement")
    return tuple(range(at["start"], at["start"] + at["size"])) if at else ()


def _state(claim: ClaimView, driver: str, one: AllocatedDevice, entry: Mapping[str, Any]) -> tuple[HoldingState, str]:
    condition = next((c for c in entry.get("conditions") or () if c["type"] == names.PREPARED), None)
    if claim.deleting or not claim.devices_of(driver):
        return HoldingState.LEAVING, ""
    if one.admin_access:
        return HoldingState.ADMIN, ""
    if condition is None:
        return HoldingState.ALLOCATED, ""
    if condition["status"] == "True":
        return HoldingState.READY, ""
    return HoldingState.FAILED, str(condition.get("message", ""))
