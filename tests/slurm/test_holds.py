"""What the bridge makes of Slurm's choices and losses, on the real one: steering, lost holds, shared claims."""

from __future__ import annotations

import json
from typing import Any

from dynamig.protocol import names
from dynamig.protocol.identity import Role, purpose_of
from lab.lab import Lab
from tests.e2e.cluster import Cluster, mig, until
from tests.slurm.test_main_job import hold_of, holds, native, native_state, state


def by_role(lab: Lab, role: Role) -> list[dict[str, Any]]:
    jobs = lab.slurm_json("squeue", "--states=all")["jobs"]
    return [j for j in jobs if (p := purpose_of(j["admin_comment"])) is not None and p.identity.role is role]


def only_n1(lab: Lab) -> int:
    """A native job has all of n2."""
    job = native(lab, "n2")

    def runs() -> None:
        assert native_state(lab, job) == "RUNNING"

    until(runs)
    return job


def test_a_cordoned_node_gets_no_hold_and_the_pod_says_why(lab: Lab, cluster: Cluster) -> None:
    try:
        for node in lab.nodes:
            lab.kubectl("cordon", node)
        cluster.pod("waits", mig(profile="1g.10gb"))
        until(lambda: _says(cluster, "waits", *(f"{node}: it is cordoned" for node in lab.nodes)))
        assert holds(lab) == []
        lab.kubectl("uncordon", "n2")
        cluster.running("waits")
        assert {i.node for i in cluster.instances()} == {"n2"}
    finally:
        for node in lab.nodes:
            lab.kubectl("uncordon", node)


def _says(cluster: Cluster, pod: str, *words: str) -> None:
    message = cluster.slurm_condition(pod)["message"]
    assert all(word in message for word in words), message


def test_ballast_steers_a_hold_past_shards_without_a_place(lab: Lab, cluster: Cluster) -> None:
    """GPU 0 keeps two shards, slices 1 and 3, between which no 2g begins; Slurm would give them for it."""
    only_n1(lab)
    pods = [cluster.pod(f"small{n}", mig(profile="1g.10gb")) for n in range(7)]
    cluster.running(*pods)
    first = cluster.gpus("n1")[0]
    at = {cluster.device_of(pod)["data"]["placement"]["start"]: pod for pod in pods}
    assert {i.gpu for i in cluster.instances()} == {first}, "they fill one GPU"
    cluster.delete(at[1], at[3])

    def two_shards_free() -> None:
        assert len(holds(lab)) == 5

    until(two_shards_free)
    cluster.pod("wide", mig(profile="2g.20gb"))
    cluster.running("wide")
    wide = next(i for i in cluster.instances() if i.gpu != first)
    assert wide.size == 2
    ballast = by_role(lab, Role.BALLAST)
    assert [p.shards for b in ballast if (p := purpose_of(b["admin_comment"])) is not None] == [2]
    until(lambda: _no_ballast_runs(lab))


def _no_ballast_runs(lab: Lab) -> None:
    assert [j for j in by_role(lab, Role.BALLAST) if state(j) == "RUNNING"] == []


def test_a_hold_that_waits_moves_to_a_place_that_becomes_free_elsewhere(lab: Lab, cluster: Cluster) -> None:
    """Shards are free on n1, but no place: Slurm is asked for n2, which a native job has."""
    only_n1(lab)
    cluster.running(cluster.pod("whole", mig(profile="7g.80gb")))
    pods = [cluster.pod(f"small{n}", mig(profile="1g.10gb")) for n in range(7)]
    cluster.running(*pods)
    at = {cluster.device_of(pod)["data"]["placement"]["start"]: pod for pod in pods}
    cluster.delete(at[1], at[3])
    cluster.pod("wide", mig(profile="2g.20gb"))

    def waits() -> None:
        purpose = purpose_of(hold_of(lab, cluster, "wide")["admin_comment"])
        assert purpose is not None
        assert purpose.nodes == ("n2",)

    until(waits)
    cluster.delete(at[2])
    cluster.running("wide")
    (wide,) = [i for i in cluster.instances() if i.size == 2]
    assert (wide.node, wide.start) == ("n1", 2)


