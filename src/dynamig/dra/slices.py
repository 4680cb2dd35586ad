"""Pools as ResourceSlice objects that each Kubernetes version takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dynamig.dra import quantity
from dynamig.dra.limits import NAME_LENGTH, SliceLimits, limits_for
from dynamig.dra.model import AttributeValue, Device, Pool, Taint
from dynamig.dra.version import Version
from dynamig.errors import Refused

API_VERSION, KIND = "resource.k8s.io/v1", "ResourceSlice"


def resource_slices(
    pool: Pool, *, driver: str, node: str, generation: int, kubernetes: tuple[int, int] = (1, 37)
) -> tuple[dict[str, Any], ...]:
    """The pool as JSON-ready ResourceSlices: counters first, then devices in publishing order.

    From 1.35 the counter set has a slice of its own, on 1.34 it must be in the slice of the devices. Object
    names are deterministic and begin with the index, since the allocator reads a pool's slices in name
    order.

    Raises: Refused NAME_TOO_LONG, TOO_MANY_TAINTS, SLICE_TOO_LARGE (only 1.34, where a pool must fit into one
    slice) or UNSUPPORTED_KUBERNETES.
    """
    limits = limits_for(kubernetes)
    _check_pool(pool, limits)
    devices = [_device(device, pool.counter_set, limits) for device in pool.devices]
    counters = [_counter_set(pool)] if pool.counters else []
    if limits.separate:
        contents = [{"sharedCounters": counters}] if counters else []
        contents += [{"devices": chunk} for chunk in _chunks(devices, limits.devices)]
    else:
        _check_one_slice(pool, limits)
        contents = [{"sharedCounters": counters, "devices": devices} if counters else {"devices": devices}]
    head = {"name": pool.name, "generation": generation, "resourceSliceCount": len(contents)}
    return tuple(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": _object_name(i, driver, pool.name)},
            "spec": {"driver": driver, "nodeName": node, "pool": dict(head), **content},
        }
        for i, content in enumerate(contents)
    )


def same_content(published: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether writing `wanted` over `published` would change anything that matters.

    Not looked at: the pool's generation, `timeAdded` of taints and metadata that `wanted` does not mention
    (all added or changed by the server), empty fields, and how a quantity is written (`16384Mi` is `16Gi`).
    """
    metadata = _contains(published.get("metadata", {}), wanted.get("metadata", {}))
    return metadata and _canonical(published["spec"]) == _canonical(wanted["spec"])


def _counter_set(pool: Pool) -> dict[str, Any]:
    return {"name": pool.counter_set, "counters": {name: {"value": v} for name, v in pool.counters.items()}}


def _device(device: Device, counter_set: str, limits: SliceLimits) -> dict[str, Any]:
    published: dict[str, Any] = {
        "name": device.name,
        "attributes": {name: _attribute(value) for name, value in device.attributes.items()},
        "capacity": {name: {"value": value} for name, value in device.capacity.items()},
    }
    if device.consumes:
        counters = {name: {"value": value} for name, value in device.consumes.items()}
        published["consumesCounters"] = [{"counterSet": counter_set, "counters": counters}]
    if taints := _known_taints(device, limits):
        published["taints"] = [_taint(taint) for taint in taints]
    return published


def _attribute(value: AttributeValue) -> dict[str, Any]:
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case Version():
            return {"version": str(value)}
        case str():
            return {"string": value}


def _taint(taint: Taint) -> dict[str, str]:
    value = {"value": taint.value} if taint.value else {}
    return {"key": taint.key, **value, "effect": taint.effect}


def _known_taints(device: Device, limits: SliceLimits) -> tuple[Taint, ...]:
    """The taints that this version knows. Only "None" can be missing, and it keeps nothing from anywhere."""
    return tuple(taint for taint in device.taints if taint.effect in limits.effects)


def _check_pool(pool: Pool, limits: SliceLimits) -> None:
    if len(pool.name) > NAME_LENGTH:
        raise Refused("NAME_TOO_LONG", f"pool name {pool.name!r} is longer than {NAME_LENGTH} characters")
    for device in pool.devices:
        if (count := len(_known_taints(device, limits))) > limits.taints:
            what = f"{pool.name}/{device.name} has {count} taints"
            raise Refused("TOO_MANY_TAINTS", what, f"this Kubernetes takes {limits.taints} of a device")


def _check_one_slice(pool: Pool, limits: SliceLimits) -> None:
    consumed = sum(len(device.consumes) for device in pool.devices)
    if len(pool.devices) > limits.devices or consumed > limits.consumed_counters:
        raise Refused(
            "SLICE_TOO_LARGE",
            f"pool {pool.name} has {len(pool.devices)} devices that consume {consumed} counters;"
            f" Kubernetes 1.34 takes {limits.devices} and {limits.consumed_counters} at most, in one slice",
            "offer fewer profiles of this GPU, or update Kubernetes",
        )


def _chunks(devices: list[dict[str, Any]], size: int) -> Iterable[list[dict[str, Any]]]:
    return (devices[i : i + size] for i in range(0, len(devices), size))


def _object_name(index: int, driver: str, pool: str) -> str:
    """`00-gpu.nvidia.com-n1-gpu-0`, index first as Kubernetes' own publishing helper does it."""
    name = f"{index:02d}-{driver}-{pool.replace('/', '-')}"
    if len(name) > NAME_LENGTH:
        what = f"ResourceSlice name {name!r} is longer than {NAME_LENGTH} characters"
        raise Refused("NAME_TOO_LONG", what, "use a shorter node or driver name")
    return name


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(part, Mapping):
        return isinstance(whole, Mapping) and all(
            key in whole and _contains(whole[key], value) for key, value in part.items()
        )
    return bool(whole == part)


def _canonical(node: Any, field: str = "") -> Any:
    """A copy without what `same_content` ignores. Attributes are values of any name and stay as they are."""
    match node:
        case Mapping() if field in ("counters", "capacity"):
            return {name: quantity.parse(entry["value"]) for name, entry in node.items()}
        case Mapping() if field != "attributes":
            ignored = {"pool": "generation", "taints": "timeAdded"}.get(field)
            fields = {key: _canonical(value, key) for key, value in node.items() if key != ignored}
            return {key: value for key, value in fields.items() if value is not None and value not in ({}, [])}
        case list() | tuple():
            return [_canonical(one, field) for one in node]
        case _:
            return node
