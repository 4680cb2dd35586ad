"""The devices of one node in the order in which kube-scheduler tries them, and what is held of them.

Device i of a node is bit i everywhere: pools by driver and name, slices by object name, devices by position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

from dynamig.dra.allocate.bits import bit_numbers, bits_of
from dynamig.dra.allocate.claims import DeviceId, Toleration
from dynamig.dra.allocate.counters import Counter, Group
from dynamig.dra.allocate.offers import Offer, State
from dynamig.dra.allocate.selection import Catalog
from dynamig.dra.read import PublishedDevice, PublishedPool, PublishedTaint, PublishedValue

T = TypeVar("T")
NOTHING: Mapping[str, Mapping[str, Fraction]] = MappingProxyType({})
KEPT = 256

PREVENTING = ("NoSchedule", "NoExecute")
"""Taint effects that keep a device from being allocated; None and unknown ones do not."""


class NodeDevices:
    """What a node offers, all of it computed once; only `Occupancy` changes from pod to pod.

    `devices`: driver and device, without what it consumes: that is in `groups`. `ids`: their names. `groups`: devices
    that share counters. `group_of`: number of the device's group, -1 for one without counters. `rejected`: offers
    whose devices cannot be given away.
    """

    def __init__(self, name: str, offers: Iterable[Offer]) -> None:
        self.name = name
        offers = tuple(offers)
        usable = [offer.pool for offer in offers if offer.state is State.USABLE]
        self.rejected = tuple(offer for offer in offers if offer.state is not State.USABLE)
        slim = _Slim()
        self.devices = tuple((p.driver, slim(d)) for p in usable for d in p.devices)
        self.ids = tuple(DeviceId(p.driver, p.name, d.name) for p in usable for d in p.devices)
        self.number = {device: i for i, device in enumerate(self.ids)}
        self.catalog = Catalog(self.devices)
        self._pools = frozenset((p.driver, p.name) for p in usable)
        self.groups, self._pool_groups = _groups(usable)
        self.group_of = [-1] * len(self.ids)
        for g, group in enumerate(self.groups):
            for device in group.devices:
                self.group_of[device] = g
        self._without_counters = self.catalog.all & ~bits_of(d for group in self.groups for d in group.devices)
        self._taints = _by_taint(self.devices)
        self._intolerable: dict[tuple[Toleration, ...], int] = {}
        self._kept: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, made at the first call with this key: the node's devices never change."""
        made: T | None = self._kept.get(key)
        if made is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            made = self._kept[key] = make()
        return made

    @cached_property
    def rejected_catalogs(self) -> tuple[tuple[Offer, Catalog], ...]:
        """The devices of rejected pools, to tell whether somebody asks for them."""
        return tuple((o, Catalog([(o.pool.driver, d) for d in o.pool.devices])) for o in self.rejected)

    def intolerable(self, tolerations: tuple[Toleration, ...]) -> int:
        """Devices with a taint that keeps them from being allocated and that none of these tolerates."""
        if (known := self._intolerable.get(tolerations)) is None:
            known = 0
            for taint, devices in self._taints.items():
                if not any(one.tolerates(taint) for one in tolerations):
                    known |= devices
            self._intolerable[tolerations] = known
        return known

    def taints_of(self, devices: int) -> tuple[str, ...]:
        """Keys of the preventing taints on any of the devices."""
        return tuple(sorted({taint.key for taint, tainted in self._taints.items() if tainted & devices}))

    def occupied(self, held: Collection[DeviceId] = ()) -> Occupancy:
        """The node while exactly these devices are held; those of other nodes may be among them."""
        numbers = (
            [i for i, device in enumerate(self.ids) if device in held]
            if len(held) > len(self.ids)
            else [self.number[device] for device in held if device in self.number]
        )
        bits = bits_of(numbers)
        left = [group.left([*bit_numbers(bits & group.all)]) for group in self.groups]
        return Occupancy(self, bits, tuple(left), self._fitting(left))

    def unpublished(self, held: Iterable[DeviceId]) -> tuple[DeviceId, ...]:
        """Held devices of this node's pools that are not published any more.

        To kube-scheduler, and so here, they hold nothing: their place may be given away.
        """
        return tuple(d for d in held if (d.driver, d.pool) in self._pools and d not in self.number)

    def _fitting(self, left: Sequence[int | None]) -> int:
        """Devices whose counters suffice. One overdrawn counter closes all devices with counters of its pool."""
        bits = self._without_counters
        for groups in self._pool_groups:
            if all(left[g] is not None for g in groups):
                for g in groups:
                    bits |= self.groups[g].fitting(left[g] or 0)
        return bits


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A node at one moment. `held`: devices in use. `left`: per group what remains of its counters, packed; None if
    overdrawn. `fitting`: devices whose counters suffice. `answers`: what was asked and found already, kept by the
    allocator; a node that changes is another `Occupancy` without any.
    """

    node: NodeDevices
    held: int
    left: tuple[int | None, ...]
    fitting: int
    answers: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def free(self) -> int:
        return self.fitting & ~self.held

    def changed(self, *, hold: Iterable[DeviceId] = (), release: Iterable[DeviceId] = ()) -> Occupancy:
        """The node after these changes; only the groups concerned are computed again. Unknown devices are ignored."""
        number = self.node.number
        held = self.held & ~bits_of(number[d] for d in release if d in number)
        held |= bits_of(number[d] for d in hold if d in number)
        touched, left = held ^ self.held, list(self.left)
        for g in {self.node.group_of[i] for i in bit_numbers(touched)} - {-1}:
            left[g] = self.node.groups[g].left([*bit_numbers(held & self.node.groups[g].all)])
        return Occupancy(self.node, held, tuple(left), self.node._fitting(left))


class _Slim:
    """Makes devices small, a cluster has 200,000: no counters, and equal attributes and capacities once."""

    def __init__(self) -> None:
        self._attributes: dict[object, Mapping[str, PublishedValue]] = {}

    def __call__(self, device: PublishedDevice) -> PublishedDevice:
        kinds = tuple(type(value) for value in device.attributes.values())
        attributes = self._attributes.setdefault((kinds, *device.attributes.items()), device.attributes)
        amounts = tuple((name, amount.numerator, amount.denominator) for name, amount in device.capacity.items())
        return replace(device, attributes=attributes, capacity=_capacity(amounts), consumes=NOTHING)


@lru_cache(maxsize=4096)
def _capacity(amounts: tuple[tuple[str, int, int], ...]) -> Mapping[str, Fraction]:
    return MappingProxyType({name: Fraction(*amount) for name, *amount in amounts})


def _by_taint(devices: Sequence[tuple[str, PublishedDevice]]) -> dict[PublishedTaint, int]:
    taints: dict[PublishedTaint, int] = {}
    for i, (_, device) in enumerate(devices):
        for taint in device.taints:
            if taint.effect in PREVENTING:
                taints[taint] = taints.get(taint, 0) | 1 << i
    return taints


def _groups(pools: Sequence[PublishedPool]) -> tuple[tuple[Group, ...], tuple[tuple[int, ...], ...]]:
    """All groups in order, and per pool the numbers of its groups."""
    groups: list[Group] = []
    by_pool: list[tuple[int, ...]] = []
    first = 0
    for pool in pools:
        own = [_group(pool, first, numbers) for numbers in _sharing(pool)]
        by_pool.append(tuple(range(len(groups), len(groups) + len(own))))
        groups += own
        first += len(pool.devices)
    return tuple(groups), tuple(by_pool)


def _sharing(pool: PublishedPool) -> list[list[int]]:
    """Positions in the pool of devices that are joined by the counter sets they consume from, set by set."""
    members: list[tuple[set[str], list[int]]] = []
    for i, device in enumerate(pool.devices):
        if not device.consumes:
            continue
        sets, numbers = set(device.consumes), [i]
        for other in [one for one in members if one[0] & sets]:
            sets, numbers = sets | other[0], numbers + other[1]
            members.remove(other)
        members.append((sets, numbers))
    return sorted(sorted(numbers) for _, numbers in members)


def _group(pool: PublishedPool, first: int, positions: list[int]) -> Group:
    takes = [_flat(pool.devices[i].consumes) for i in positions]
    sets = {name for i in positions for name in pool.devices[i].consumes}
    totals = _flat({name: pool.counters[name] for name in sets})
    return Group([first + i for i in positions], totals, takes)


def _flat(amounts: Mapping[str, Mapping[str, Fraction]]) -> dict[Counter, Fraction]:
    return {(name, counter): amount for name, counters in amounts.items() for counter, amount in counters.items()}
