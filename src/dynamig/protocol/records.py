"""What the journal keeps for one claim, as a value, and its form on disk.

One record a claim, JSON, with a version. Keys that this version does not know pass through a rewrite; a record
of a newer version is refused, never guessed at. Golden files of every released version stay in tests/golden.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dynamig.errors import Unavailable
from dynamig.mig import CiId, GiId, GiProfileId, GpuUuid, MigUuid, Partition, Placement
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.lifecycle import OWNS_HARDWARE, Event, State, step

VERSION = 1


@dataclass(frozen=True, slots=True)
class LiveIds:
    """Ids of one made instance. Valid until it is destroyed; never derived from anything, always as NVML gave them.

    `ci_id` and `mig_uuid` are None between the making of the GPU instance and that of its compute instance.
    """

    gi_id: GiId
    ci_id: CiId | None = None
    mig_uuid: MigUuid | None = None


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One allocated device. `partition` None: the whole GPU, on which we make and destroy nothing.

    `making`: the next act on hardware makes this one, at a place that was just seen empty. Only then, and with ids, is
    an instance at its place shown to be ours: other devices of the claim are only wanted.
    """

    request: str
    pool: str
    device: str
    gpu: GpuUuid
    partition: Partition | None
    profile_name: str | None = None
    live: LiveIds | None = None
    making: bool = False

    @property
    def identity(self) -> tuple[str, str, str]:
        return (self.request, self.pool, self.device)


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """One claim. `since`: seconds of the epoch at the last change of state; `boot_id`: boot in which it was made.

    `seen_gone`: what it had was read to be gone, so what is at its places now is not its own.
    """

    ref: ClaimRef
    state: State
    devices: tuple[DeviceRecord, ...]
    boot_id: str
    since: float
    seen_gone: bool = False
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def owns_hardware(self) -> bool:
        return self.state in OWNS_HARDWARE

    @property
    def live_devices(self) -> tuple[DeviceRecord, ...]:
        """Devices that were made, and so may be in use by a container."""
        return tuple(d for d in self.devices if d.live is not None)

    def partitions_on(self, gpu: GpuUuid) -> tuple[Partition, ...]:
        return tuple(d.partition for d in self.devices if d.gpu == gpu and d.partition is not None)

    def after(self, event: Event, *, now: float, **changes: Any) -> ClaimRecord:
        """The record after `event`; raises InvariantBroken if the lifecycle table has no such step."""
        return replace(self, state=step(self.state, event), since=now, **changes)


def listed(devices: Iterable[DeviceRecord]) -> str:
    """Pools and names, for people."""
    return ", ".join(f"{d.pool}/{d.device}" for d in devices)


def held_devices(records: Iterable[ClaimRecord]) -> dict[GpuUuid, frozenset[str]]:
    """Names of the devices that claims have, by GPU."""
    held: dict[GpuUuid, frozenset[str]] = {}
    for device in (d for r in records for d in r.devices):
        held[device.gpu] = held.get(device.gpu, frozenset()) | {device.device}
    return held


def to_json(record: ClaimRecord) -> dict[str, Any]:
    return {
        **record.unknown,
        "v": VERSION,
        "claim": {"namespace": record.ref.namespace, "name": record.ref.name, "uid": record.ref.uid},
        "state": record.state.value,
        "bootId": record.boot_id,
        "since": record.since,
        "seenGone": record.seen_gone,
        "devices": [_device_to_json(d) for d in record.devices],
    }


def _device_to_json(d: DeviceRecord) -> dict[str, Any]:
    body: dict[str, Any] = {"request": d.request, "pool": d.pool, "device": d.device, "gpu": d.gpu}
    if d.partition is not None:
        at = d.partition.placement
        body["partition"] = {
            "profileId": d.partition.profile,
            "profile": d.profile_name,
            "start": at.start,
            "size": at.size,
        }
    if d.live is not None:
        body["live"] = {"giId": d.live.gi_id, "ciId": d.live.ci_id, "uuid": d.live.mig_uuid}
    if d.making:
        body["making"] = True
    return body


_KNOWN = frozenset({"v", "claim", "state", "bootId", "since", "seenGone", "devices"})


def from_json(body: Mapping[str, Any]) -> ClaimRecord:
    """The record of one journal file.

    Raises: Unavailable NEWER_JOURNAL for a version we do not know; KeyError, TypeError or ValueError for a body
    that is not a record (the caller keeps the file and treats the hardware as not ours).
    """
    version = body["v"]
    if not isinstance(version, int) or version < 1:
        raise ValueError(f"journal record version {version!r}")
    if version > VERSION:
        raise Unavailable(
            "NEWER_JOURNAL",
            f"journal record of version {version}, this dynamig knows up to {VERSION}",
            "run the newer dynamig, or drain the node with it before going back",
        )
    claim = body["claim"]
    return ClaimRecord(
        ref=ClaimRef(str(claim["namespace"]), str(claim["name"]), str(claim["uid"])),
        state=State(body["state"]),
        devices=tuple(_device_from_json(d) for d in body["devices"]),
        boot_id=str(body["bootId"]),
        since=float(body["since"]),
        seen_gone=bool(body["seenGone"]),
        unknown={k: v for k, v in body.items() if k not in _KNOWN},
    )


def _device_from_json(body: Mapping[str, Any]) -> DeviceRecord:
    part = body.get("partition")
    live = body.get("live")
    return DeviceRecord(
        request=str(body["request"]),
        pool=str(body["pool"]),
        device=str(body["device"]),
        gpu=GpuUuid(str(body["gpu"])),
        partition=None if part is None else _partition_from_json(part),
        profile_name=None if part is None else part["profile"],
        live=None if live is None else _live_from_json(live),
        making=bool(body.get("making")),
    )


def _partition_from_json(body: Mapping[str, Any]) -> Partition:
    return Partition(GiProfileId(int(body["profileId"])), Placement(int(body["start"]), int(body["size"])))


def _live_from_json(body: Mapping[str, Any]) -> LiveIds:
    ci, uuid = body["ciId"], body["uuid"]
    return LiveIds(
        GiId(int(body["giId"])), None if ci is None else CiId(int(ci)), None if uuid is None else MigUuid(str(uuid))
    )