def test_a_hold_that_a_failed_node_ended_is_held_again_on_the_same_gpu(lab: Lab, cluster: Cluster) -> None:
    cluster.running(cluster.pod("filler", mig(profile="7g.80gb")), cluster.pod("lasting", mig(profile="2g.20gb")))
    (before,) = [i for i in cluster.instances() if i.size == 2]
    lab.slurm("scontrol", "update", f"nodename={before.node}", "state=down", "reason=test")

    def told() -> None:
        assert cluster.slurm_condition("lasting")["reason"] == "HoldLost"

    until(told)
    lab.slurm("scontrol", "update", f"nodename={before.node}", "state=resume")
    index = cluster.gpus(before.node).index(before.gpu)

    def held_again() -> None:
        job = hold_of(lab, cluster, "lasting")
        assert state(job) == "RUNNING"
        (shards,) = job["gres_detail"]
        per_gpu = [part.split("/")[0] for part in shards.split("(")[1].rstrip(")").split(",")]
        assert int(per_gpu[index]) == 2, shards

    until(held_again)
    assert [i for i in cluster.instances() if i.size == 2] == [before], "nothing happened to the pod"
    assert cluster.phase("lasting") == "Running"


def test_a_claim_made_by_hand_is_shared_and_each_pod_pays_for_itself(lab: Lab, cluster: Cluster) -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "shared"},
        "spec": {"devices": {"requests": [mig(profile="3g.40gb")]}},
    }
    cluster.apply(claim)
    pods = [cluster.pod_of_claim(name, "shared") for name in ("one", "two")]
    cluster.running(*pods)
    seen = [[m["uuid"] for m in cluster.container_sees(pod)["mig_devices"]] for pod in pods]
    assert len(seen[0]) == 1
    assert seen[0] == seen[1]
    assert len(cluster.instances()) == 1
    jobs = {p.identity.set_uid: p for j in holds(lab) if (p := purpose_of(j["admin_comment"])) is not None}
    uids = {pod: cluster.get("pod", pod)["metadata"]["uid"] for pod in pods}
    shared = cluster.get("resourceclaim", "shared")["metadata"]["uid"]
    assert {uid: p.shards for uid, p in jobs.items()} == {shared: 3, uids["one"]: 0, uids["two"]: 0}
    cluster.delete("one")
    assert len(cluster.instances()) == 1
    cluster.delete("two")

    def gone() -> None:
        assert cluster.instances() == []
        assert holds(lab) == []
        assert names.HELD not in (cluster.get("resourceclaim", "shared")["metadata"].get("finalizers") or ())

    until(gone)
    cluster.running(cluster.pod_of_claim("three", "shared"))


def test_the_nodes_extra_says_what_pods_hold_and_keeps_what_others_wrote(lab: Lab, cluster: Cluster) -> None:
    for node in lab.nodes:
        lab.slurm("scontrol", "update", f"nodename={node}", 'extra={"rack":7}')
    cluster.running(cluster.pod("seen", mig(profile="1g.10gb")))
    data = cluster.device_of("seen")["data"]
    (instance,) = cluster.instances()

    def extra() -> dict[str, Any]:
        (node,) = lab.slurm_json("scontrol", "show", "node", instance.node)["nodes"]
        found: dict[str, Any] = json.loads(node["extra"])
        return found

    def listed() -> None:
        (entry,) = extra()[names.EXTRA_KEY]["claims"]
        assert (entry["uuid"], entry["pods"]) == (data["uuid"], ["seen"])
        assert entry["gpu"] == cluster.gpus(instance.node).index(instance.gpu)

    until(listed)
    cluster.delete("seen")

    def forgotten() -> None:
        assert extra() == {"rack": 7}

    until(forgotten)
    for node in lab.nodes:
        lab.slurm("scontrol", "update", f"nodename={node}", "extra=")


def test_a_hold_that_reaches_its_time_limit_ends_its_pod_with_the_reason(lab: Lab, cluster: Cluster) -> None:
    cluster.running(cluster.pod("short", mig(profile="1g.10gb")))
    (hold,) = holds(lab)
    lab.slurm("scontrol", "update", f"jobid={hold['job_id']}", "timelimit=1")

    def ended() -> None:
        assert lab.kubectl("-n", "e2e", "get", "pod", "short", "--ignore-not-found") == ""

    until(ended, within=150)
    cluster.empty()
