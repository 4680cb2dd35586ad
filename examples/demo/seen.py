"""What is seen of the lab at one moment, as values. Pure: made from JSON of the API server, squeue and `nvml-list`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynamig.cli.holdings import Holding, HoldingState
from dynamig.cli.nodes import NOTHING_READ, Reports
from dynamig.cli.view import GpuView, gpu_views
from dynamig.cli.waiting import reason
from dynamig.dra import PublishedDevice, read_pools
from dynamig.protocol import names
from dynamig.protocol.identity import Purpose, Role, purpose_of
from dynamig.slurm import gres
from examples.demo import cast

MIB = 1 << 20
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod. `phase` is Kubernetes' own, or Terminating; `waits`: why it has no node, as Slurm or the scheduler says;
    `address`: of its sandbox; empty while it has none."""

    name: str
    phase: str
    node: str | None
    waits: str
    uid: str = ""
    address: str = ""

    @property
    def running(self) -> bool:
        return self.phase == "Running"

    @property
    def over(self) -> bool:
        return self.phase in ("Failed", "Succeeded")


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job as squeue has it. `gpus`: Slurm indices of those that it has whole; `shards`: index -> number of those it
    holds, on `node`. `purpose`: what a job of the bridge's is for; None for a native one."""

    job_id: int
    name: str
    user: str
    state: str
    reason: str
    node: str | None
    gpus: tuple[int, ...]
    shards: Mapping[int, int]
    comment: str
    purpose: Purpose | None

    @property
    def native(self) -> bool:
        return self.purpose is None

    def pays_for(self, pod_uid: str) -> bool:
        """Its hold. Ballast, which fills a GPU for a moment, pays for nobody."""
        who = self.purpose.identity if self.purpose else None
        return who is not None and (who.set_uid, who.role) == (pod_uid, Role.HOLD)

    @property
    def running(self) -> bool:
        return self.state == "RUNNING"

    @property
    def waits(self) -> bool:
        return self.state == "PENDING"

    @property
    def held_back(self) -> bool:
        """It waits, and Slurm says why; of a job that was just submitted it says `None`."""
        return self.waits and self.reason != "None"

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """(node, Slurm index) of every GPU of which it has something."""
        return tuple((self.node or "", index) for index in sorted({*self.gpus, *self.shards}))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The books: GPUs with who holds what, the demo's pods, all claims of all namespaces, and Slurm's queue."""

    gpus: tuple[GpuView, ...]
    pods: tuple[PodSeen, ...]
    claims: Mapping[str, str]
    """UID -> namespace/name."""
    devices: tuple[PublishedDevice, ...]
    jobs: tuple[JobSeen, ...] = ()

    def pod(self, name: str) -> PodSeen | None:
        return next((p for p in self.pods if p.name == name), None)

    def of_pod(self, name: str) -> tuple[Holding, ...]:
        return tuple(h for g in self.gpus for h in g.holdings if name in h.pods)

    def native(self, name: str) -> JobSeen | None:
        """The native job of that name, the last one if there are several."""
        return next((j for j in reversed(self.jobs) if j.name == name and j.native), None)

    def paying(self, pod: str) -> tuple[JobSeen, ...]:
        """Slurm's jobs that pay, or are to pay, for the pod: by the pod's UID, which Slurm was told."""
        found = self.pod(pod)
        return tuple(j for j in self.jobs if found is not None and j.pays_for(found.uid))

    def served(self, name: str) -> bool:
        """The pod runs, its claim tells what it got, and its job in Slurm says so too."""
        pod, held = self.pod(name), self.of_pod(name)
        if pod is None or not pod.running or not held or any(h.state is not HoldingState.READY for h in held):
            return False
        return any(all(str(h.uuid) in job.comment for h in held) for job in self.paying(name))

    @property
    def holdings(self) -> tuple[Holding, ...]:
        return tuple(h for g in self.gpus for h in g.holdings)


@dataclass(frozen=True, slots=True)
class Visible:
    """What one client sees through NVML: GPUs with whether MIG mode is on, and MIG devices."""

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
    """One GPU as an NVML client on its node sees it. `minor`: of its device file, by which Slurm counts."""

    mig_on: bool
    instances: tuple[Instance, ...]
    minor: int = 0


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node without asking Kubernetes or Slurm: NVML by GPU UUID, claim UIDs of CDI files and of the driver's journal,
    and which job each GPU is lent to, by the driver's files."""

    gpus: Mapping[str, GpuSeen]
    cdi: frozenset[str]
    journal: frozenset[str]
    loans: Mapping[str, int]

    def gpu_at(self, index: int) -> str:
        """UUID of the GPU that Slurm gives this index: it counts device files in the order of their minors."""
        return sorted(self.gpus, key=lambda uuid: self.gpus[uuid].minor)[index]


