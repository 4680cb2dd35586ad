"""What is seen of the lab at one moment, as values. Pure: made from JSON of the API server and of `nvml-list`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynamig.cli.holdings import Holding, HoldingState
from dynamig.cli.view import GpuView, gpu_views
from dynamig.dra import PublishedDevice, read_pools

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod. `phase` is Kubernetes' own, or Terminating; `waits`: the scheduler's reason while it has no node."""

    name: str
    phase: str
    node: str | None
    waits: str

    @property
    def running(self) -> bool:
        return self.phase == "Running"

    @property
    def over(self) -> bool:
        return self.phase in ("Failed", "Succeeded")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The API server's side: GPUs with who holds what, the demo's pods, and all claims of all namespaces."""

    gpus: tuple[GpuView, ...]
    pods: tuple[PodSeen, ...]
    claims: Mapping[str, str]
    """UID -> namespace/name."""
    devices: tuple[PublishedDevice, ...]

    def pod(self, name: str) -> PodSeen | None:
        return next((p for p in self.pods if p.name == name), None)

    def of_pod(self, name: str) -> tuple[Holding, ...]:
        return tuple(h for g in self.gpus for h in g.holdings if name in h.pods)

    def served(self, name: str) -> bool:
        """The pod runs, and its claim tells what it got: the driver reports that beside the kubelet's own work."""
        pod, held = self.pod(name), self.of_pod(name)
        return pod is not None and pod.running and bool(held) and all(h.state is HoldingState.READY for h in held)

    @property
    def holdings(self) -> tuple[Holding, ...]:
        return tuple(h for g in self.gpus for h in g.holdings)


@dataclass(frozen=True, slots=True)
class Visible:
    """What one container sees through NVML: GPUs with whether MIG mode is on, and MIG devices."""

    gpus: Mapping[str, bool]
    mig: Mapping[str, MigSeen]


@dataclass(frozen=True, slots=True)
class MigSeen:
    """A MIG device. `name` as NVML gives it: `NVIDIA H100 80GB HBM3 MIG 1g.10gb`."""

    parent: str
    name: str
    memory_mib: int

    @property
    def profile(self) -> str:
        return self.name.rpartition(" ")[2]


@dataclass(frozen=True, slots=True)
class Instance:
    """One GPU instance on the hardware: memory slices [start, start+size), and the UUIDs of its MIG devices."""

    start: int
    size: int
    uuids: tuple[str, ...]

    @property
    def memory_slices(self) -> range:
        return range(self.start, self.start + self.size)


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """One GPU as an NVML client on its node sees it."""

    mig_on: bool
    instances: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node without asking Kubernetes: NVML by GPU UUID, and claim UIDs of CDI files and of the driver's journal."""

    gpus: Mapping[str, GpuSeen]
    cdi: frozenset[str]
    journal: frozenset[str]


@dataclass(frozen=True, slots=True)
class Moment:
    """Both sides at one time, with what each container (pod, container) reported."""

    api: Snapshot
    nodes: Mapping[str, NodeSeen]
    inside: Mapping[tuple[str, str], Visible]

    @property
    def gpus(self) -> Mapping[str, GpuSeen]:
        """All GPUs of all nodes, as on the hardware."""
        return {uuid: gpu for node in self.nodes.values() for uuid, gpu in node.gpus.items()}


def snapshot(
    slices: Sequence[Mapping[str, Any]], claims: Sequence[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]
) -> Snapshot:
    metas = [claim["metadata"] for claim in claims]
    return Snapshot(
        gpus=gpu_views(slices, claims),
        pods=tuple(sorted(map(_pod, pods), key=lambda p: p.name)),
        claims={meta["uid"]: f"{meta['namespace']}/{meta['name']}" for meta in metas},
        devices=tuple(device for pool in read_pools(slices) for device in pool.devices),
    )


def visible(listed: Mapping[str, Any]) -> Visible:
    """What `nvml-list` printed inside a container."""
    return Visible(
        gpus={g["uuid"]: bool(g["mig_current"]) for g in listed["gpus"]},
        mig={m["uuid"]: MigSeen(m["parent_uuid"], m["name"], m["memory_mib"]) for m in listed["mig_devices"]},
    )


def gpus_seen(listed: Mapping[str, Any]) -> dict[str, GpuSeen]:
    """What `nvml-list` printed on a node. With MIG mode off a GPU has no list of instances."""
    return {
        g["uuid"]: GpuSeen(bool(g["mig_current"]), tuple(map(_instance, g.get("gpu_instances", ()))))
        for g in listed["gpus"]
    }


def _instance(raw: Mapping[str, Any]) -> Instance:
    uuids = tuple(c["mig_uuid"] for c in raw["compute_instances"] if "mig_uuid" in c)
    return Instance(raw["start"], raw["size"], uuids)


def _pod(obj: Mapping[str, Any]) -> PodSeen:
    meta, status = obj["metadata"], obj.get("status") or {}
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    scheduled = next((c for c in conditions if c["type"] == "PodScheduled"), {})
    waits = scheduled.get("message", "") if scheduled.get("status") == "False" else ""
    phase = "Terminating" if meta.get("deletionTimestamp") else status.get("phase", "Pending")
    return PodSeen(meta["name"], phase, (obj.get("spec") or {}).get("nodeName"), waits)
