"""Which nodes may be acted on, and which pods are the bridge's."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dynamig.bridge.accounts import Accounts
from dynamig.bridge.config import load
from dynamig.bridge.fits import NodeMarks, marks_of
from dynamig.bridge.look import checked, node_view, node_views, slurm_pods, world
from dynamig.bridge.world import World
from dynamig.dra import resource_slices
from dynamig.driver.catalog import build
from dynamig.driver.config import GpuPolicies
from dynamig.errors import Refused
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.gpus import MigMode
from dynamig.protocol.node_report import FRESH_SECONDS, MOST_AHEAD
from dynamig.protocol.outages import Outage, outages_to_json
from dynamig.protocol.slurm_jobs import SlurmGpu, SlurmNode, SlurmNodeName
from tests.unit.driver.bench_node import h100

NOW = 1_800_000_000.0
N1 = SlurmNodeName("n1")


def lease(age: float = 1.0, **changes: Any) -> dict[str, Any]:
    device_map = {"v": 1, "source": "minors", "gpus": {"0": "GPU-0", "1": "GPU-1"}}
    report = {"v": 1, "registered": True, "claims": ["u1"], "deviceMap": device_map, **changes}
    renewed = datetime.fromtimestamp(NOW - age, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"metadata": {"annotations": {names.REPORT: json.dumps(report)}}, "spec": {"renewTime": renewed}}


def slurm_node(*indices: int) -> SlurmNode:
    return SlurmNode(N1, True, tuple(SlurmGpu(i, 7, 0, False) for i in indices), cpus=16, memory=64_000)


def test_a_node_that_reports_and_agrees_with_slurm_is_ready() -> None:
    node = checked(node_view("n1", lease(), NOW), slurm_node(0, 1))
    assert node.ready
    assert node.claims == {"u1"}
    assert node.map == {0: "GPU-0", 1: "GPU-1"}
    assert node.outages == {}


def test_a_report_from_the_future_is_no_word_on_what_is_there_now() -> None:
    """A dead driver's would count for as long as its node's clock is ahead."""
    near = node_view("n1", lease(-MOST_AHEAD + 1), NOW)
    assert (near.fresh, near.ready, near.reported > NOW) == (True, True, True)
    far = node_view("n1", lease(-MOST_AHEAD - 60), NOW)
    assert (far.fresh, far.ready, far.reported) == (False, False, 0.0)
    assert "its clock is 90 s ahead of the bridge's" in far.why_not


def undivided(*rules: dict[str, Any]) -> World:
    """A node with one GPU that is not partitioned."""
    reading = h100(mode=MigMode.ABSENT, geometry=None)
    (offer,) = build("n1", [reading], {reading.uuid: 0}, GpuPolicies()).offers.values()
    return world(
        now=NOW,
        driver=names.DRIVER_NAME,
        pods=(),
        namespaces=(),
        claims=(),
        slices=resource_slices(offer.pool, driver=names.DRIVER_NAME, node="n1", generation=1),
        rules=rules,
        classes=(),
        leases={},
        nodes=(),
        accounts=Accounts({}),
        jobs=(),
        slurm_nodes=(),
        slurm_started=0.0,
    )


def test_a_gpu_without_partitions_shares_memory_with_itself() -> None:
    (uuid,) = undivided().pools
    assert undivided().footprints() == {("n1/gpu-0", "gpu-0"): {(uuid, -1)}}


def test_an_administrators_taints_are_seen_as_if_they_were_published() -> None:
    taint = {"key": "example.com/broken", "effect": "NoSchedule"}
    rule = {"metadata": {"name": "r"}, "spec": {"deviceSelector": {"device": "gpu-0"}, "taint": taint}}
    ((before,), (after,)) = (tuple(seen.pools.values()) for seen in (undivided(), undivided(rule)))
    assert [t.key for t in after.devices[0].taints] == [*(t.key for t in before.devices[0].taints), taint["key"]]


def test_gpus_that_do_not_answer_are_known_from_the_report() -> None:
    outages = {GpuUuid("GPU-1"): Outage("GPU_LOST", 1_700_000_000), GpuUuid("GPU-0"): Outage("GPU_LOST", 1, 2)}
    assert node_view("n1", lease(outages=outages_to_json(outages)), NOW).outages == outages


def test_a_node_without_a_map_has_the_name_in_slurm_that_its_driver_was_told() -> None:
    assert node_view("n1", lease(deviceMap=None, slurmNode="gn07"), NOW).slurm == "gn07"
    assert node_view("n1", lease(deviceMap=None), NOW).slurm == ""
    assert node_view("n1", lease(slurmNode="gn07"), NOW).slurm == "n1", "a map without a name: the name in Kubernetes"


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (None, "never reported"),
        (lease(age=FRESH_SECONDS + 1), "has not reported since 2027-01-15T07:59:19"),
        (lease(registered=False), "not registered"),
        (lease(deviceMap=None), "no map"),
        (lease(mapTrouble="GPU-x is not on this node"), "GPU-x is not on this node"),
        (lease(deviceMap={"v": 99}), "cannot be read"),
        ({"metadata": {}, "spec": {}}, "cannot be read"),
    ],
)
def test_a_node_that_cannot_be_acted_on_says_why(seen: dict[str, Any] | None, why: str) -> None:
    node = checked(node_view("n1", seen, NOW), slurm_node(0, 1))
    assert not node.ready
    assert why in node.why_not


@pytest.mark.parametrize("slurm", [None, slurm_node(0), slurm_node(0, 1, 2)])
def test_a_node_whose_map_and_slurm_disagree_is_out_of_use(slurm: SlurmNode | None) -> None:
    node = checked(node_view("n1", lease(), NOW), slurm)
    assert not node.ready
    assert "Slurm" in node.why_not


def named(slurm: str | None) -> dict[str, Any]:
    device_map = {"v": 1, "source": "config-map", "gpus": {"0": "GPU-0", "1": "GPU-1"}}
    return lease(deviceMap=device_map if slurm is None else {**device_map, "slurmNode": slurm})


def leases(**slurm_names: str | None) -> dict[str, dict[str, Any]]:
    return {names.lease_name(node): named(slurm) for node, slurm in slurm_names.items()}


def test_a_node_has_the_slurm_name_that_its_driver_reports_and_without_a_map_none() -> None:
    slurm = {SlurmNodeName(n): replace(slurm_node(0, 1), name=SlurmNodeName(n)) for n in ("gpu7", "n2")}
    found = node_views(["n1", "n2", "n3"], leases(n1="gpu7", n2=None), slurm, NOW)
    assert {n.name: (n.slurm, n.ready) for n in found.values()} == {
        "n1": ("gpu7", True),
        "n2": ("n2", True),
        "n3": ("", False),
    }


def test_two_nodes_that_say_they_are_one_slurm_node_are_both_out_of_use() -> None:
    found = node_views(["n1", "n2"], leases(n1="n2", n2=None), {N1: slurm_node(0, 1)}, NOW)
    assert [n.ready for n in found.values()] == [False, False]
    assert "another node says too that it is n2 in Slurm" in found["n1"].why_not


def test_only_pods_with_claims_in_labelled_namespaces() -> None:
    def pod(namespace: str, uid: str, claims: bool) -> dict[str, Any]:
        spec = {"resourceClaims": [{"name": "c", "resourceClaimName": "x"}]} if claims else {}
        return {"metadata": {"namespace": namespace, "name": uid, "uid": uid}, "spec": spec}

    namespaces: list[dict[str, Any]] = [
        {"metadata": {"name": "hpc", "labels": {names.SCHEDULER_LABEL: "slurm"}}},
        {"metadata": {"name": "free"}},
    ]
    pods = [pod("hpc", "a", True), pod("hpc", "b", False), pod("free", "c", True)]
    found = slurm_pods(pods, namespaces, Accounts({}))
    assert list(found) == ["a"]


def test_every_error_of_a_configuration_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bridge.yaml"
    path.write_text(
        "slurm: {url: x, user: root, tokenFile: relative}\n"
        "defaultAccount: {user: alice, partitions: []}\n"
        "accounts:\n"
        "  a: {minutes: 0}\n"
        "  b/: {user: bob, partitions: [p]}\n"
        "  c: {user: bob, partitions: [p, q, p], minutes: 90, maxMinutes: 60}\n"
        "typo: 1\n"
    )
    with pytest.raises(Refused) as told:
        load(path)
    for field in (
        "slurm.tokenFile",
        "defaultAccount.partitions",
        "accounts.a.user",
        "accounts.a.partitions",
        "accounts.a.minutes",
        "accounts.b/",
        "accounts.c.partitions: Value error, p is given twice",
        "accounts.c.maxMinutes: Value error, 60 is less than minutes",
        "typo",
    ):
        assert field in told.value.what


def test_only_the_out_of_service_taint_declares_a_node_gone() -> None:
    def marks(*taints: str) -> NodeMarks:
        return marks_of({"metadata": {}, "spec": {"taints": [{"key": t, "effect": "NoExecute"} for t in taints]}})

    unreachable = marks("node.kubernetes.io/unreachable")
    off = marks("node.kubernetes.io/unreachable", names.OUT_OF_SERVICE)
    found = node_views(["n1", "n2", "n3"], {}, {}, NOW, {"n1": unreachable, "n2": off})
    assert [name for name, node in found.items() if node.gone] == ["n2"]


def test_a_node_that_kubernetes_does_not_have_any_more_is_out_of_use() -> None:
    """Its driver's report outlives it; else a pod would be told that its labels do not fit."""
    leases = {names.lease_name("n1"): lease()}
    slurm = {N1: slurm_node(0, 1)}
    assert node_views(["n1"], leases, slurm, NOW, {"n1": NodeMarks()})["n1"].ready
    gone = node_views(["n1"], leases, slurm, NOW, {"n2": NodeMarks()})["n1"]
    assert (gone.ready, gone.gone, gone.why_not) == (False, False, "Kubernetes has no node of that name")
