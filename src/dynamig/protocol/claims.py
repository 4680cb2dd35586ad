"""A ResourceClaim as the driver needs it, read from the API object once and never from names.

Source: resource.k8s.io/v1 ResourceClaim, as served by Kubernetes 1.36 and 1.37.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dynamig.protocol import names


@dataclass(frozen=True, slots=True, order=True)
class ClaimRef:
    """One claim, told apart by UID: another claim may carry the same name later."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} ({self.uid})"


def base_request(request: str) -> str:
    """The request that a kubelet knows: for an alternative of firstAvailable (`request/alternative`) the part before
    the slash. Source: k8s.io/dynamic-resource-allocation resourceclaim.BaseRequestRef; names have no slash."""
    return request.partition("/")[0]


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One entry of `status.allocation.devices.results`."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool = False


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """One opaque configuration block of `status.allocation.devices.config` that names our driver."""

    requests: tuple[str, ...]
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClaimView:
    """A claim at one resourceVersion. `allocated` is empty both before allocation and after deallocation.

    `allocated_on`: the node, where the allocation is good on one only.
    """

    ref: ClaimRef
    resource_version: str
    deleting: bool
    finalizers: frozenset[str]
    annotations: Mapping[str, str]
    allocated: tuple[AllocatedDevice, ...]
    configs: tuple[DeviceConfig, ...] = ()
    reserved_for: tuple[str, ...] = ()
    devices_status: tuple[Mapping[str, Any], ...] = field(default=())
    allocated_on: str | None = None

    @property
    def held(self) -> bool:
        return names.HELD in self.finalizers

    @property
    def held_by_node(self) -> str | None:
        return self.annotations.get(names.NODE)

    @property
    def verified(self) -> bool:
        return names.VERIFIED in self.annotations

    @property
    def released(self) -> bool:
        return names.RELEASE in self.annotations

    def devices_of(self, driver: str) -> tuple[AllocatedDevice, ...]:
        return tuple(d for d in self.allocated if d.driver == driver)


def read_claim(obj: Mapping[str, Any], driver: str) -> ClaimView:
    """The view of one API object; `configs` are those addressed to `driver`, in the API's order."""
    meta = obj["metadata"]
    status = obj.get("status") or {}
    allocation = status.get("allocation") or {}
    devices = allocation.get("devices") or {}
    return ClaimView(
        ref=ClaimRef(meta["namespace"], meta["name"], meta["uid"]),
        resource_version=meta.get("resourceVersion", ""),
        deleting=meta.get("deletionTimestamp") is not None,
        finalizers=frozenset(meta.get("finalizers") or ()),
        annotations=dict(meta.get("annotations") or {}),
        allocated=tuple(_allocated(r) for r in devices.get("results") or ()),
        configs=tuple(_config(c) for c in devices.get("config") or () if _addressed_to(c, driver)),
        reserved_for=tuple(r["name"] for r in status.get("reservedFor") or ()),
        devices_status=tuple(status.get("devices") or ()),
        allocated_on=_only_node(allocation),
    )


def _only_node(allocation: Mapping[str, Any]) -> str | None:
    """Allocators match devices of one node by its name, in one field of one term."""
    match (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms"):
        case [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [str(node)]}]}]:
            return node
        case _:
            return None


def _allocated(result: Mapping[str, Any]) -> AllocatedDevice:
    return AllocatedDevice(
        request=result["request"],
        driver=result["driver"],
        pool=result["pool"],
        device=result["device"],
        admin_access=bool(result.get("adminAccess")),
    )


def _addressed_to(config: Mapping[str, Any], driver: str) -> bool:
    return bool((config.get("opaque") or {}).get("driver") == driver)


def _config(config: Mapping[str, Any]) -> DeviceConfig:
    return DeviceConfig(tuple(config.get("requests") or ()), config["opaque"].get("parameters") or {})
