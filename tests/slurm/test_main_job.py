"""The seven steps on real daemons: a pod's slice is paid for in Slurm, beside native jobs, and given back in order."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from dynamig.errors import Unavailable
from dynamig.protocol import names
from dynamig.protocol.identity import identity_of
from dynamig.testing.emulator import NvmlReturn
from lab.lab import Lab
from tests.e2e.cluster import Cluster, mig, until

ON_BOTH = ("--gres=gpu:2", "--partition=low", "--time=5")


def jobs(lab: Lab) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lab.slurm_json("squeue")["jobs"]
    return found


def holds(lab: Lab) -> list[dict[str, Any]]:
    return [j for j in jobs(lab) if identity_of(j["admin_comment"]) is not None]


def state(job: dict[str, Any]) -> str:
    return str(job["job_state"][0])


def hold_of(lab: Lab, cluster: Cluster, pod: str) -> dict[str, Any]:
    uid = cluster.get("pod", pod)["metadata"]["uid"]
    (job,) = [j for j in holds(lab) if (i := identity_of(j["admin_comment"])) is not None and i.set_uid == uid]
    return job


def native(lab: Lab, node: str, seconds: float = 100_000) -> int:
    """A native job that wants both GPUs of a node, and writes down what NVML lists on them, every half second. It is
    root's: NVML lists GPU instances to nobody else."""
    script = f"#!/bin/sh\nend=$(($(date +%s) + {int(seconds)}))\n"
    script += "while [ $(date +%s) -lt $end ]; do nvml-list; sleep 0.5; done\n"
    return lab.submit(script, *ON_BOTH, f"--nodelist={node}", "--output=native-%j.out", user="root")


def native_state(lab: Lab, job: int) -> str:
    return next((state(j) for j in jobs(lab) if j["job_id"] == job), "GONE")


def saw_nothing_of_ours(lab: Lab, node: str, job: int) -> None:
    """Not one of the job's looks found a GPU instance."""
    lines = lab.node(node).run("sh", "-c", f"cat ~root/native-{job}.out").splitlines()
    looks = [json.loads(line) for line in lines if line.startswith("{")]
    assert looks, "the job has looked at least once"
    assert [look for look in looks if any(g["mig_current"] or g.get("gpu_instances") for g in look["gpus"])] == []


def test_the_seven_steps(lab: Lab, cluster: Cluster) -> None:
    # 1-3: a request becomes an external job, and Slurm selects node and GPU
    pod = cluster.pod("notebook", mig(profile="3g.40gb"))
    cluster.running(pod)
    hold = hold_of(lab, cluster, pod)
    assert state(hold) == "RUNNING"
    (shards,) = hold["gres_detail"]
    node = hold["nodes"]

    # 4: the claim is bound to a partition there that the shards pay for
    claim = cluster.claim_of(pod)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    entry = cluster.device_of(pod)
    data = entry["data"]
    assert result["pool"].startswith(f"{node}/")
    index = cluster.gpus(node).index(data["gpuUUID"])
    per_gpu = shards.split("(")[1].rstrip(")").split(",")
    assert [int(p.split("/")[0]) > 0 for p in per_gpu] == [i == index for i in range(2)], shards
    assert claim["metadata"]["annotations"][names.VERIFIED]

    # 5 and 6: made in prepare, and all that the workload sees; the UUID is the same everywhere
    (instance,) = cluster.instances()
    assert (instance.node, instance.gpu, instance.start) == (node, data["gpuUUID"], data["placement"]["start"])
    assert [m["uuid"] for m in cluster.container_sees(pod)["mig_devices"]] == [data["uuid"]] == list(instance.uuids)
    until(lambda: _in(data["uuid"], hold_of(lab, cluster, pod)["comment"]))

    # 7: a native job is kept off until the hardware is empty, then starts; nothing of ours was ever under it
    waiting = native(lab, node, seconds=4)
    time.sleep(3)
    assert native_state(lab, waiting) == "PENDING"
    cluster.lab.kubectl("-n", "e2e", "delete", "pod", pod, "--grace-period=1", "--wait=false")
    until(lambda: _in(native_state(lab, waiting), ("RUNNING", "COMPLETING", "GONE")))
    assert cluster.instances() == []
    until(lambda: _in(native_state(lab, waiting), ("GONE", "COMPLETED")))
    saw_nothing_of_ours(lab, node, waiting)


