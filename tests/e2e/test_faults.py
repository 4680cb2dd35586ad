"""Daemons die, hardware refuses, people force: running pods are untouched, nothing leaks, the next pod runs."""

from __future__ import annotations

import time

from dynamig.protocol import names
from dynamig.testing.emulator import NvmlReturn
from tests.e2e.cluster import KUBELET_RETRY, Cluster, Instance, mig, until


def restarts(cluster: Cluster, pod: str) -> int:
    return int(cluster.get("pod", pod)["status"]["containerStatuses"][0]["restartCount"])


def on_n1(cluster: Cluster, number: int = 0) -> str:
    return cluster.gpus("n1")[number]


def test_kill_9_of_the_driver_while_pods_run(cluster: Cluster) -> None:
    gpu = on_n1(cluster)
    for n in range(2):
        cluster.pod(f"old-{n}", mig(profile="2g.20gb", gpu=gpu))
    cluster.running("old-0", "old-1")
    before = cluster.instances()
    with cluster.killed_driver("n1"):
        assert cluster.instances() == before
    assert cluster.instances() == before
    assert restarts(cluster, "old-0") == 0
    cluster.pod("new", mig(profile="1g.10gb", gpu=gpu))
    cluster.running("new")
    cluster.delete("old-0")
    until(lambda: _holds(len(cluster.instances()) == 2))
    assert {i.profile_id for i in cluster.instances()} == {14, 19}


def test_a_pod_deleted_while_the_driver_is_dead_leaves_nothing(cluster: Cluster) -> None:
    cluster.pod("gone", mig(profile="1g.10gb", gpu=on_n1(cluster)))
    cluster.running("gone")
    with cluster.killed_driver("n1"):
        cluster.lab.kubectl("-n", "e2e", "delete", "pod", "gone", "--grace-period=1", "--wait=false")
        time.sleep(2)
        assert len(cluster.instances()) == 1, "nobody but the driver destroys"
    cluster.empty(within=KUBELET_RETRY)


def test_kill_9_of_the_driver_while_a_claim_is_being_prepared(cluster: Cluster) -> None:
    gpu = on_n1(cluster)
    cluster.pod("bystander", mig(profile="1g.10gb", gpu=gpu))
    cluster.running("bystander")
    (bystander,) = cluster.instances()
    cluster.emulator("n1").delay("nvmlGpuInstanceCreateComputeInstance", 5.0, count=1)
    cluster.pod("victim", mig(profile="2g.20gb", gpu=gpu))
    until(lambda: _holds(len(cluster.instances()) == 2))
    cluster.emulator("n1").clear_faults()
    with cluster.killed_driver("n1"):
        assert len(cluster.instances()) == 2, "a GPU instance without compute instance was left behind"
    assert bystander in cluster.instances()
    cluster.pod("next", mig(profile="1g.10gb", gpu=gpu))
    cluster.running("next")
    cluster.running("victim", within=KUBELET_RETRY)
    assert len(cluster.instances()) == 3
    assert restarts(cluster, "bystander") == 0


def test_kubelet_restart(cluster: Cluster) -> None:
    gpu = on_n1(cluster)
    cluster.pod("old", mig(profile="3g.40gb", gpu=gpu))
    cluster.running("old")
    before = cluster.instances()
    cluster.lab.kill("kubelet-n1")
    cluster.lab.start("kubelet-n1")
    until(lambda: _holds(cluster.pools() == dict.fromkeys(cluster.pools(), True) and len(cluster.pools()) == 4))
    assert cluster.instances() == before
    cluster.pod("new", mig(profile="1g.10gb", gpu=gpu))
    cluster.running("new")
    assert restarts(cluster, "old") == 0
    cluster.delete("old")
    until(lambda: _holds(len(cluster.instances()) == 1))


def test_a_force_deleted_pods_placement_is_given_on_only_when_it_is_empty(cluster: Cluster) -> None:
    gpu = on_n1(cluster)
    cluster.emulator("n1").delay("nvmlComputeInstanceDestroy", 3.0, count=1)
    cluster.pod("forced", mig(profile="7g.80gb", gpu=gpu))
    cluster.running("forced")
    (old,) = cluster.instances()
    cluster.delete("forced", force=True)
    cluster.pod("next", mig(profile="7g.80gb", gpu=gpu))
    cluster.running("next")
    (new,) = cluster.instances()
    assert (new.start, new.size) == (old.start, old.size)
    assert new.uuids != old.uuids
    assert [m["uuid"] for m in cluster.container_sees("next")["mig_devices"]] == list(new.uuids)


