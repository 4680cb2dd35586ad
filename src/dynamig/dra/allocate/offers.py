"""Which pools a node can be given devices from, and why not from others.

kube-scheduler leaves incomplete and invalid pools out, and so does this. Pools that use what this allocator does not
model are left out as well, and named when somebody asks for their devices.
Source: k8s.io/dynamic-resource-allocation v0.37.2, structured/internal/incubating/pools_incubating.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dynamig.dra.read import PublishedPool, read_pools

Slice = Mapping[str, Any]
PoolId = tuple[str, str]


class State(Enum):
    USABLE = "usable"
    INCOMPLETE = "incomplete"
    """The driver is still publishing."""
    INVALID = "invalid"
    """The driver published nonsense."""
    UNSUPPORTED = "unsupported"
    """kube-scheduler could use it, this allocator cannot."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A pool and whether its devices can be given away; `why` not, in words."""

    pool: PublishedPool
    state: State = State.USABLE
    why: str = ""


def offers_by_node(slices: Iterable[Slice]) -> dict[str, tuple[Offer, ...]]:
    """Every node that has slices of its own, with its offers by driver and pool name.

    Pools that are not one node's alone are unsupported, and offered as such on every node of the answer.

    Raises: Refused BAD_SLICE.
    """
    by_pool: dict[PoolId, list[Slice]] = {}
    for one in slices:
        by_pool.setdefault((one["spec"]["driver"], one["spec"]["pool"]["name"]), []).append(one)
    shared: list[Offer] = []
    local: dict[str, list[Offer]] = {}
    for members in by_pool.values():
        nodes = {one["spec"].get("nodeName") for one in members}
        if len(nodes) == 1 and (node := nodes.pop()):
            local.setdefault(node, []).append(_offer(members))
        else:
            (pool,) = read_pools(members)
            shared.append(Offer(pool, State.UNSUPPORTED, "its devices are not those of one node"))
    return {node: tuple(sorted((*own, *shared), key=_by_name)) for node, own in local.items()}


def _by_name(offer: Offer) -> PoolId:
    return offer.pool.driver, offer.pool.name


def _offer(slices: list[Slice]) -> Offer:
    (pool,) = read_pools(slices)
    newest = [one["spec"] for one in slices if int(one["spec"]["pool"].get("generation", 0)) == pool.generation]
    announced = {int(spec["pool"]["resourceSliceCount"]) for spec in newest}
    if announced != {len(newest)}:
        return Offer(pool, State.INCOMPLETE, pool.problem or "")
    if pool.problem:
        return Offer(pool, State.INVALID, pool.problem)
    sets = [one["name"] for spec in newest for one in spec.get("sharedCounters") or ()]
    if len(sets) > len(set(sets)):
        return Offer(pool, State.INVALID, "a counter set is published twice")
    if unsupported := next(_unsupported(newest), None):
        return Offer(pool, State.UNSUPPORTED, unsupported)
    return Offer(pool)


def _unsupported(specs: list[Mapping[str, Any]]) -> Iterator[str]:
    for spec in specs:
        if spec.get("perDeviceNodeSelection"):
            yield "its devices name their nodes one by one"
        for device in spec.get("devices") or ():
            yield from _unsupported_device(device)


def _unsupported_device(device: Mapping[str, Any]) -> Iterator[str]:
    name = device["name"]
    if device.get("allowMultipleAllocations") or any(
        one.get("requestPolicy") for one in (device.get("capacity") or {}).values()
    ):
        yield f"{name} is shared by capacity"
    if device.get("bindingConditions") or device.get("bindsToNode"):
        yield f"{name} has binding conditions"
    if any(one.get("compatibilityGroups") for one in device.get("consumesCounters") or ()):
        yield f"{name} has compatibility groups"
