"""From an allocated claim to the devices that this node must prepare, or a refusal that a user can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dynamig.driver.catalog import Catalog
from dynamig.errors import Refused, Unavailable
from dynamig.protocol.claims import AllocatedDevice, ClaimView
from dynamig.protocol.records import DeviceRecord

CONFIG_API: Final = "resource.nvidia.com/v1beta1"
CONFIG_KINDS: Final = frozenset({"GpuConfig", "MigDeviceConfig"})


def wanted_devices(claim: ClaimView, driver_name: str, catalog: Catalog) -> Sequence[DeviceRecord]:
    """The devices of `claim` that are ours, in the order of its allocation.

    Raises: Refused, with the codes of `protocol.reasons`, for a claim that may not be prepared (PROTOCOL P3).
    """
    if claim.deleting:
        raise Refused("CLAIM_DELETED", f"claim {claim.ref} is being deleted", "make the pod again")
    if claim.released:
        raise Refused("RELEASED", f"claim {claim.ref} was released by the bridge", "it is committed again first")
    ours = claim.devices_of(driver_name)
    if not ours:
        raise Refused(
            "NOT_ALLOCATED",
            f"claim {claim.ref} has no device of driver {driver_name} allocated",
            "a scheduler allocates it when its pod is bound",
        )
    for config in claim.configs:
        _check_config(claim, config.parameters)
    return tuple(device_record(claim, device, catalog) for device in ours)


def check_held(claim: ClaimView, node: str) -> None:
    """With Slurm only the bridge holds a claim, before it allocates: what nobody pays for is not prepared (P3).

    Raises: Refused NOT_HELD; Unavailable HELD_ELSEWHERE for a claim that another node holds.
    """
    if not claim.held or claim.held_by_node is None:
        raise Refused(
            "NOT_HELD",
            f"claim {claim.ref} is allocated on {node}, and the bridge to Slurm does not hold it for that",
            "make the pod in a namespace that is labelled `dynamig.io/scheduler: slurm`",
        )
    if claim.held_by_node != node:
        raise Unavailable(
            "HELD_ELSEWHERE",
            f"claim {claim.ref} is allocated on {node} and held for node {claim.held_by_node}",
            "the bridge commits it again; prepare is tried again",
        )


def device_record(claim: ClaimView, allocated: AllocatedDevice, catalog: Catalog) -> DeviceRecord:
    """What the claim was allocated, by the facts of the catalog. Raises Refused ADMIN_ACCESS or UNKNOWN_DEVICE."""
    if allocated.admin_access:
        raise Refused(
            "ADMIN_ACCESS",
            f"claim {claim.ref}: request {allocated.request} asks for adminAccess, which is not offered yet",
            "read GPU state on the host instead",
        )
    offer, device = catalog.find(allocated.pool, allocated.device)
    return DeviceRecord(
        request=allocated.request,
        pool=allocated.pool,
        device=allocated.device,
        gpu=offer.reading.uuid,
        partition=device.partition,
        profile_name=None if device.partition is None else offer.profile_name(device.partition),
    )


def _check_config(claim: ClaimView, parameters: Mapping[str, Any]) -> None:
    """NVIDIA's configuration kinds are accepted as long as they ask for nothing that we would silently ignore."""
    api, kind = parameters.get("apiVersion"), parameters.get("kind")
    if api != CONFIG_API or kind not in CONFIG_KINDS:
        raise Refused(
            "UNSUPPORTED_CONFIG",
            f"claim {claim.ref}: configuration {api} {kind}",
            f"this driver reads {CONFIG_API} {' and '.join(sorted(CONFIG_KINDS))}",
        )
    if settings := sorted(set(parameters) - {"apiVersion", "kind"}):
        raise Refused(
            "UNSUPPORTED_CONFIG",
            f"claim {claim.ref}: {kind} sets {', '.join(settings)}, which this driver does not do",
            "leave it out of the claim or its DeviceClass",
        )
