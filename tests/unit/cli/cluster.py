"""A small cluster for tests, as the API server holds it: slices by the code that publishes, status by the driver's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dynamig.dra import Device, Pool, Taint, gpu_pool, resource_slices
from dynamig.mig import CiId, GiId, GpuUuid, MigUuid
from dynamig.protocol import device_status, names
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.lifecycle import State
from dynamig.protocol.records import ClaimRecord, DeviceRecord, LiveIds
from tests.unit.dra.gpus import facts

Object = dict[str, Any]
DRIVER = names.DRIVER_NAME


def gpu_uuid(node: str, number: int) -> str:
    return f"GPU-{node}-{number}"


def mig_uuid(among: Pool, one: Device) -> str:
    return f"MIG-{among.name}-{one.name}"


def pool(node: str = "n1", number: int = 0, **changes: object) -> Pool:
    taints = changes.pop("taints", {})
    told = facts(number=number, uuid=GpuUuid(gpu_uuid(node, number)), **changes)
    return gpu_pool(node, told, taints=taints)  # type: ignore[arg-type]


def slices(*pools: Pool, node: str = "n1") -> list[Object]:
    return [s for p in pools for s in resource_slices(p, driver=DRIVER, node=node, generation=1)]


def in_the_way(of: Iterable[int], among: Pool) -> Mapping[str, tuple[Taint, ...]]:
    """Taints as the driver sets them for instances of unknown owner on these memory slices."""
    taken = set(of)
    taint = (Taint(names.FOREIGN_TAINT, "", "NoSchedule"),)
    return {d.name: taint for d in among.devices if d.partition is None or taken & slices_of(d)}


def slices_of(device: Device) -> set[int]:
    at = device.partition
    return set() if at is None else set(range(at.placement.start, at.placement.end))


def device(name_part: str, among: Pool) -> Device:
    """The first device whose name has this part."""
    return next(d for d in among.devices if name_part in d.name)


def claim(
    name: str, devices: Sequence[tuple[Pool, Device]], *, pods: Sequence[str] = (), namespace: str = "ml", **meta: Any
) -> Object:
    """A claim that the scheduler allocated and a driver has not seen yet."""
    results = [
        {"request": f"r{i}", "driver": DRIVER, "pool": p.name, "device": d.name} for i, (p, d) in enumerate(devices)
    ]
    status: Object = {"reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]}
    if results:
        status["allocation"] = {"devices": {"results": results}}
    return {"metadata": {"namespace": namespace, "name": name, "uid": f"uid-{name}", **meta}, "status": status}


def ready(claimed: Object, devices: Sequence[tuple[Pool, Device]]) -> Object:
    """The same claim after the driver prepared it; see `mig_uuid`."""
    ref = ClaimRef(claimed["metadata"]["namespace"], claimed["metadata"]["name"], claimed["metadata"]["uid"])
    records = tuple(_record(p, d) for p, d in devices)
    entries = device_status.prepared(ClaimRecord(ref, State.PREPARED, records, "boot", 0.0), DRIVER)
    return {**claimed, "status": {**claimed["status"], "devices": list(entries)}}


def _record(among: Pool, one: Device) -> DeviceRecord:
    gpu = among.gpu.uuid
    if one.partition is None:
        return DeviceRecord("r", among.name, one.name, gpu, None)
    live = LiveIds(GiId(1), CiId(0), MigUuid(mig_uuid(among, one)))
    return DeviceRecord("r", among.name, one.name, gpu, one.partition, str(one.attributes["profile"]), live)
