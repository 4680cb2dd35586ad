"""Devices for a claim set on one GPU, by the structured allocator: implements `plan.Chooser` for one world."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from dynamig.bridge.plan import Choice, NoChoice, Pick
from dynamig.bridge.sets import ClaimSet
from dynamig.bridge.world import SetClaim, World
from dynamig.dra import PublishedDevice, PublishedPool
from dynamig.dra.allocate import Choice as RequestChoice
from dynamig.dra.allocate import (
    Claim,
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
    """`driver`: whose devices Slurm pays for. What is allocated, noted on a held claim, or promised by this very look
    is taken."""

    def __init__(self, world: World, driver: str) -> None:
        self._world = world
        self._driver = driver
        self._shards = _shards_of_gpus(world)

    def __call__(self, of: ClaimSet, gpu: GpuUuid, *, most: int | None = None) -> Choice | NoChoice:
        return self._choose(of.claims, gpu, self._held(of.claims), most)

    def when_empty(self, of: ClaimSet, gpu: GpuUuid) -> Choice | NoChoice:
        return self._choose(of.claims, gpu, frozenset(), None)

    def _choose(
        self, claims: Sequence[SetClaim], gpu: GpuUuid, held: Collection[DeviceId], most: int | None
    ) -> Choice | NoChoice:
        pool = self._world.pools.get(gpu)
        if pool is None:
            return NoChoice(f"GPU {gpu} is not published completely")
        here = frozenset(d for d in held if d.pool == pool.name)
        if unknown := here - {DeviceId(pool.driver, pool.name, d.name) for d in pool.devices}:
            return NoChoice(f"{min(unknown)} is held and not published: what it takes is not known")
        price = Price.of(pool, self._shards.get(gpu))
        try:
            classes = {name: read_class(obj) for name, obj in self._world.classes.items()}
            wanted = [_tolerant(read_claim(c.body)) for c in claims]
        except Refused as refused:
            return NoChoice(str(refused))
        node = NodeDevices(pool.node or "", [Offer(_affordable(pool, price, most, here))])
        found = allocate(node.occupied(here), wanted, classes)
        if isinstance(found, NoRoom):
            return NoChoice(str(found))
        if len(found.held) < sum(len(chosen) for chosen in found.picks):
            return NoChoice("it asks for adminAccess, which Slurm cannot pay for: no pod of this namespace gets it")
        by_name = {d.name: d for d in pool.devices}
        cost = sum(price.of_device(by_name[d.device]) for d in found.held)
        if most is not None and cost > most:
            return NoChoice(f"costs {cost} shards, {most} can be had")
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
            noted = claim.note.devices if claim.view.held and claim.note is not None else ()
            promised = self._world.promised.get(claim.view.ref.uid, ())
            held |= {DeviceId(self._driver, d.pool, d.device) for d in (*noted, *promised)}
        return frozenset(held)


@dataclass(frozen=True, slots=True)
class Price:
    """What devices of one GPU cost. `units`: None for a GPU without partitions; `whole`: all shards that Slurm has on
    it, which a device that leaves nothing costs, however they are counted."""

    units: Units | None
    whole: int

    @classmethod
    def of(cls, pool: PublishedPool, shards: int | None) -> Price:
        footprints = [d.memory_slices for d in pool.devices if _is_partition(d) and d.memory_slices]
        units = units_of(footprints) if footprints else None
        return cls(units, shards or (units.count if units is not None else 1))

    def of_device(self, device: PublishedDevice) -> int:
        if self.units is None:
            return self.whole
        cost = self.units.cost(device.memory_slices)
        return self.whole if cost == self.units.count else cost


def _shards_of_gpus(world: World) -> Mapping[GpuUuid, int]:
    """What Slurm has on each GPU, used or not."""
    return {
        node.map[gpu.index]: gpu.shards
        for node in world.nodes.values()
        if (slurm := world.slurm_nodes.get(node.slurm)) is not None
        for gpu in slurm.gpus
        if gpu.index in node.map
    }


def _affordable(pool: PublishedPool, price: Price, most: int | None, held: Collection[DeviceId]) -> PublishedPool:
    """The pool with the devices that `most` shards can pay, each alone, and those that are held: a device that is held
    and not in the pool would count as free."""
    if most is None:
        return pool
    kept = {d.device for d in held}
    return replace(pool, devices=tuple(d for d in pool.devices if d.name in kept or price.of_device(d) <= most))


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
