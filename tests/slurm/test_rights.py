"""Who pays, under whose name, with which rights: on real slurmctld, with bridges of other configurations and tokens."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamig.protocol import names
from lab import bridge as lab_bridge
from lab.components import DYNAMIG
from lab.lab import Lab
from tests.e2e.cluster import NAMESPACE, Cluster, mig, pod_object, until
from tests.slurm.test_main_job import hold_of, holds, state

FREE_NAMESPACE = "e2e-free"


@contextmanager
def another_bridge(lab: Lab, folder: Path, *, slurm_user: str | None = None, **settings: Any) -> Iterator[Path]:
    """Instead of the lab's bridge one with these settings runs inside the block, maybe as somebody else in Slurm. Its
    log."""
    here = lab_bridge.files(lab.layout)
    config = lab_bridge.configuration(here, lab.spec) | settings
    if slurm_user is not None:
        token = folder / "token"
        token.write_text(lab.slurm_token(slurm_user))
        config["slurm"] = config["slurm"] | {"user": slurm_user, "tokenFile": str(token)}
    path, log = folder / "bridge.yaml", folder / "bridge.log"
    path.write_text(yaml.safe_dump({k: v for k, v in config.items() if v is not None}))
    lab.stop("bridge")
    try:
        with (
            log.open("w") as out,
            subprocess.Popen([DYNAMIG, "bridge", "run", "--config", path], stdout=out, stderr=out) as process,
        ):
            try:
                yield log
            finally:
                process.terminate()
    finally:
        lab.start("bridge")


def told(cluster: Cluster, pod: str, reason: str) -> dict[str, Any]:
    """The pod's condition, once it gives this reason."""

    def condition() -> dict[str, Any]:
        ours = cluster.slurm_condition(pod)
        assert ours["reason"] == reason, ours
        return ours

    return until(condition, on_timeout=lambda: cluster.story(pod))


def events(cluster: Cluster, pod: str, reason: str) -> list[dict[str, Any]]:
    return [e for e in cluster.events(pod) if e["reason"] == reason]


def paid_pod(cluster: Cluster, name: str, *, deadline: int | None = None, **words: str) -> str:
    """A pod of one slice with these annotations under dynamig.io/."""
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [mig(profile="1g.10gb")]}}},
    }
    spec = {} if deadline is None else {"activeDeadlineSeconds": deadline}
    body = pod_object(name, {"resourceClaimTemplateName": name}, "sleep 100000", "lab.local/tool:1", **spec)
    body["metadata"]["annotations"] = {f"dynamig.io/{word.replace('_', '-')}": text for word, text in words.items()}
    cluster.apply(template, body)
    return name


def test_pods_are_paid_for_as_the_map_allows_and_no_otherwise(lab: Lab, cluster: Cluster, tmp_path: Path) -> None:
    terms = {"user": "alice", "partitions": ["all", "low", "retired"], "minutes": 30, "maxMinutes": 120}
    with another_bridge(lab, tmp_path, accounts={NAMESPACE: terms}, defaultAccount=None):
        paid_pod(cluster, "good", partition="low", nice="100", deadline=3001)
        paid_pod(cluster, "plain")
        paid_pod(cluster, "greedy", partition="debug", time_limit="3:00:00")
        paid_pod(cluster, "late", partition="retired")  # in the map, and not in Slurm
        cluster.running("good", "plain")
        job, plain = hold_of(lab, cluster, "good"), hold_of(lab, cluster, "plain")
        assert (job["user_name"], job["partition"], job["time_limit"]["number"]) == ("alice", "low", 51)
        assert (plain["user_name"], plain["partition"], plain["time_limit"]["number"]) == ("alice", "all", 30)
        assert lab.slurm("squeue", "--noheader", "--format=%y", f"--jobs={job['job_id']}").strip() == "100"
        assert told(cluster, "good", names.PAID)["status"] == "True"

        why = told(cluster, "greedy", "NotAllowed")["message"]
        for part in ("dynamig.io/partition is 'debug'", "all, low, retired", "dynamig.io/time-limit", "at most 120"):
            assert part in why
        assert "artition" in told(cluster, "late", names.SLURM_REFUSED)["message"], "Slurm's own words"
        time.sleep(2.5)
        for pod, reason in (("greedy", "NotAllowed"), ("late", names.SLURM_REFUSED)):
            (event,) = events(cluster, pod, reason)
            assert (event["type"], event["message"]) == ("Warning", told(cluster, pod, reason)["message"])
        assert len(holds(lab)) == 2
        assert "finalizers" not in cluster.claim_of("greedy")["metadata"]


def test_a_bridge_with_too_few_rights_says_so_and_does_nothing(lab: Lab, cluster: Cluster, tmp_path: Path) -> None:
    cluster.pod("paid", mig(profile="1g.10gb"))
    cluster.running("paid")
    hold = hold_of(lab, cluster, "paid")
    with another_bridge(lab, tmp_path, slurm_user="alice") as log:
        until(lambda: _in("look_failed", log.read_text()))
        cluster.pod("late", mig(profile="1g.10gb"))
        assert "token" in told(cluster, "late", "BridgePassive")["message"]
        assert len(events(cluster, "late", "BridgePassive")) == 1
        cluster.delete("paid")
        time.sleep(5)  # what the lab's bridge cancels at once
        assert [(j["job_id"], state(j)) for j in holds(lab)] == [(hold["job_id"], "RUNNING")]
        assert "UP" in lab.slurm("scontrol", "ping")
        assert log.read_text().count("look_failed") == 1
    cluster.running("late")
    until(lambda: _not_in(hold["job_id"], [j["job_id"] for j in holds(lab)]))


