"""The entries that the driver writes to `claim.status.devices`: what each device became, or why it did not.

Source: resource.k8s.io/v1 AllocatedDeviceStatus. `data` is ours: ids and placement as read back from NVML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynamig.errors import DynamigError
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimView
from dynamig.protocol.reasons import FINAL, is_final
from dynamig.protocol.records import ClaimRecord, DeviceRecord
from dynamig.protocol.times import from_rfc3339, to_rfc3339

MESSAGE_LIMIT = 32768
"""Bytes of a condition message that the API server takes (metav1.Condition)."""


def prepared(record: ClaimRecord, driver: str) -> Sequence[Mapping[str, Any]]:
    """One entry per device of a prepared claim."""
    condition = _condition("True", "Prepared", "the device is ready for its containers", record.since)
    return tuple(
        {"driver": driver, "pool": d.pool, "device": d.device, "conditions": [condition], "data": _data(d)}
        for d in record.devices
    )


def failed(claim: ClaimView, driver: str, error: DynamigError, now: float) -> Sequence[Mapping[str, Any]]:
    """One entry per allocated device of a claim whose prepare failed with `error`."""
    outlook = "this will not change by itself" if is_final(error) else "it is tried again"
    condition = _condition("False", _reason(error.code), f"{error} ({outlook})"[:MESSAGE_LIMIT], now)
    return tuple(
        {"driver": driver, "pool": d.pool, "device": d.device, "conditions": [condition]}
        for d in claim.devices_of(driver)
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the driver says of one device. `reason`: the condition's; `final`: a failure that trying again cannot mend.
    `since`: epoch seconds."""

    pool: str
    device: str
    prepared: bool
    reason: str
    final: bool
    message: str
    since: float
    data: Mapping[str, Any]


def outcomes(claim: ClaimView, driver: str) -> tuple[Outcome, ...]:
    """What `driver` has reported of the devices that the claim has now."""
    here = {(d.pool, d.device) for d in claim.devices_of(driver)}
    return tuple(
        _outcome(entry, condition)
        for entry in claim.devices_status
        if entry.get("driver") == driver and (entry.get("pool"), entry.get("device")) in here
        for condition in entry.get("conditions") or ()
        if condition["type"] == names.PREPARED
    )


def _outcome(entry: Mapping[str, Any], condition: Mapping[str, Any]) -> Outcome:
    return Outcome(
        pool=entry["pool"],
        device=entry["device"],
        prepared=condition["status"] == "True",
        reason=condition["reason"],
        final=condition["status"] != "True" and condition["reason"] in _FINAL_REASONS,
        message=condition["message"],
        since=from_rfc3339(condition["lastTransitionTime"]),
        data=entry.get("data") or {},
    )


def _data(device: DeviceRecord) -> dict[str, Any]:
    data: dict[str, Any] = {"gpuUUID": device.gpu}
    if device.partition is not None and device.live is not None:
        at = device.partition.placement
        data |= {
            "uuid": device.live.mig_uuid,
            "profile": device.profile_name,
            "profileID": device.partition.profile,
            "placement": {"start": at.start, "size": at.size},
            "gpuInstanceID": device.live.gi_id,
            "computeInstanceID": device.live.ci_id,
        }
    else:
        data["uuid"] = device.gpu
    return data


def _condition(status: str, reason: str, message: str, since: float) -> dict[str, str]:
    return {
        "type": names.PREPARED,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": to_rfc3339(since),
    }


def _reason(code: str) -> str:
    """PLACEMENT_BUSY becomes PlacementBusy: condition reasons are CamelCase by convention."""
    return "".join(word.capitalize() for word in code.lower().split("_"))


_FINAL_REASONS = frozenset(map(_reason, FINAL))