def test_a_pod_waits_for_native_jobs_with_slurms_reason_and_starts_when_one_ends(lab: Lab, cluster: Cluster) -> None:
    taken = {node: native(lab, node) for node in lab.nodes}
    for job in taken.values():
        until(lambda job=job: _equal(native_state(lab, job), "RUNNING"))  # type: ignore[misc]
    cluster.pod("late", mig(profile="1g.10gb"))

    def told() -> None:
        condition = cluster.slurm_condition("late")
        assert condition["reason"] == "SlurmPending"
        assert "Resources" in condition["message"] or "Priority" in condition["message"]

    until(told)
    assert cluster.instances() == []
    lab.slurm("scancel", str(taken["n2"]))
    cluster.running("late")
    assert {i.node for i in cluster.instances()} == {"n2"}
    assert native_state(lab, taken["n1"]) == "RUNNING"


def test_many_pods_share_gpus_without_overlap(lab: Lab, cluster: Cluster) -> None:
    wanted = ["1g.10gb", "2g.20gb", "3g.40gb", "1g.10gb", "4g.40gb", "1g.20gb", "2g.20gb", "1g.10gb"]
    pods = [cluster.pod(f"p{n}", mig(profile=profile)) for n, profile in enumerate(wanted)]
    cluster.running(*pods)
    taken = [(i.gpu, s) for i in cluster.instances() for s in range(i.start, i.start + i.size)]
    assert len(set(taken)) == len(taken)
    assert len(holds(lab)) == len(pods)


def test_preparation_that_failed_for_good_ends_the_pod_and_releases_the_hold(lab: Lab, cluster: Cluster) -> None:
    for node in lab.nodes:
        cluster.emulator(node).fail("nvmlDeviceCreateGpuInstanceWithPlacement", NvmlReturn.NO_PERMISSION, count=0)
    cluster.pod("doomed", mig(profile="1g.10gb"))

    def ended() -> None:
        assert cluster.lab.kubectl("-n", "e2e", "get", "pod", "doomed", "--ignore-not-found") == ""

    until(ended)
    until(lambda: _equal(holds(lab), []))
    cluster.empty()


def test_scancel_of_a_hold_ends_its_pod_and_the_native_job_finds_an_empty_gpu(lab: Lab, cluster: Cluster) -> None:
    cluster.pod("cancelled", mig(profile="2g.20gb"))
    cluster.running("cancelled")
    hold = hold_of(lab, cluster, "cancelled")
    waiting = native(lab, hold["nodes"], seconds=4)
    time.sleep(1)
    lab.slurm("scancel", str(hold["job_id"]))
    until(lambda: _in(native_state(lab, waiting), ("RUNNING", "COMPLETING", "GONE")))
    until(lambda: _in(native_state(lab, waiting), ("GONE", "COMPLETED")))
    saw_nothing_of_ours(lab, hold["nodes"], waiting)
    cluster.empty()


@pytest.mark.parametrize("daemon", ["bridge", "driver-n1", "slurmctld"])
def test_kill_9_while_pods_come_and_go(lab: Lab, cluster: Cluster, daemon: str) -> None:
    pods = [cluster.pod(f"k{n}", mig(profile="1g.10gb")) for n in range(4)]
    cluster.running(pods[0])
    lab.kill(daemon, signal.SIGKILL)
    lab.start(daemon)
    cluster.running(*pods)
    assert len({u for i in cluster.instances() for u in i.uuids}) == len(pods)
    cluster.delete(*pods)
    until(lambda: _equal(holds(lab), []))


def test_an_extended_resource_is_refused_with_the_claim_to_write(lab: Lab, cluster: Cluster) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "extended"},
        "spec": {
            "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}]
        },
    }
    with pytest.raises(Unavailable, match="ResourceClaimTemplate"):
        cluster.apply(pod)


def _in(thing: object, many: Any) -> None:
    assert thing in many


def _equal(seen: object, wanted: object) -> None:
    assert seen == wanted
