"""In-memory stand-ins for the driver's ports. They keep the rules that the real ones keep, and pass the same checks
(`dynamig.testing.checks`); what they add is a way to look inside and to make a call fail."""

from __future__ import annotations

import copy
import itertools
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dynamig.errors import Conflict, DynamigError, Refused, Unavailable
from dynamig.mig import CiId, GiId, GpuUuid, MigUuid, Partition, Table
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef, ClaimView, read_claim
from dynamig.protocol.gpus import ComputeInstance, DeviceNode, GpuReading, LiveInstance, MigMode
from dynamig.protocol.records import ClaimRecord
from dynamig.protocol.seen import Found, Gone, Seen, Unknown


class Faults:
    """Errors to raise from named calls: `fail("create_gpu_instance", error, nth=2)`; each is used up once raised."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: dict[str, list[tuple[int, DynamigError]]] = {}
        self._calls: dict[str, int] = {}

    def fail(self, call: str, error: DynamigError, *, nth: int = 1) -> None:
        with self._lock:
            self._planned.setdefault(call, []).append((self._calls.get(call, 0) + nth, error))

    def check(self, call: str) -> None:
        with self._lock:
            count = self._calls[call] = self._calls.get(call, 0) + 1
            for planned in self._planned.get(call, []):
                if planned[0] == count:
                    self._planned[call].remove(planned)
                    raise planned[1]


class FakeGpus:
    """GPUs with MIG in memory; instance ids are given from a pool that says nothing about placement."""

    def __init__(self, readings: Iterable[GpuReading]) -> None:
        self.faults = Faults()
        self._lock = threading.RLock()
        self._readings = {r.uuid: r for r in readings}
        self._live: dict[GpuUuid, dict[GiId, LiveInstance]] = {gpu: {} for gpu in self._readings}
        self.most_alive: dict[GpuUuid, int] = dict.fromkeys(self._readings, 0)

    def readings(self) -> Sequence[GpuReading]:
        return tuple(self._readings.values())

    def reading(self, gpu: GpuUuid) -> GpuReading:
        return self._readings[gpu]

    def minor(self, gpu: GpuUuid) -> int:
        return self._readings[gpu].minor

    def mig_mode(self, gpu: GpuUuid) -> MigMode:
        return self._readings[gpu].mig_mode

    def instances(self, gpu: GpuUuid) -> Sequence[LiveInstance]:
        self.faults.check("instances")
        with self._lock:
            return tuple(self._live[gpu].values())

    def create_gpu_instance(self, gpu: GpuUuid, partition: Partition) -> GiId:
        self.faults.check("create_gpu_instance")
        with self._lock:
            reading, live = self._readings[gpu], self._live[gpu]
            if reading.mig_mode is not MigMode.ON or reading.geometry is None:
                raise Refused("NOT_SUPPORTED", f"{gpu}: MIG mode is off")
            if not Table(reading.geometry).fits([i.partition for i in live.values()], partition):
                raise Refused("NO_ROOM", f"{gpu}: {partition} does not fit")
            gi = GiId(next(n for n in _scrambled() if n not in live))
            live[gi] = LiveInstance(gi, partition.profile, partition.placement)
            self.most_alive[gpu] = max(self.most_alive[gpu], len(live))
            return gi

    def create_compute_instance(self, gpu: GpuUuid, gi: GiId) -> CiId:
        self.faults.check("create_compute_instance")
        with self._lock:
            instance = self._live[gpu][gi]
            made = ComputeInstance(CiId(0), MigUuid(f"MIG-{uuid.uuid4()}"), fills=True)
            self._live[gpu][gi] = replace(instance, compute=(made,))
            return made.ci_id

    def destroy_compute_instance(self, gpu: GpuUuid, gi: GiId, ci: CiId) -> None:
        self.faults.check("destroy_compute_instance")
        with self._lock:
            instance = self._live[gpu].get(gi)
            if instance is None or not any(c.ci_id == ci for c in instance.compute):
                raise Unavailable("NOT_FOUND", f"{gpu}: no compute instance {ci} in {gi}")
            self._live[gpu][gi] = replace(instance, compute=())

    def destroy_gpu_instance(self, gpu: GpuUuid, gi: GiId) -> None:
        self.faults.check("destroy_gpu_instance")
        with self._lock:
            instance = self._live[gpu].get(gi)
            if instance is None:
                raise Unavailable("NOT_FOUND", f"{gpu}: no GPU instance {gi}")
            if instance.compute:
                raise Unavailable("IN_USE", f"{gpu}: GPU instance {gi} has compute instances")
            del self._live[gpu][gi]

    def set_mig_mode(self, gpu: GpuUuid, *, on: bool) -> None:
        self.faults.check("set_mig_mode")
        with self._lock:
            if self._live[gpu]:
                raise Unavailable("IN_USE", f"{gpu}: instances live")
            self._readings[gpu] = replace(self._readings[gpu], mig_mode=MigMode.ON if on else MigMode.OFF)

    def foreign(self, gpu: GpuUuid, partition: Partition) -> GiId:
        """An instance made by somebody who is not the driver."""
        gi = self.create_gpu_instance(gpu, partition)
        self.create_compute_instance(gpu, gi)
        return gi

    def reboot(self) -> None:
        with self._lock:
            self._live = {gpu: {} for gpu in self._readings}


def _scrambled() -> Iterable[int]:
    return (n * 5 % 17 for n in range(1, 17))


@dataclass
class FakeNodes:
    """Device nodes that all exist, with minors that follow from the ids."""

    boot: str = "boot-1"

    def boot_id(self) -> str:
        return self.boot

    def gpu_nodes(self, minor: int) -> Sequence[DeviceNode]:
        return (_node(f"/dev/nvidia{minor}", 195, minor), _node("/dev/nvidiactl", 195, 255))

    def capability_nodes(self, minor: int, gi: GiId, ci: CiId) -> Sequence[DeviceNode]:
        number = 1000 * minor + 10 * gi
        return tuple(_node(f"/dev/nvidia-caps/nvidia-cap{n}", 235, n) for n in (number, number + 1 + ci))


def _node(path: str, major: int, minor: int) -> DeviceNode:
    return DeviceNode(path, path, major, minor)


class FakeClaims:
    """ResourceClaims with resourceVersions, finalizers and deletion as the API server has them."""

    def __init__(self, driver: str = names.DRIVER_NAME) -> None:
        self.faults = Faults()
        self.silent = False
        self.reported: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._driver = driver
        self._lock = threading.RLock()
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self._versions = itertools.count(1)

    def put(self, obj: Mapping[str, Any]) -> ClaimRef:
        """The object is on the server, as if its users and controllers had written it."""
        with self._lock:
            stored = copy.deepcopy(dict(obj))
            stored["metadata"]["resourceVersion"] = str(next(self._versions))
            meta = stored["metadata"]
            self._objects[meta["namespace"], meta["name"]] = stored
            return ClaimRef(meta["namespace"], meta["name"], meta["uid"])

    def deallocate(self, ref: ClaimRef, *, delete: bool = False) -> None:
        """What the claim controller does when the pod has ended."""
        with self._lock:
            obj = self._objects[ref.namespace, ref.name]
            obj["status"] = {}
            if delete:
                obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self._touch(obj)

    def get(self, ref: ClaimRef) -> Seen[ClaimView]:
        if self.silent:
            return Unknown("the API server does not answer")
        with self._lock:
            obj = self._objects.get((ref.namespace, ref.name))
            if obj is None or obj["metadata"]["uid"] != ref.uid:
                return Gone("not on the server")
            return Found(read_claim(obj, self._driver))

    def hold(self, claim: ClaimView, annotations: Mapping[str, str]) -> ClaimView:
        self.faults.check("hold")
        with self._lock:
            obj = self._current(claim)
            meta = obj["metadata"]
            meta["finalizers"] = sorted({*meta.get("finalizers", ()), names.HELD})
            meta["annotations"] = {**meta.get("annotations", {}), **annotations}
            self._touch(obj)
            return read_claim(obj, self._driver)

    def let_go(self, claim: ClaimView) -> None:
        self.faults.check("let_go")
        with self._lock:
            obj = self._current(claim)
            meta = obj["metadata"]
            meta["finalizers"] = sorted(set(meta.get("finalizers", ())) - {names.HELD})
            ours = (names.NODE, names.HOLD, names.RELEASE)
            meta["annotations"] = {k: v for k, v in meta.get("annotations", {}).items() if k not in ours}
            self._touch(obj)

    def report(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> None:
        self.faults.check("report")
        if isinstance(self.get(ref), Found):
            self.reported[ref.uid] = tuple(devices)

    def held_on(self, node: str) -> Sequence[ClaimView]:
        self.faults.check("held_on")
        if self.silent:
            raise Unavailable("API_UNAVAILABLE", "the API server does not answer")
        with self._lock:
            views = [read_claim(o, self._driver) for o in self._objects.values()]
        return [v for v in views if v.held and v.held_by_node == node]

    def _current(self, claim: ClaimView) -> dict[str, Any]:
        obj = self._objects.get((claim.ref.namespace, claim.ref.name))
        if obj is None or obj["metadata"]["uid"] != claim.ref.uid:
            raise Refused("NOT_FOUND", f"claim {claim.ref}")
        if obj["metadata"]["resourceVersion"] != claim.resource_version:
            raise Conflict("CONFLICT", f"claim {claim.ref} was changed meanwhile")
        return obj

    def _touch(self, obj: dict[str, Any]) -> None:
        meta = obj["metadata"]
        meta["resourceVersion"] = str(next(self._versions))
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            del self._objects[meta["namespace"], meta["name"]]


@dataclass
class MemoryJournal:
    """Records in memory, written through JSON so that nothing passes that a file would not keep."""

    kept: dict[str, ClaimRecord] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    on_write: Callable[[ClaimRecord], None] = lambda record: None
    damaged: dict[str, str] = field(default_factory=dict)

    def records(self) -> Mapping[str, ClaimRecord]:
        return dict(self.kept)

    def unreadable(self) -> Mapping[str, str]:
        return dict(self.damaged)

    def write(self, record: ClaimRecord) -> None:
        self.faults.check("write")
        if (path := self.damaged.get(record.ref.uid)) is not None:
            raise Refused("JOURNAL_DAMAGED", f"{path} is not readable")
        self.kept[record.ref.uid] = record
        self.on_write(record)

    def restore(self, record: ClaimRecord) -> str | None:
        self.faults.check("restore")
        path = self.damaged.pop(record.ref.uid, None)
        self.kept[record.ref.uid] = record
        return None if path is None else f"{path}.damaged"

    def forget(self, uid: str) -> None:
        self.faults.check("forget")
        self.kept.pop(uid, None)


@dataclass
class MemoryCdi:
    """CDI files as a dictionary."""

    specs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)

    def write(self, uid: str, spec: Mapping[str, Any]) -> None:
        self.faults.check("write")
        self.specs[uid] = copy.deepcopy(dict(spec))

    def remove(self, uid: str) -> None:
        self.faults.check("remove")
        self.specs.pop(uid, None)

    def claims(self) -> Sequence[str]:
        return sorted(self.specs)

    def read(self, uid: str) -> Mapping[str, Any] | None:
        return self.specs.get(uid)


class FakeSlices:
    """ResourceSlices as a dictionary; `snapshots` holds what a reader would have seen after each write."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.snapshots: list[tuple[dict[str, Any], ...]] = []

    def published(self) -> Sequence[dict[str, Any]]:
        return tuple(copy.deepcopy(o) for o in self.objects.values())

    def write(self, wanted: Mapping[str, Any], published: Mapping[str, Any] | None) -> None:
        self.objects[wanted["metadata"]["name"]] = copy.deepcopy(dict(wanted))
        self.snapshots.append(tuple(self.published()))

    def delete(self, name: str) -> None:
        self.objects.pop(name, None)
        self.snapshots.append(tuple(self.published()))
