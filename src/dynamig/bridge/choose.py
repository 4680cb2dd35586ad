"""Devices for a claim set on one GPU, by the structured allocator: implements `plan.Chooser` for one world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dynamig.bridge.by_identity import by_identity
from dynamig.bridge.plan import Choice, NoChoice, Pick
from dynamig.bridge.sets import ClaimSet
from dynamig.bridge.world import NodeView, SetClaim, World
from dynamig.dra import PublishedDevice, PublishedPool
from dynamig.dra.allocate import Choice as RequestChoice
from dynamig.dra.allocate import (
    Claim,
    DeviceClass,
    DeviceId,
    NodeDevices,
    Occupancy,
    Offer,
    Toleration,
    allocate,
    allocation_status,
    read_claim,
    read_class,
)
from dynamig.dra.allocate import Refusal as NoRoom
from dynamig.errors import Refused
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.hold_note import NotedDevice
from dynamig.protocol.shards import units_of
from dynamig.protocol.slurm_jobs import SlurmNodeName

MANAGED = Toleration(names.MANAGED_TAINT, "Exists", "", "")
"""What keeps kube-scheduler off these devices does not keep the bridge off."""


class WorldChooser:
    """`driver`: whose devices Slurm pays for. What is allocated, noted on a held claim, or promised by this very look
    is taken."""

    def __init__(self, world: World, driver: str) -> None:
        self._world = world
        self._held = _held_by_pool(world.claims, driver)
        self._promised = _promised_by_pool(world.promised, driver)

    def __call__(self, of: ClaimSet, gpu: GpuUuid, *, most: int | None = None) -> Choice | NoChoice:
        pool = self._world.pools.get(gpu)
        return self._choose(of.claims, gpu, frozenset() if pool is None else self._here(of.claims, pool.name), most)

    def when_empty(self, of: ClaimSet, gpu: GpuUuid) -> Choice | NoChoice:
        return self._choose(of.claims, gpu, frozenset(), None)

    def _choose(
        self, claims: Sequence[SetClaim], gpu: GpuUuid, here: frozenset[DeviceId], most: int | None
    ) -> Choice | NoChoice:
        pool = self._world.pools.get(gpu)
        if pool is None:
            return NoChoice(f"GPU {gpu} is not published completely")
        offered = _offered(pool)
        if unknown := here - offered.node.number.keys():
            return NoChoice(f"{min(unknown)} is held and not published: what it takes is not known")
        whole = self._shards(gpu)
        try:
            wanted, classes = [_wanted(c) for c in claims], _classes(self._world.classes)
        except Refused as refused:
            return NoChoice(str(refused))
        if idle := [c.name for c in wanted if not c.requests]:
            return NoChoice(f"claim {idle[0]} asks for no device: leave it out of the pod")
        found = allocate(offered.occupied(here, whole, most), wanted, classes)
        if isinstance(found, NoRoom):
            why = str(found) if most is None else f"for {most} shards: {found}"
            return NoChoice(why, unmatched=found.code == "NO_MATCH")
        if len(found.held) < sum(len(chosen) for chosen in found.picks):
            return NoChoice("it asks for adminAccess, which Slurm cannot pay for: no pod of this namespace gets it")
        cost = sum(offered.cost(d, whole) for d in found.held)
        if most is not None and cost > most:
            return NoChoice(f"costs {cost} shards, {most} can be had")
        picks = tuple(
            Pick(claim.view.ref.uid, pick.request, pick.device.pool, pick.device.device)
            for claim, chosen in zip(claims, found.picks, strict=True)
            for pick in chosen
        )
        told = (allocation_status(found, n, claim, classes)["devices"] for n, claim in enumerate(wanted))
        devices = {c.view.ref.uid: one for c, one in zip(claims, told, strict=True)}
        return Choice(gpu, picks, cost, found.score.lost, devices)

    def _here(self, claims: Sequence[SetClaim], pool: str) -> frozenset[DeviceId]:
        """What others have of the pool."""
        mine = {c.view.ref.uid for c in claims}
        taken = (*self._held.get(pool, ()), *self._promised.get(pool, ()))
        return frozenset(device for uid, device in taken if uid not in mine)

    def _shards(self, gpu: GpuUuid) -> int | None:
        """What Slurm has on the GPU, used or not; None if it does not say."""
        node, index = _places(self._world.nodes).get(gpu, (None, None))
        slurm = None if node is None else self._world.slurm_nodes.get(node)
        return None if slurm is None else next((g.shards for g in slurm.gpus if g.index == index), None)


class Offered:
    """One GPU's pool as the allocator reads it, and what its devices cost; computed once for each time that it is
    published."""

    def __init__(self, pool: PublishedPool) -> None:
        self.node = NodeDevices(pool.node or "", [Offer(pool)])
        footprints = [d.memory_slices for d in pool.devices]
        partitions = [f for d, f in zip(pool.devices, footprints, strict=True) if _is_partition(d) and f]
        self._units = units_of(partitions) if partitions else None
        self._costs = [None if self._units is None else self._units.cost(f) for f in footprints]

    def cost(self, device: DeviceId, whole: int | None) -> int:
        """Shards. `whole`: all that Slurm has on the GPU, which a device that leaves nothing costs, however they are
        counted."""
        return self._cost(self.node.number[device], whole)

    def _cost(self, number: int, whole: int | None) -> int:
        every = 1 if self._units is None else self._units.count
        cost = self._costs[number]
        return (whole or every) if cost is None or cost == every else cost

    def occupied(self, here: frozenset[DeviceId], whole: int | None, most: int | None) -> Occupancy:
        """The GPU while these devices are held; those that `most` shards cannot pay, each alone, cannot be had, but
        leave their place to others."""
        return self.node.once(("occupied", here, whole, most), lambda: self._occupied(here, whole, most))

    def _occupied(self, here: frozenset[DeviceId], whole: int | None, most: int | None) -> Occupancy:
        occupied = self.node.occupied(here)
        if most is None:
            return occupied
        dear = (n for n in range(len(self._costs)) if self._cost(n, whole) > most)
        return replace(occupied, held=occupied.held | sum(1 << n for n in dear))


@by_identity(keep=1 << 14)
def _offered(pool: PublishedPool) -> Offered:
    return Offered(pool)


@by_identity(keep=2)
def _classes(classes: Mapping[str, Mapping[str, Any]]) -> Mapping[str, DeviceClass]:
    """Raises: Refused for a class that cannot be read."""
    return {name: read_class(obj) for name, obj in classes.items()}


@by_identity(keep=1 << 12)
def _wanted(claim: SetClaim) -> Claim:
    """Raises: Refused for a claim that asks for what we do not allocate."""
    return _tolerant(read_claim(claim.body))


Taken = Mapping[str, Sequence[tuple[str, DeviceId]]]
"""By pool: UIDs of claims and devices."""


@by_identity(keep=2)
def _held_by_pool(claims: Mapping[str, SetClaim], driver: str) -> Taken:
    """Allocated, or noted on a held claim: its place may be in use."""
    taken: dict[str, list[tuple[str, DeviceId]]] = {}
    for uid, claim in claims.items():
        devices = {DeviceId(d.driver, d.pool, d.device) for d in claim.view.allocated if not d.admin_access}
        if claim.view.held:
            devices |= {DeviceId(driver, d.pool, d.device) for d in claim.noted}
        for device in devices:
            taken.setdefault(device.pool, []).append((uid, device))
    return taken


@by_identity(keep=2)
def _promised_by_pool(promised: Mapping[str, Sequence[NotedDevice]], driver: str) -> Taken:
    taken: dict[str, list[tuple[str, DeviceId]]] = {}
    for uid, devices in promised.items():
        for d in devices:
            taken.setdefault(d.pool, []).append((uid, DeviceId(driver, d.pool, d.device)))
    return taken


@by_identity(keep=2)
def _places(nodes: Mapping[str, NodeView]) -> Mapping[GpuUuid, tuple[SlurmNodeName, int]]:
    """Where each GPU is in Slurm."""
    return {gpu: (node.slurm, index) for node in nodes.values() for index, gpu in node.map.items()}


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
