"""Devices for a claim set on one GPU, by the structured allocator: implements `plan.Chooser` for one world."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from dynamig.bridge.plan import Choice, NoChoice, Pick
from dynamig.bridge.world import SetClaim, World
from dynamig.dra import PublishedDevice, PublishedPool
from dynamig.dra.allocate import Choice as RequestChoice
from dynamig.dra.allocate import (
    Claim,
    DeviceClass,
    DeviceId,
    NodeDevices,
    Offer,
    Toleration,
    allocate,
    read_claim,
    read_class,
)
from dynamig.dra.allocate import Refusal as NoRoom
from dynamig.errors import Refused
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.shards import Units, units_of

MANAGED = Toleration(names.MANAGED_TAINT, "Exists", "", "")
"""What keeps kube-scheduler off these devices does not keep the bridge off."""


class WorldChooser:
    """`driver`: whose devices Slurm pays for. What is allocated, or still noted on a held claim, is taken."""

    def __init__(self, world: World, driver: str) -> None:
        self._world = world
        self._driver = driver
        self._classes: Mapping[str, DeviceClass] = {n: read_class(c) for n, c in world.classes.items()}

    def __call__(self, claims: Sequence[SetClaim], gpu: GpuUuid, *, most: int | None = None) -> Choice | NoChoice:
        return self._choose(claims, gpu, self._held(claims), most)

    def when_empty(self, claims: Sequence[SetClaim], gpu: GpuUuid) -> Choice | NoChoice:
        return self._choose(claims, gpu, frozenset(), None)

    def _choose(
        self, claims: Sequence[SetClaim], gpu: GpuUuid, held: Collection[DeviceId], most: int | None
    ) -> Choice | NoChoice:
        pool = self._world.pools.get(gpu)
        if pool is None:
            return NoChoice(f"GPU {gpu} is not published completely", ever=True)
        here = frozenset(d for d in held if d.pool == pool.name)
        if unknown := here - {DeviceId(pool.driver, pool.name, d.name) for d in pool.devices}:
            return NoChoice(f"{min(unknown)} is held and not published: what it takes is not known", ever=True)
        units = _units(pool)
        affordable = _affordable(pool, units, most, here)
        try:
            wanted = [_tolerant(read_claim(c.body)) for c in claims]
        except Refused as refused:
            return NoChoice(str(refused), ever=False)
        node = NodeDevices(pool.node or "", [Offer(affordable)])
        found = allocate(node.occupied(here), wanted, self._classes)
        if isinstance(found, NoRoom):
            return NoChoice(str(found), ever=True)
        by_name = {d.name: d for d in pool.devices}
        cost = sum(units.cost(by_name[d.device].memory_slices) for d in found.held)
        if most is not None and cost > most:
            return NoChoice(f"costs {cost} shards, {most} can be had", ever=True)
        picks = tuple(
            Pick(claim.view.ref.uid, pick.request, pick.device.pool, pick.device.device)
            for claim, chosen in zip(claims, found.picks, strict=True)
            for pick in chosen
        )
        return Choice(gpu, picks, cost, found.score.lost)

    def _held(self, claims: Sequence[SetClaim]) -> frozenset[DeviceId]:
        mine = {c.view.ref.uid for c in claims}
        held: set[DeviceId] = set()
        for claim in self._world.claims.values():
            if claim.view.ref.uid in mine:
                continue
            held |= {DeviceId(d.driver, d.pool, d.device) for d in claim.view.allocated if not d.admin_access}
            if claim.view.held and (note := claim.note) is not None:
                held |= {DeviceId(self._driver, d.pool, d.device) for d in note.devices}
        return frozenset(held)


def _affordable(pool: PublishedPool, units: Units, most: int | None, held: Collection[DeviceId]) -> PublishedPool:
    """The pool with the devices that `most` shards can pay, each alone, and those that are held: a device that is held
    and not in the pool would count as free."""
    if most is None:
        return pool
    kept = {d.device for d in held}
    return replace(
        pool, devices=tuple(d for d in pool.devices if d.name in kept or units.cost(d.memory_slices) <= most)
    )


def _units(pool: PublishedPool) -> Units:
    return units_of(d.memory_slices for d in pool.devices if _is_partition(d))


def _is_partition(device: PublishedDevice) -> bool:
    return device.type == "mig"


def _tolerant(claim: Claim) -> Claim:
    """The claim, tolerating the taint of managed devices in every request."""
    return replace(
        claim,
        requests=tuple(replace(r, choices=tuple(_with_toleration(c) for c in r.choices)) for r in claim.requests),
    )


def _with_toleration(choice: RequestChoice) -> RequestChoice:
    return replace(choice, tolerations=(*choice.tolerations, MANAGED))