@dataclass(frozen=True, slots=True)
class Moment:
    """All sides at one time, with what each container (pod, container) and the notebook's HTTP server reported."""

    api: Snapshot
    nodes: Mapping[str, NodeSeen]
    inside: Mapping[tuple[str, str], Visible]

    @property
    def gpus(self) -> Mapping[str, GpuSeen]:
        """All GPUs of all nodes, as on the hardware."""
        return {uuid: gpu for node in self.nodes.values() for uuid, gpu in node.gpus.items()}

    @property
    def loans(self) -> Mapping[str, int]:
        """GPU -> native job, as the drivers' files have it."""
        return {uuid: job for node in self.nodes.values() for uuid, job in node.loans.items()}

    def gpus_of(self, job: JobSeen) -> tuple[str, ...]:
        """UUIDs of the GPUs that Slurm's books give the job, whole or in part."""
        return tuple(self.nodes[node].gpu_at(index) for node, index in job.places)


def mine(job: JobSeen) -> bool:
    """A native job that the demo submitted, or one that pays for a pod of its namespace."""
    if job.purpose is not None:
        return job.purpose.pod.startswith(f"{cast.NAMESPACE}/")
    return job.user == cast.USER and job.comment.startswith(cast.COMMENT)


def snapshot(
    slices: Sequence[Object],
    claims: Sequence[Object],
    pods: Iterable[Object],
    jobs: Iterable[Object] = (),
    reports: Reports = NOTHING_READ,
) -> Snapshot:
    metas = [claim["metadata"] for claim in claims]
    return Snapshot(
        gpus=gpu_views(slices, claims, reports=reports),
        pods=tuple(sorted(map(_pod, pods), key=lambda p: p.name)),
        claims={meta["uid"]: f"{meta['namespace']}/{meta['name']}" for meta in metas},
        devices=tuple(device for pool in read_pools(slices) for device in pool.devices),
        jobs=tuple(sorted(map(_job, jobs), key=lambda j: j.job_id)),
    )


def visible(listed: Object) -> Visible:
    """What `nvml-list` printed inside a container, or on a node for a job."""
    return Visible(
        gpus={g["uuid"]: bool(g["mig_current"]) for g in listed["gpus"]},
        mig={m["uuid"]: MigSeen(m["parent_uuid"], m["name"], m["memory_mib"]) for m in listed["mig_devices"]},
    )


def gpus_seen(listed: Object) -> dict[str, GpuSeen]:
    """What `nvml-list` printed on a node. With MIG mode off a GPU has no list of instances."""
    return {
        g["uuid"]: GpuSeen(bool(g["mig_current"]), tuple(map(_instance, g.get("gpu_instances", ()))), g["minor"])
        for g in listed["gpus"]
    }


def _instance(raw: Object) -> Instance:
    uuids = tuple(c["mig_uuid"] for c in raw["compute_instances"] if "mig_uuid" in c)
    return Instance(raw["start"], raw["size"], uuids)


def _pod(obj: Object) -> PodSeen:
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    node = spec.get("nodeName")
    phase = "Terminating" if meta.get("deletionTimestamp") else status.get("phase", "Pending")
    waits = "" if node else _why(spec, status, obj)
    return PodSeen(meta["name"], phase, node, waits, meta.get("uid", ""), status.get("podIP", ""))


def _why(spec: Object, status: Object, pod: Object) -> str:
    """Slurm's word, once there is one: a gated pod's scheduler only says that there is a gate, and the bridge at first
    that claims are being made."""
    told = {c["type"]: c.get("reason") for c in status.get("conditions") or ()}
    early = bool(spec.get("schedulingGates")) and told.get(names.CONDITION) in (None, "WaitingForClaims")
    return "" if early else reason(pod)


def _job(obj: Object) -> JobSeen:
    has = [record for text in obj.get("gres_detail") or () for record in gres.parse(text)]
    return JobSeen(
        job_id=obj["job_id"],
        name=obj["name"],
        user=obj["user_name"],
        state=obj["job_state"][0],
        reason=obj["state_reason"],
        node=obj["nodes"] or None,
        gpus=tuple(sorted(i for g in has if g.name == "gpu" for i in gres.indices(g.where.removeprefix("IDX:")))),
        shards={index: used for g in has if g.name == "shard" for index, used in _shards(g.where)},
        comment=obj["comment"],
        purpose=purpose_of(obj["admin_comment"]),
    )


def _shards(where: str) -> Iterable[tuple[int, int]]:
    """`1/7,0/7`: used and total of each GPU."""
    used = (part.partition("/")[0] for part in where.split(","))
    return [(index, int(number)) for index, number in enumerate(used) if int(number)]
