"""From watched objects and Slurm's answers to one picture of the world. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dynamig.bridge.accounts import Accounts
from dynamig.bridge.by_identity import by_identity
from dynamig.bridge.fits import UNMARKED, NodeMarks, marks_of
from dynamig.bridge.world import NodeView, PodView, SetClaim, World, read_pod, read_set_claim
from dynamig.dra import PublishedPool, read_pools, rules_for, tainted
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.device_map import NO_MAP, DeviceMap, map_from_json
from dynamig.protocol.node_report import FRESH_SECONDS, MOST_AHEAD
from dynamig.protocol.outages import outages_from_json
from dynamig.protocol.slurm_jobs import Job, SlurmNode, SlurmNodeName
from dynamig.protocol.times import from_rfc3339

Obj = Mapping[str, Any]


def slurm_pods(pods: Iterable[Obj], namespaces: Iterable[Obj], accounts: Accounts) -> dict[str, PodView]:
    """Pods with claims in namespaces labelled for Slurm, by UID."""
    ours = {
        n["metadata"]["name"]
        for n in namespaces
        if (n["metadata"].get("labels") or {}).get(names.SCHEDULER_LABEL) == "slurm"
    }
    mine = [p for p in pods if p["metadata"]["namespace"] in ours and p["spec"].get("resourceClaims")]
    views = [read_pod(p, accounts) for p in mine]
    return {v.ref.uid: v for v in views}


def node_view(name: str, lease: Obj | None, now: float) -> NodeView:
    """What the node's driver last said of itself, and whether that may be acted on."""
    if lease is None:
        return _silent(name, "its driver has never reported")
    try:
        report = json.loads((lease["metadata"].get("annotations") or {})[names.REPORT])
        renewed = from_rfc3339(lease["spec"]["renewTime"])
        noted = report.get("deviceMap")
        device_map = map_from_json(noted) if noted is not None else NO_MAP
        trouble = str(report.get("mapTrouble", ""))
        told_name = str(report.get("slurmNode", ""))
        claims = frozenset(str(uid) for uid in report["claims"])
        registered = bool(report["registered"])
        outages = outages_from_json(report.get("outages", {}))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        return _silent(name, f"its driver's report cannot be read: {error!r}")
    undated = _undated(now - renewed, lease["spec"]["renewTime"])
    why = undated or _why_not(registered, device_map, trouble)
    slurm = SlurmNodeName(told_name if noted is None else device_map.slurm_node or name)
    reported = renewed if renewed - now <= MOST_AHEAD else 0.0
    return NodeView(name, slurm, not undated, not why, why, claims, reported, device_map.gpus, outages=outages)


def _undated(age: float, renewed: str) -> str:
    """Why nobody knows that a report of this age, in seconds by two clocks, is new; empty if it is."""
    if age < -MOST_AHEAD:
        ahead = f"its clock is {-age:.0f} s ahead of the bridge's"
        return f"{ahead}, so nobody knows how old its driver's report is: both need the same time server"
    return "" if age <= FRESH_SECONDS else f"its driver has not reported since {renewed}"


def _why_not(registered: bool, device_map: DeviceMap, trouble: str) -> str:
    if not registered:
        return "its driver is not registered with the kubelet"
    if trouble:
        return f"its map of Slurm's GPU indices is not good: {trouble}"
    return "" if device_map.gpus else "its driver has no map of Slurm's GPU indices"


def _silent(name: str, why: str) -> NodeView:
    return NodeView(name, SlurmNodeName(""), False, False, why, frozenset(), 0.0, {})


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


def marked(node: NodeView, marks: NodeMarks) -> NodeView:
    """The node with what kube-scheduler sees on it. An administrator declares a node powered off by the taint with
    which Kubernetes lets go of its pods."""
    if any(taint["key"] == names.OUT_OF_SERVICE for taint in marks.taints):
        node = replace(node, ready=False, why_not="it was declared out of service", gone=True)
    return replace(node, marks=marks)


