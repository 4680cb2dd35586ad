"""The lab as the demo's checks see it when all went well; tests change one thing and look which check fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dynamig.dra import Device, Pool
from examples.demo import cast
from examples.demo.checks import Evidence
from examples.demo.seen import GpuSeen, Instance, MigSeen, Moment, NodeSeen, Visible, snapshot
from tests.unit.cli.cluster import claim, device, mig_uuid, pool, ready, slices

Held = Sequence[tuple[Pool, Device]]

POOLS = {f"{node}/gpu-{number}": pool(node, number) for node in ("n1", "n2") for number in (0, 1)}
WAITS = "0/2 nodes are available: 2 cannot allocate all claims. preemption: 0/2 nodes are available."


def on(gpu: str, *parts: str) -> list[tuple[Pool, Device]]:
    return [(POOLS[gpu], device(part, POOLS[gpu])) for part in parts]


PLACED: Mapping[str, tuple[Held, tuple[str, ...]]] = {
    "notebook": (on("n1/gpu-0", "1g10gb-19-6"), ("notebook",)),
    "training": ([(POOLS["n2/gpu-0"], POOLS["n2/gpu-0"].full_gpu)], ("training",)),
    "pipeline": (on("n2/gpu-1", "4g40gb-5-0", "2g20gb-14-4", "1g10gb-19-6"), ("pipeline",)),
    "inference": (on("n1/gpu-0", "3g40gb-9-0"), ("inference",)),
    "team": (on("n1/gpu-1", "4g40gb-5-0"), ("team-alice", "team-bob")),
    "batch": (on("n1/gpu-1", "3g40gb-9-4"), ("batch",)),
    "latecomer": (on("n2/gpu-0", "3g40gb-9-4"), ("latecomer",)),
}
FULL = tuple(name for name in PLACED if name != "latecomer")
LATER = tuple(name for name in PLACED if name != "training")


def evidence() -> Evidence:
    return Evidence(full=moment(FULL), later=moment(LATER), waited_s=2.5, end=moment(()))


def moment(names: Sequence[str]) -> Moment:
    """These claims are held by their pods, with everything as it must be."""
    claims = [api_claim(name) for name in names]
    pods = [api_pod(pod, "n1") for name in names for pod in PLACED[name][1]]
    if "latecomer" not in names and names:
        pods.append(api_pod("latecomer", None, waits=WAITS))
        claims.append(claim("latecomer", [], namespace=cast.NAMESPACE))
    published = [s for p in POOLS.values() for s in slices(p, node=p.name.split("/")[0])]
    api = snapshot(published, claims, pods)
    return Moment(api, {node: node_seen(node, names) for node in ("n1", "n2")}, inside(names))


def api_claim(name: str) -> dict[str, Any]:
    held, pods = PLACED[name]
    return ready(claim(name, held, pods=pods, namespace=cast.NAMESPACE), held)


def api_pod(name: str, node: str | None, *, waits: str = "") -> dict[str, Any]:
    scheduled = {"type": "PodScheduled", "status": "False" if waits else "True", "message": waits}
    phase = "Pending" if waits else "Running"
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": node},
        "status": {"phase": phase, "conditions": [scheduled]},
    }


def node_seen(node: str, names: Iterable[str]) -> NodeSeen:
    names = [name for name in names if PLACED[name][0][0][0].name.startswith(f"{node}/")]
    gpus = {str(p.gpu.uuid): gpu_seen(p, names) for p in POOLS.values() if p.name.startswith(f"{node}/")}
    uids = frozenset(f"uid-{name}" for name in names)
    return NodeSeen(gpus, cdi=uids, journal=uids)


def gpu_seen(among: Pool, names: Iterable[str]) -> GpuSeen:
    here = [d for name in names for p, d in PLACED[name][0] if p is among]
    if any(d.partition is None for d in here):
        return GpuSeen(mig_on=False, instances=())
    return GpuSeen(True, tuple(instance(among, d) for d in here))


def instance(among: Pool, one: Device) -> Instance:
    assert one.partition is not None
    at = one.partition.placement
    return Instance(at.start, at.size, (mig_uuid(among, one),))


def inside(names: Iterable[str]) -> dict[tuple[str, str], Visible]:
    found = {}
    for name in names:
        held, pods = PLACED[name]
        for role in (r for r in cast.ROLES if r.pod in pods):
            for number, container in enumerate(role.sees):
                found[role.pod, container] = visible(*held[number if len(held) > 1 else 0])
    return found


def visible(among: Pool, one: Device) -> Visible:
    uuid = str(among.gpu.uuid)
    if one.partition is None:
        return Visible({uuid: False}, {})
    profile = str(one.attributes["profile"])
    mib = {"1g.10gb": 9984, "2g.20gb": 20096, "3g.40gb": 40448, "4g.40gb": 40448}[profile]
    return Visible({uuid: True}, {mig_uuid(among, one): MigSeen(uuid, f"NVIDIA H100 80GB HBM3 MIG {profile}", mib)})
