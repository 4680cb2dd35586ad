"""What the cluster's GPUs look like to people: who holds which memory slices. Pure, from API objects.

Slices say what exists, claims who has it: allocated, prepared, or still leaving (our finalizer is on the claim
although its allocation is gone).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynamig.dra import PublishedDevice, PublishedPool, read_pools
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimView, read_claim


@dataclass(frozen=True, slots=True)
class Holding:
    """One device that a claim has. `state`: allocated, ready, failed or leaving; `reason` where it failed."""

    namespace: str
    claim: str
    pods: tuple[str, ...]
    node: str | None
    pool: str
    device: str
    profile: str | None
    memory_slices: tuple[int, ...]
    state: str
    reason: str
    uuid: str | None


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU. `memory_slices`: how many it has, 0 if it is not partitioned; `free` are in nobody's claim."""

    node: str | None
    pool: str
    product: str
    uuid: str | None
    memory_slices: int
    holdings: tuple[Holding, ...]
    foreign: tuple[int, ...]
    problem: str | None

    @property
    def free(self) -> tuple[int, ...]:
        taken = {s for h in self.holdings for s in h.memory_slices} | set(self.foreign)
        return tuple(s for s in range(self.memory_slices) if s not in taken)


def gpu_views(
    slices: Iterable[Mapping[str, Any]], claims: Iterable[Mapping[str, Any]], driver: str = names.DRIVER_NAME
) -> tuple[GpuView, ...]:
    """Every GPU that `driver` publishes, by pool name, with who holds what."""
    pools = [p for p in read_pools(slices) if p.driver == driver]
    holdings = _holdings(pools, [read_claim(c, driver) for c in claims], driver)
    return tuple(_gpu(p, tuple(h for h in holdings if h.pool == p.name)) for p in pools)


def _gpu(pool: PublishedPool, holdings: tuple[Holding, ...]) -> GpuView:
    first = pool.devices[0] if pool.devices else None
    product = first.attributes.get("productName") if first else None
    count = max((s + 1 for d in pool.devices for s in d.memory_slices), default=0)
    return GpuView(
        node=pool.node,
        pool=pool.name,
        product=product if isinstance(product, str) else "?",
        uuid=first.gpu if first else None,
        memory_slices=count,
        holdings=tuple(sorted(holdings, key=lambda h: (h.memory_slices, h.device))),
        foreign=_foreign(pool, count),
        problem=pool.problem,
    )


def _foreign(pool: PublishedPool, count: int) -> tuple[int, ...]:
    """Memory slices on which every one-instance device is tainted as foreign: the smallest tainted footprint."""
    tainted = [set(d.memory_slices) for d in pool.devices if any(t.key == names.FOREIGN_TAINT for t in d.taints)]
    smallest = min((len(t) for t in tainted), default=0)
    return tuple(s for s in range(count) if any(s in t for t in tainted if len(t) == smallest))


def _holdings(pools: Sequence[PublishedPool], claims: Iterable[ClaimView], driver: str) -> list[Holding]:
    devices = {(p.name, d.name): (p, d) for p in pools for d in p.devices}
    found: list[Holding] = []
    for claim in claims:
        for pool, device in _held(claim, driver):
            known = devices.get((pool, device))
            found.append(_holding(claim, driver, pool, device, known))
    return found


def _held(claim: ClaimView, driver: str) -> list[tuple[str, str]]:
    """Devices of a claim: those allocated, else those that our note on it says may still live."""
    allocated = [(d.pool, d.device) for d in claim.devices_of(driver)]
    return allocated or (_noted(claim) if claim.held else [])


def _noted(claim: ClaimView) -> list[tuple[str, str]]:
    try:
        return [(d["pool"], d["device"]) for d in json.loads(claim.annotations[names.HOLD])["devices"]]
    except (KeyError, ValueError, TypeError):
        return []


def _holding(
    claim: ClaimView, driver: str, pool: str, device: str, known: tuple[PublishedPool, PublishedDevice] | None
) -> Holding:
    state, reason, uuid = _state(claim, driver, pool, device)
    return Holding(
        namespace=claim.ref.namespace,
        claim=claim.ref.name,
        pods=claim.reserved_for,
        node=known[0].node if known else claim.held_by_node,
        pool=pool,
        device=device,
        profile=known[1].profile if known else None,
        memory_slices=known[1].memory_slices if known else (),
        state=state,
        reason=reason,
        uuid=uuid,
    )


def _state(claim: ClaimView, driver: str, pool: str, device: str) -> tuple[str, str, str | None]:
    if claim.deleting or not claim.devices_of(driver):
        return "leaving", "", None
    for entry in claim.devices_status:
        if (entry.get("driver"), entry.get("pool"), entry.get("device")) != (driver, pool, device):
            continue
        condition = next((c for c in entry.get("conditions") or () if c["type"] == names.PREPARED), None)
        if condition is not None and condition["status"] == "True":
            return "ready", "", (entry.get("data") or {}).get("uuid")
        if condition is not None:
            return "failed", condition["message"], None
    return "allocated", "", None
