"""The first half of the main job on real components: what a pod asks for is what it gets, and nothing else."""

from __future__ import annotations

import json

import pytest

from dynamig.protocol import names
from tests.e2e.cluster import Cluster, container, mig, pod_object, profiles, request, until, whole


def test_claim_hardware_cdi_and_container_agree(cluster: Cluster) -> None:
    pod = cluster.pod("one", mig(profile="3g.40gb"))
    cluster.running(pod)
    claim = cluster.claim_of(pod)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    entry = cluster.device_of(pod)
    data = entry["data"]
    node = result["pool"].split("/")[0]  # this lab's own pools are named after its nodes

    (instance,) = cluster.instances()
    assert (instance.node, instance.gpu) == (node, data["gpuUUID"])
    assert (instance.profile_id, instance.start, instance.size) == (
        data["profileID"],
        data["placement"]["start"],
        data["placement"]["size"],
    )
    assert instance.uuids == (data["uuid"],)

    (name,) = cluster.cdi_files(node)
    spec = json.loads((cluster.lab.node(node).dir / "cdi" / name).read_text())
    (device,) = spec["devices"]
    paths = [n["path"] for n in device["containerEdits"]["deviceNodes"]]
    assert len([p for p in paths if p.startswith("/dev/nvidia-caps/")]) == 2

    seen = cluster.container_sees(pod)
    assert [m["uuid"] for m in seen["mig_devices"]] == [data["uuid"]]
    inside = cluster.lab.kubectl("-n", "e2e", "exec", pod, "--", "sh", "-c", "ls -d /dev/nvidia* /dev/nvidia-caps/*")
    assert sorted(inside.split()) == sorted([*paths, "/dev/nvidia-caps"])

    assert names.HELD in claim["metadata"]["finalizers"]
    assert claim["metadata"]["annotations"][names.NODE] == node
    condition = next(c for c in entry["conditions"] if c["type"] == names.PREPARED)
    assert condition["status"] == "True"

    cluster.delete(pod)
    cluster.empty()


def test_a_request_without_profile_gets_the_smallest_and_one_by_capacity_what_fits(cluster: Cluster) -> None:
    big = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('30Gi')) >= 0"
    cluster.pod("any", mig())
    cluster.running("any")
    assert cluster.device_of("any")["data"]["profile"] == "1g.10gb"
    cluster.pod("big", request("mig", "mig.nvidia.com", big))
    cluster.running("big")
    assert cluster.device_of("big")["data"]["profile"] in ("3g.40gb", "4g.40gb")


def test_full_gpu_and_partitions_exclude_each_other_both_ways(cluster: Cluster) -> None:
    gpu = cluster.gpus("n1")[0]
    cluster.pod("part", mig(profile="1g.10gb", gpu=gpu))
    cluster.running("part")
    cluster.pod("full", whole(gpu=gpu))
    cluster.stays_pending("full")
    cluster.delete("part")
    cluster.running("full")
    assert cluster.device_of("full")["data"]["uuid"] == gpu
    seen = cluster.container_sees("full")
    assert [g["uuid"] for g in seen["gpus"]] == [gpu]
    assert seen["mig_devices"] == []
    cluster.pod("again", mig(profile="1g.10gb", gpu=gpu))
    cluster.stays_pending("again")
    cluster.delete("full")
    cluster.running("again")


def test_1g_on_the_right_half_leaves_4g_possible_and_1g_on_the_left_does_not(cluster: Cluster) -> None:
    gpu = cluster.gpus("n1")[0]
    for n in range(3):  # first fit puts the first three on memory slices 4 to 6
        cluster.pod(f"small-{n}", mig(profile="1g.10gb", gpu=gpu))
    cluster.running("small-0", "small-1", "small-2")
    assert {i.start for i in cluster.instances()} == {4, 5, 6}
    cluster.pod("large", mig(profile="4g.40gb", gpu=gpu))
    cluster.running("large")
    cluster.delete("large")
    cluster.pod("small-3", mig(profile="1g.10gb", gpu=gpu))
    cluster.running("small-3")
    assert {i.start for i in cluster.instances()} & {0, 1, 2, 3}
    cluster.pod("large-2", mig(profile="4g.40gb", gpu=gpu))
    cluster.stays_pending("large-2")