def node_views(
    nodes: Iterable[str],
    leases: Mapping[str, Obj],
    slurm_nodes: Mapping[SlurmNodeName, SlurmNode],
    now: float,
    marks: Mapping[str, NodeMarks] | None = None,
) -> dict[str, NodeView]:
    """Every node as its driver tells of it, checked. `leases`: by name; `marks`: of all nodes that Kubernetes has, None
    where nobody asked it. Two that say they are the same Slurm node are both out of use: a job there would be paid to
    either."""
    views = [node_view(node, leases.get(names.lease_name(node)), now) for node in sorted(set(nodes))]
    same = Counter(view.slurm for view in views)
    found = {}
    for view in views:
        if view.slurm and same[view.slurm] > 1:
            seen = _unusable(view, f"another node says too that it is {view.slurm} in Slurm")
        else:
            seen = checked(view, slurm_nodes.get(view.slurm))
        if marks is not None and view.name not in marks:
            seen = _unusable(seen, "Kubernetes has no node of that name")
        found[view.name] = marked(seen, (marks or {}).get(view.name, UNMARKED))
    return found


def world(
    *,
    now: float,
    driver: str,
    pods: Iterable[Obj],
    namespaces: Iterable[Obj],
    claims: Iterable[Obj],
    slices: Iterable[Obj],
    rules: Iterable[Obj] = (),
    classes: Iterable[Obj],
    leases: Mapping[str, Obj],
    nodes: Iterable[Obj],
    accounts: Accounts,
    jobs: Sequence[Job],
    slurm_nodes: Sequence[SlurmNode],
    slurm_started: float,
) -> World:
    """One picture. `leases`: by name; `rules`: DeviceTaintRules."""
    known_rules = tuple(rules)
    pools = [
        _tainted(p, *rules_for(p, known_rules)) for p in _pools(slices, driver) if p.complete and p.node is not None
    ]
    by_name = {n.name: n for n in slurm_nodes}
    reporting = {name.removeprefix(names.LEASE_PREFIX) for name in leases if name.startswith(names.LEASE_PREFIX)}
    known = reporting | {p.node for p in pools if p.node is not None}
    set_claims: list[SetClaim] = [read_set_claim(c, driver) for c in claims]
    return World(
        now=now,
        driver=driver,
        pods=slurm_pods(pods, namespaces, accounts),
        claims={c.view.ref.uid: c for c in set_claims},
        pools=_by_gpu(pools),
        classes={c["metadata"]["name"]: c for c in classes},
        nodes=node_views(known, leases, by_name, now, {n["metadata"]["name"]: marks_of(n) for n in nodes}),
        jobs=jobs,
        slurm_nodes=by_name,
        slurm_started=slurm_started,
    )


def _pools(slices: Iterable[Obj], driver: str) -> Iterator[PublishedPool]:
    """Pools of the driver, by name; each is read once for each time that it is published."""
    members: dict[str, list[Obj]] = {}
    for one in slices:
        if one["spec"]["driver"] == driver:
            members.setdefault(one["spec"]["pool"]["name"], []).append(one)
    return (_pool(*members[name]) for name in sorted(members))


@by_identity(keep=1 << 14)
def _pool(*slices: Obj) -> PublishedPool:
    (pool,) = read_pools(slices)
    return pool


@by_identity(keep=1 << 14)
def _tainted(pool: PublishedPool, *rules: Obj) -> PublishedPool:
    return tainted(pool, rules)


def _by_gpu(pools: Iterable[PublishedPool]) -> dict[GpuUuid, PublishedPool]:
    found: dict[GpuUuid, PublishedPool] = {}
    for pool in pools:
        gpu = next((d.gpu for d in pool.devices if d.gpu is not None), None)
        if gpu is not None:
            found[GpuUuid(gpu)] = pool
    return found
