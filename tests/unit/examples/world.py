"""The lab as the demo's checks see it when all went well; tests change one thing and look which check fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dynamig.cli.nodes import Reports
from dynamig.dra import Device, Pool
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.identity import JobIdentity, Purpose
from dynamig.protocol.loans import Borrower, Loan
from dynamig.protocol.node_report import Report
from examples.demo import cast
from examples.demo.evidence import Evidence
from examples.demo.seen import GpuSeen, Instance, MigSeen, Moment, NodeSeen, Snapshot, Visible, snapshot
from tests.unit.cli.cluster import claim, device, mig_uuid, pool, ready, slices

Held = Sequence[tuple[Pool, Device]]
NODES = ("n1", "n2")
POOLS = {f"{node}/gpu-{number}": pool(node, number) for node in NODES for number in (0, 1)}
NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)


def on(gpu: str, *parts: str) -> list[tuple[Pool, Device]]:
    return [(POOLS[gpu], device(part, POOLS[gpu])) for part in parts]


PLACED: Mapping[str, Held] = {
    "notebook": on("n2/gpu-0", "1g10gb-19-4"),
    "inference": on("n2/gpu-0", "3g40gb-9-0"),
    "embedding": on("n2/gpu-0", "1g20gb-15-6"),
    "training": [(POOLS["n2/gpu-1"], POOLS["n2/gpu-1"].full_gpu)],
    "pipeline": on("n1/gpu-1", "4g40gb-5-0", "2g20gb-14-4", "1g10gb-19-6"),
}
SHARDS = {"notebook": 1, "inference": 4, "embedding": 1, "training": 7, "pipeline": 7}
JOB_IDS = {"train": 1, "simulate": 2, "notebook": 3, "inference": 4, "embedding": 5, "training": 6, "pipeline": 7}
JOB_IDS["evaluate"] = 8

FIRST = {"train": "n1/gpu-0", "simulate": "n1/gpu-1"}
SHARING = ("notebook", "inference", "embedding")
UNUSED = GpuSeen(mig_on=False, instances=())


def evidence() -> Evidence:
    looks = dict.fromkeys(("train", "evaluate"), (UNUSED, UNUSED))
    return Evidence(full(), later(), last(), moment(), 2.5, 4.5, looks)


def full() -> Moment:
    return moment((*SHARING, "training"), FIRST, waits=("pipeline", "evaluate"))


def later() -> Moment:
    return moment((*SHARING, "training", "pipeline"), {"train": "n1/gpu-0"}, waits=("evaluate",))


def last() -> Moment:
    return moment(("training", "pipeline"), {"train": "n1/gpu-0", "evaluate": "n2/gpu-0"})


def moment(pods: Sequence[str] = (), native: Mapping[str, str] | None = None, waits: Sequence[str] = ()) -> Moment:
    """These pods have what they ask for and these native jobs their GPUs, with everything as it must be."""
    native = native or {}
    return Moment(books(pods, native, waits), {node: node_seen(node, pods, native) for node in NODES}, inside(pods))


def books(pods: Sequence[str] = (), native: Mapping[str, str] | None = None, waits: Sequence[str] = ()) -> Snapshot:
    native = native or {}
    waiting = [name for name in waits if name in PLACED]
    claims = [*map(api_claim, pods), *(claim(name, [], namespace=cast.NAMESPACE) for name in waiting)]
    objects = [api_pod(name, PLACED[name][0][0].name.split("/")[0]) for name in pods]
    objects += [api_pod(name, None, told=f"Slurm job {JOB_IDS[name]} waits: Resources") for name in waiting]
    jobs = [*map(hold, pods), *map(hold_waits, waiting), *(native_job(name, gpu) for name, gpu in native.items())]
    jobs += [native_job(name, None) for name in waits if name not in PLACED]
    published = [s for p in POOLS.values() for s in slices(p, node=p.name.split("/")[0])]
    return snapshot(published, claims, objects, jobs, reports(native))


# -- Kubernetes --------------------------------------------------------------------------------------------------------


def api_claim(name: str) -> dict[str, Any]:
    return ready(claim(name, PLACED[name], pods=(name,), namespace=cast.NAMESPACE), PLACED[name])


def api_pod(name: str, node: str | None, *, told: str = "") -> dict[str, Any]:
    """With `told` it is gated, and the bridge has said that."""
    gate = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked"}
    slurm = {"type": names.CONDITION, "status": "False", "reason": "SlurmPending", "message": told}
    return {
        "metadata": {"name": name, "namespace": cast.NAMESPACE, "uid": f"uid-pod-{name}"},
        "spec": {"nodeName": node, **({"schedulingGates": [{"name": names.GATE}]} if told else {})},
        "status": {"phase": "Running" if node else "Pending", "conditions": [gate, slurm] if told else []},
    }


def reports(native: Mapping[str, str]) -> Reports:
    leases = {}
    for node in NODES:
        loans = [
            Loan(GpuUuid(str(POOLS[gpu].gpu.uuid)), Borrower(JOB_IDS[name], "s", 0), NOW.timestamp())
            for name, gpu in native.items()
            if gpu.startswith(f"{node}/")
        ]
        report = Report("boot", 1, True, (), loans=tuple(loans)).to_json()
        leases[names.lease_name(node)] = {
            "metadata": {"annotations": {names.REPORT: report}},
            "spec": {"renewTime": "2026-03-04T12:00:00Z"},
        }
    return Reports(leases, None, NOW)


# -- Slurm, as `squeue --json` has it ----------------------------------------------------------------------------------


def squeue_job(job_id: int, name: str, user: str, comment: str, **changes: Any) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "name": name,
        "user_name": user,
        "job_state": ["PENDING"],
        "state_reason": "Resources",
        "nodes": "",
        "comment": comment,
        "admin_comment": "",
        "gres_detail": [],
        **changes,
    }


def native_job(name: str, gpu: str | None) -> dict[str, Any]:
    """On that GPU, or waiting."""
    found = squeue_job(JOB_IDS[name], name, cast.USER, f"{cast.COMMENT}{name}")
    return found if gpu is None else found | running(gpu, "gpu:h100:1(IDX:{})")


def hold(pod: str) -> dict[str, Any]:
    """Of a pod that runs: its comment says what it has."""
    held = PLACED[pod]
    words = [
        f"{d.attributes['profile']} at 0 of {p.gpu.uuid} {mig_uuid(p, d)}" if d.partition else f"whole {p.gpu.uuid}"
        for p, d in held
    ]
    index = int(held[0][0].name[-1])
    shards = ",".join(f"{SHARDS[pod] if i == index else 0}/7" for i in range(2))
    comment = f"Kubernetes pod {cast.NAMESPACE}/{pod}: {' and '.join(words)}"
    return hold_waits(pod) | running(held[0][0].name, f"shard:{SHARDS[pod]}({shards})") | {"comment": comment}


def hold_waits(pod: str) -> dict[str, Any]:
    purpose = Purpose(JobIdentity(f"uid-pod-{pod}", 1), pod=f"{cast.NAMESPACE}/{pod}")
    comment = f"Kubernetes pod {cast.NAMESPACE}/{pod}"
    return squeue_job(JOB_IDS[pod], "dynamig-hold", cast.USER, comment, admin_comment=purpose.to_admin_comment())


def running(gpu: str, gres: str) -> dict[str, Any]:
    node, _, index = gpu.partition("/gpu-")
    return {"job_state": ["RUNNING"], "state_reason": "None", "nodes": node, "gres_detail": [gres.format(index)]}


# -- nodes and containers ----------------------------------------------------------------------------------------------


def node_seen(node: str, pods: Iterable[str], native: Mapping[str, str]) -> NodeSeen:
    here = [name for name in pods if PLACED[name][0][0].name.startswith(f"{node}/")]
    gpus = {str(p.gpu.uuid): gpu_seen(p, here) for p in POOLS.values() if p.name.startswith(f"{node}/")}
    uids = frozenset(f"uid-{name}" for name in here)
    loans = {str(POOLS[g].gpu.uuid): JOB_IDS[name] for name, g in native.items() if g.startswith(f"{node}/")}
    return NodeSeen(gpus, cdi=uids, journal=uids, loans=loans)


def gpu_seen(among: Pool, pods: Iterable[str]) -> GpuSeen:
    minor = int(among.name[-1])
    here = [d for name in pods for p, d in PLACED[name] if p is among and d.partition is not None]
    return GpuSeen(bool(here), tuple(instance(among, d) for d in here), minor)


def instance(among: Pool, one: Device) -> Instance:
    assert one.partition is not None
    at = one.partition.placement
    return Instance(at.start, at.size, (mig_uuid(among, one),))


def inside(pods: Iterable[str]) -> dict[tuple[str, str], Visible]:
    found = {}
    for name in pods:
        (role,) = (r for r in cast.ROLES if r.pod == name)
        for number, container in enumerate(role.sees):
            found[name, container] = visible(*PLACED[name][number if len(PLACED[name]) > 1 else 0])
    return found


def visible(among: Pool, one: Device) -> Visible:
    uuid = str(among.gpu.uuid)
    if one.partition is None:
        return Visible({uuid: False}, {})
    profile = str(one.attributes["profile"])
    mib = {"1g.10gb": 9984, "1g.20gb": 20096, "2g.20gb": 20096, "3g.40gb": 40448, "4g.40gb": 40448}[profile]
    return Visible({uuid: True}, {mig_uuid(among, one): MigSeen(uuid, f"NVIDIA H100 80GB HBM3 MIG {profile}", mib)})