@pytest.mark.parametrize("order", [("3g.40gb", "4g.40gb"), ("4g.40gb", "3g.40gb")], ids=["3g-first", "4g-first"])
def test_4g_and_3g_together_in_both_orders(cluster: Cluster, order: tuple[str, str]) -> None:
    gpu = cluster.gpus("n2")[1]
    for n, profile in enumerate(order):
        cluster.pod(f"p{n}", mig(profile=profile, gpu=gpu))
        cluster.running(f"p{n}")
    assert sorted(profiles(cluster.instances())) == [(5, 0, 4), (9, 4, 4)]
    for n in range(2):  # each compute instance fills its GPU instance
        (seen,) = cluster.container_sees(f"p{n}")["mig_devices"]
        assert seen["name"].endswith(order[n])


def test_every_profile_of_the_gpu_can_be_asked_for(cluster: Cluster) -> None:
    gpu = cluster.gpus("n1")[1]
    for profile in ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"):
        pod = "p-" + profile.replace("+", "-").replace(".", "-")
        cluster.pod(pod, mig(profile=profile, gpu=gpu))
        cluster.running(pod)
        assert cluster.device_of(pod)["data"]["profile"] == profile
        cluster.delete(pod)
        cluster.empty()


def test_a_hostile_image_sees_no_more(cluster: Cluster) -> None:
    gpu = cluster.gpus("n1")[0]
    cluster.pod("neighbour", mig(profile="1g.10gb", gpu=gpu))
    cluster.running("neighbour")
    cluster.pod("hostile", mig(profile="1g.10gb", gpu=gpu), image="lab.local/hostile:1")
    cluster.running("hostile")
    seen = cluster.container_sees("hostile")
    assert [m["uuid"] for m in seen["mig_devices"]] == [cluster.device_of("hostile")["data"]["uuid"]]
    environment = cluster.lab.kubectl("-n", "e2e", "exec", "hostile", "--", "env")
    assert "NVIDIA_VISIBLE_DEVICES=void" in environment.splitlines()


def test_each_container_gets_its_own_request(cluster: Cluster) -> None:
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "three"},
        "spec": {"spec": {"devices": {"requests": [mig(r, profile="1g.10gb") for r in ("a", "b", "unused")]}}},
    }
    command = "nvml-list && sleep 100000"
    pod = pod_object(
        "three",
        {"resourceClaimTemplateName": "three"},
        "",
        "",
        containers=[
            container("first", command, request="a"),
            container("second", command, request="b"),
            container("whole-claim", command),
        ],
    )
    cluster.apply(template, pod)
    cluster.running("three")
    sees = {
        name: {m["uuid"] for m in cluster.container_sees("three", name)["mig_devices"]}
        for name in ("first", "second", "whole-claim")
    }
    assert len(sees["first"]) == len(sees["second"]) == 1
    assert sees["first"] != sees["second"]
    assert sees["first"] | sees["second"] < sees["whole-claim"]
    assert len(sees["whole-claim"]) == 3
    assert len(cluster.instances()) == 3


def test_two_pods_share_one_claim_and_the_instance_goes_with_the_last(cluster: Cluster) -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "shared"},
        "spec": {"devices": {"requests": [mig(profile="2g.20gb")]}},
    }
    cluster.apply(claim)
    cluster.pod_of_claim("first", "shared")
    cluster.pod_of_claim("second", "shared")
    cluster.running("first", "second")
    (instance,) = cluster.instances()
    for pod in ("first", "second"):
        assert [m["uuid"] for m in cluster.container_sees(pod)["mig_devices"]] == list(instance.uuids)
    cluster.delete("first")
    assert cluster.instances() == [instance]
    cluster.delete("second")
    until(lambda: _equal(cluster.instances(), []))
    found = cluster.get("resourceclaim", "shared")
    until(lambda: _equal(cluster.get("resourceclaim", "shared")["metadata"].get("finalizers"), None))
    assert found["metadata"]["name"] == "shared"


def test_the_extended_resource_of_nvidias_manifests_gets_a_full_gpu(cluster: Cluster) -> None:
    pod = pod_object("extended", {"resourceClaimTemplateName": "x"}, "nvml-list && sleep 100000", "lab.local/tool:1")
    del pod["spec"]["resourceClaims"]
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    cluster.apply(pod)
    cluster.running("extended")
    assert len(cluster.container_sees("extended")["gpus"]) == 1
    cluster.delete("extended")


def _equal(seen: object, wanted: object) -> None:
    assert seen == wanted
