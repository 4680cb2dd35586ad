"""From watched objects and Slurm's answers to one picture of the world. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dynamig.bridge.world import NodeView, PodView, SetClaim, World, read_pod, read_set_claim
from dynamig.dra import PublishedPool, read_pools
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.device_map import map_from_json
from dynamig.protocol.slurm_jobs import Job, SlurmNode, SlurmNodeName
from dynamig.protocol.times import from_rfc3339

FRESH = 40.0
"""Seconds after which a node's report no longer counts: four renewals were missed."""

Obj = Mapping[str, Any]


def slurm_pods(pods: Iterable[Obj], namespaces: Iterable[Obj]) -> dict[str, PodView]:
    """Pods with claims in namespaces labelled for Slurm, by UID."""
    ours = {
        n["metadata"]["name"]
        for n in namespaces
        if (n["metadata"].get("labels") or {}).get(names.SCHEDULER_LABEL) == "slurm"
    }
    views = [read_pod(p) for p in pods if p["metadata"]["namespace"] in ours and p["spec"].get("resourceClaims")]
    return {v.ref.uid: v for v in views}


def node_view(name: str, slurm: SlurmNodeName, lease: Obj | None, now: float) -> NodeView:
    """What the node's driver last said of itself, and whether that may be acted on."""
    if lease is None:
        return _silent(name, slurm, "its driver has never reported")
    try:
        report = json.loads((lease["metadata"].get("annotations") or {})[names.REPORT])
        renewed = from_rfc3339(lease["spec"]["renewTime"])
        noted = report.get("deviceMap")
        gpus = map_from_json(noted).gpus if noted is not None else {}
        claims = frozenset(str(uid) for uid in report["claims"])
        registered = bool(report["registered"])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        return _silent(name, slurm, f"its driver's report cannot be read: {error!r}")
    why = _why_not(registered, gpus, now - renewed)
    return NodeView(name, slurm, not why, why, claims, renewed, gpus)


def _why_not(registered: bool, gpus: Mapping[int, GpuUuid], age: float) -> str:
    if age > FRESH:
        return f"its driver last reported {age:.0f} s ago"
    if not registered:
        return "its driver is not registered with the kubelet"
    return "" if gpus else "its driver has no map of Slurm's GPU indices"


def _silent(name: str, slurm: SlurmNodeName, why: str) -> NodeView:
    return NodeView(name, slurm, False, why, frozenset(), 0.0, {})


def checked(node: NodeView, slurm: SlurmNode | None) -> NodeView:
    """The node, out of use if its device map and slurmctld do not agree on the GPUs (P6)."""
    if not node.ready:
        return node
    if slurm is None:
        return _unusable(node, f"Slurm has no node {node.slurm}")
    known = {g.index for g in slurm.gpus}
    if set(node.map) != known:
        return _unusable(node, f"its driver has GPUs {sorted(node.map)}, Slurm has {sorted(known)}")
    if bare := sorted(g.index for g in slurm.gpus if not g.shards):
        return _unusable(node, f"Slurm has no shards on GPU {', '.join(map(str, bare))}, or does not say on which GPU")
    return node


def _unusable(node: NodeView, why: str) -> NodeView:
    return replace(node, ready=False, why_not=why)


def out_of_service(nodes: Iterable[Obj]) -> frozenset[str]:
    """Nodes that an administrator declared powered off, by the taint with which Kubernetes lets go of their pods."""
    return frozenset(
        n["metadata"]["name"]
        for n in nodes
        if any(t["key"] == names.OUT_OF_SERVICE for t in n["spec"].get("taints") or ())
    )


def declared_gone(node: NodeView) -> NodeView:
    return replace(node, ready=False, why_not="it was declared out of service", gone=True)


def world(
    *,
    now: float,
    driver: str,
    pods: Iterable[Obj],
    namespaces: Iterable[Obj],
    claims: Iterable[Obj],
    slices: Iterable[Obj],
    classes: Iterable[Obj],
    leases: Mapping[str, Obj],
    nodes: Iterable[Obj],
    slurm_names: Mapping[str, str],
    jobs: Sequence[Job],
    slurm_nodes: Sequence[SlurmNode],
    slurm_started: float,
) -> World:
    """One picture. `leases`: by name; `slurm_names`: Kubernetes node to Slurm node, where they differ."""
    pools = [p for p in read_pools(slices) if p.driver == driver and p.complete and p.node is not None]
    by_name = {n.name: n for n in slurm_nodes}
    views = {}
    gone = out_of_service(nodes)
    reporting = {name.removeprefix(names.LEASE_PREFIX) for name in leases if name.startswith(names.LEASE_PREFIX)}
    for node in sorted({p.node for p in pools if p.node is not None} | reporting):
        slurm = SlurmNodeName(slurm_names.get(node, node))
        view = checked(node_view(node, slurm, leases.get(names.lease_name(node)), now), by_name.get(slurm))
        views[node] = declared_gone(view) if node in gone else view
    set_claims: list[SetClaim] = [read_set_claim(c, driver) for c in claims]
    return World(
        now=now,
        driver=driver,
        pods=slurm_pods(pods, namespaces),
        claims={c.view.ref.uid: c for c in set_claims},
        pools=_by_gpu(pools),
        classes={c["metadata"]["name"]: c for c in classes},
        nodes=views,
        jobs=jobs,
        slurm_nodes=by_name,
        slurm_started=slurm_started,
    )


def _by_gpu(pools: Iterable[PublishedPool]) -> dict[GpuUuid, PublishedPool]:
    found: dict[GpuUuid, PublishedPool] = {}
    for pool in pools:
        gpu = next((d.gpu for d in pool.devices if d.gpu is not None), None)
        if gpu is not None:
            found[GpuUuid(gpu)] = pool
    return found