# -- names and indices -------------------------------------------------------------------------------------------------


@contextmanager
def gpu_map(lab: Lab, **entries: dict[str, Any]) -> Iterator[None]:
    """The ConfigMap has these entries inside the block, and is gone after it."""
    data = {node: yaml.safe_dump(entry) for node, entry in entries.items()}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names.GPU_MAP}, "data": data}
    lab.kubectl("-n", names.NAMESPACE, "apply", "--server-side", "-f", "-", stdin=json.dumps(body))
    try:
        yield
    finally:
        lab.kubectl("-n", names.NAMESPACE, "delete", "configmap", names.GPU_MAP, "--ignore-not-found")
        until(lambda: _equal(slurm_names(lab), {node: node for node in lab.nodes}))


def report(lab: Lab, node: str) -> dict[str, Any]:
    lease = lab.kubectl_json("-n", names.NAMESPACE, "get", "lease", names.lease_name(node))
    found: dict[str, Any] = json.loads(lease["metadata"]["annotations"][names.REPORT])
    return found


def slurm_names(lab: Lab) -> dict[str, str]:
    """As the drivers report them, of those that are not closed."""
    reports = {node: report(lab, node) for node in lab.nodes}
    return {node: r["deviceMap"]["slurmNode"] for node, r in reports.items() if "mapTrouble" not in r}


def test_one_host_with_three_names(lab: Lab, cluster: Cluster) -> None:
    """Case C-70, with two hosts that have each other's name in Slurm, and GPUs that Slurm counts backwards."""
    first, second = cluster.gpus("n1")
    with gpu_map(lab, n1={"slurmNode": "n2", "gpus": {0: second, 1: first}}, n2={"slurmNode": "n1"}):
        until(lambda: _equal(slurm_names(lab), {"n1": "n2", "n2": "n1"}))
        for pod, gpu, index in (("backwards", second, 0), ("forwards", first, 1)):
            cluster.pod(pod, mig(profile="7g.80gb", gpu=gpu))
            cluster.running(pod)
            job = hold_of(lab, cluster, pod)
            assert job["nodes"] == "n2"
            assert f"shard:7({'0/7,7/7' if index else '7/7,0/7'})" in job["gres_detail"][0], job["gres_detail"]
            assert cluster.get("pod", pod)["spec"]["nodeName"] == "n1"
            assert cluster.device_of(pod)["data"]["gpuUUID"] == gpu
        cluster.delete("backwards", "forwards")
        until(lambda: _equal(holds(lab), []))  # n1's driver was asked, not the one that has the job's name
        cluster.empty()


def test_a_map_that_is_wrong_takes_its_node_out_of_use_and_the_pod_says_why(lab: Lab, cluster: Cluster) -> None:
    with gpu_map(lab, n1={"gpus": {0: "GPU-nobody"}}, n2={"slurmNode": "n2", "gpu": {}}):
        until(lambda: _equal(slurm_names(lab), {}))
        cluster.pod("waits", mig(profile="1g.10gb"))
        why = told(cluster, "waits", "NoLegalPlacement")["message"]
        assert "GPU-nobody (index 0) is not on this node" in why
        assert f"ConfigMap {names.GPU_MAP}, key n2: gpu" in why
        assert holds(lab) == []
    cluster.running("waits")


# -- around the bridge -------------------------------------------------------------------------------------------------


@pytest.fixture
def free_namespace(lab: Lab) -> Iterator[str]:
    lab.kubectl("create", "namespace", FREE_NAMESPACE)
    yield FREE_NAMESPACE
    lab.kubectl("delete", "namespace", FREE_NAMESPACE, "--wait=true", "--timeout=90s")


def test_outside_slurms_namespaces_nobody_gets_slurms_devices(lab: Lab, cluster: Cluster, free_namespace: str) -> None:
    """Case C-73: neither kube-scheduler, for the taint, nor a scheduler of one's own, which there is none of."""
    for name, spec in (("usual", {}), ("own", {"schedulerName": "my-scheduler"}), ("pinned", {"nodeName": "n1"})):
        claims = {"devices": {"requests": [mig(profile="1g.10gb")]}}
        template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}}
        body = pod_object(name, {"resourceClaimTemplateName": name}, "sleep 100000", "lab.local/tool:1", **spec)
        bundle = {"apiVersion": "v1", "kind": "List", "items": [template | {"spec": {"spec": claims}}, body]}
        lab.kubectl("-n", free_namespace, "create", "-f", "-", stdin=json.dumps(bundle))

    def unschedulable() -> None:
        pod = lab.kubectl_json("-n", free_namespace, "get", "pod", "usual")
        (scheduled,) = [c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled"]
        assert "cannot allocate all claims" in scheduled["message"]

    until(unschedulable)
    time.sleep(2)
    claims = lab.kubectl_json("-n", free_namespace, "get", "resourceclaims")["items"]
    assert len(claims) == 3
    assert [c for c in claims if c.get("status", {}).get("allocation")] == []
    pods = lab.kubectl_json("-n", free_namespace, "get", "pods")["items"]
    assert {p["metadata"]["name"]: p["status"]["phase"] for p in pods} == dict.fromkeys(
        ("own", "pinned", "usual"), "Pending"
    )
    assert cluster.instances() == []
    assert holds(lab) == []


def _in(thing: object, many: Any) -> None:
    assert thing in many


def _not_in(thing: object, many: Any) -> None:
    assert thing not in many


def _equal(seen: object, wanted: object) -> None:
    assert seen == wanted