def test_compute_instance_fails_after_the_gpu_instance_was_made(cluster: Cluster) -> None:
    gpu = on_n1(cluster)
    cluster.emulator("n1").fail("nvmlGpuInstanceCreateComputeInstance", NvmlReturn.INSUFFICIENT_RESOURCES)
    cluster.pod("unlucky", mig(profile="1g.10gb", gpu=gpu))

    def told() -> None:
        (entry,) = cluster.claim_of("unlucky")["status"].get("devices") or [{}]
        (condition,) = entry["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == (names.PREPARED, "False", "NoRoom")
        assert "compute instance" in condition["message"]

    until(told, within=KUBELET_RETRY)
    assert cluster.instances() == []
    assert any("NO_ROOM" in e["message"] for e in cluster.events("unlucky"))
    device = cluster.claim_of("unlucky")["status"]["allocation"]["devices"]["results"][0]["device"]
    cluster.delete("unlucky")
    cluster.pod("lucky", mig(profile="1g.10gb", gpu=gpu))
    cluster.running("lucky")
    assert cluster.device_of("lucky")["device"] == device, "the very same placement works"


def test_a_claim_of_several_devices_is_all_or_nothing(cluster: Cluster) -> None:
    gpu = on_n1(cluster)
    cluster.emulator("n1").fail("nvmlDeviceCreateGpuInstanceWithPlacement", NvmlReturn.UNKNOWN, nth=3)
    seen: set[int] = set()
    cluster.pod("three", mig(profile="1g.10gb", gpu=gpu, count=3))

    def undone() -> None:
        seen.add(len(cluster.instances()))
        assert any("NVML_UNAVAILABLE" in e["message"] for e in cluster.events("three"))

    until(undone, within=KUBELET_RETRY, every=0.02)
    assert cluster.instances() == []
    cluster.delete("three")
    cluster.pod("three-more", mig(profile="1g.10gb", gpu=gpu, count=3))
    cluster.running("three-more")
    assert len(cluster.instances()) == 3


def test_slices_vanish_and_come_back(cluster: Cluster) -> None:
    before = cluster.pools()
    assert len(before) == 4
    cluster.lab.kubectl("delete", "resourceslices", "--all")
    until(lambda: _holds(cluster.pools() == before))
    cluster.pod("after", mig(profile="1g.10gb"))
    cluster.running("after")


def test_a_foreign_instance_is_withdrawn_not_destroyed_and_comes_back_when_it_is_gone(cluster: Cluster) -> None:
    gpu = on_n1(cluster)
    gi = cluster.emulator("n1").foreign(0, "1g.10gb", 6)
    foreign: tuple[Instance, ...] = tuple(cluster.instances())
    until(lambda: _holds(len(_tainted(cluster)) > 0))
    cluster.pod("whole-gpu", mig(profile="7g.80gb", gpu=gpu))
    cluster.stays_pending("whole-gpu")
    cluster.pod("beside", mig(profile="3g.40gb", gpu=gpu))
    cluster.running("beside")
    assert set(foreign) < set(cluster.instances())
    cluster.delete("beside")
    cluster.nvml(
        "n1",
        f"d = pynvml.nvmlDeviceGetHandleByUUID('{gpu}')\n"
        f"g = pynvml.nvmlDeviceGetGpuInstanceById(d, {gi})\n"
        "pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(g, 0))\n"
        "pynvml.nvmlGpuInstanceDestroy(g)",
    )
    until(lambda: _holds(_tainted(cluster) == []))
    cluster.running("whole-gpu")


def test_claims_whose_records_were_lost_while_pods_run_are_adopted_and_end_like_any_other(cluster: Cluster) -> None:
    gpu = on_n1(cluster)
    pods = ("damaged", "lost")
    for pod in pods:
        cluster.pod(pod, mig(profile="2g.20gb", gpu=gpu))
    cluster.running(*pods)
    had = {pod: cluster.device_of(pod)["data"]["uuid"] for pod in pods}
    claims = {pod: cluster.claim_of(pod)["metadata"] for pod in pods}
    running = cluster.instances()
    records = {pod: cluster.journal_file("n1", claims[pod]["uid"]) for pod in pods}
    with cluster.killed_driver("n1"):
        records["damaged"].write_bytes(b"\0" * 7)
        records["lost"].unlink()
    until(lambda: _holds(_tainted(cluster) != []))
    for pod, wanted in (("damaged", claims["damaged"]["uid"]), ("lost", f"e2e/{claims['lost']['name']}")):
        answer = cluster.driver("n1", "adopt", wanted)
        assert [device["uuid"] for device in answer["devices"]] == [had[pod]]
    assert not any(cluster.driver("n1", "plan").values())
    until(lambda: _holds(_tainted(cluster) == []))
    assert cluster.instances() == running
    assert [restarts(cluster, pod) for pod in pods] == [0, 0]
    assert records["damaged"].with_name(records["damaged"].name + ".damaged").read_bytes() == b"\0" * 7
    cluster.delete(*pods)
    cluster.empty(within=KUBELET_RETRY)


def test_churn_leaves_the_books_straight(cluster: Cluster) -> None:
    """40 short pods over every 1g slot of both nodes: all succeed, no two instances overlap at any look."""
    pods = [f"churn-{n}" for n in range(40)]
    for pod in pods:
        cluster.pod(pod, mig(profile="1g.10gb"), command="nvml-list && sleep 0.5")
    end = time.monotonic() + 240
    waiting = set(pods)
    while waiting:
        assert time.monotonic() < end, cluster.story(min(waiting))
        _disjoint(cluster.instances())
        phases = {
            p["metadata"]["name"]: p["status"]["phase"]
            for p in cluster.lab.kubectl_json("-n", "e2e", "get", "pods")["items"]
        }
        assert "Failed" not in phases.values()
        waiting = {p for p in waiting if phases[p] != "Succeeded"}
    assert len({m["uuid"] for p in pods for m in cluster.container_sees(p)["mig_devices"]}) == len(pods)


def _disjoint(instances: list[Instance]) -> None:
    taken: dict[tuple[str, int], Instance] = {}
    for instance in instances:
        for memory_slice in range(instance.start, instance.start + instance.size):
            assert taken.setdefault((instance.gpu, memory_slice), instance) is instance


def _tainted(cluster: Cluster) -> list[str]:
    slices = cluster.lab.kubectl_json("get", "resourceslices")["items"]
    return [d["name"] for s in slices for d in s["spec"].get("devices") or () if d.get("taints")]


def _holds(fact: bool) -> None:
    assert fact
