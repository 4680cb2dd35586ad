"""Who pays, under which names, and what the pod is told of it: once for each change."""

from __future__ import annotations

from dynamig.bridge.accounts import Accounts, Terms
from dynamig.bridge.actions import Submit
from dynamig.errors import Refused
from dynamig.protocol import names
from dynamig.protocol.slurm_jobs import Ending, HeldGpu, SlurmNodeName
from dynamig.testing.fake_slurm import FakeSlurm
from tests.unit.bridge.stage import NODES, UNITS, Stage, gpu, wants

TERMS = Terms("alice", "team-a", ("gpu", "low"), ("normal",), 60, 120)


def test_the_job_is_paid_by_whom_the_map_says_as_the_pod_chooses() -> None:
    stage = Stage(accounts=Accounts({"ns": TERMS}))
    pod = stage.sets.create_pod("a", wants("1g.10gb"))
    pod["metadata"]["annotations"] = {names.PARTITION: "low", names.NICE: "7"}
    stage.settle()
    (request,) = stage.slurm.requests.values()
    assert (request.user, request.account, request.partition, request.qos) == ("alice", "team-a", "low", "normal")
    assert (request.minutes, request.nice, request.priority) == (60, 7, None)


def test_a_pod_that_nobody_pays_for_is_told_why_and_nothing_else_is_touched() -> None:
    stage = Stage(accounts=Accounts({"ns": TERMS}))
    pod = stage.sets.create_pod("a", wants("1g.10gb"))
    pod["metadata"]["annotations"] = {"dynamig.io/account": "other"}
    stage.sets.create_pod("b", wants("1g.10gb"))
    stage.settle()
    ((reason, message),) = stage.sets.told["a"]
    assert reason == "NotAllowed"
    assert "dynamig.io/account" in message
    assert stage.sets.claims["a-0"]["metadata"]["finalizers"] == []
    assert stage.devices("b"), "the next pod is none the worse"


def test_no_entry_and_no_default() -> None:
    stage = Stage(accounts=Accounts({}))
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    assert stage.sets.told["a"][-1][0] == "NoAccount"
    assert stage.slurm.jobs == {}


def test_what_slurm_refuses_is_told_in_its_words_and_asked_again_after_a_while() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.slurm.failing["submit"] = Refused(
        "SLURM_2045", "submitting: Invalid account or account/partition combination specified"
    )
    for _ in range(20):
        stage.look()
    assert [type(action) for action, _ in stage.done if isinstance(action, Submit)] == [Submit]
    assert stage.sets.told["a"][-1][0] == names.SLURM_REFUSED
    assert "Invalid account" in stage.sets.told["a"][-1][1]
    stage.now += 60
    stage.slurm.failing.clear()
    stage.settle()
    assert stage.devices("a")


def test_a_pod_is_told_once_for_each_change() -> None:
    stage = Stage()
    stage.take_all_gpus()
    stage.sets.create_pod("a", wants("1g.10gb"))
    for _ in range(10):
        stage.look()
    stage.slurm.end_native(SlurmNodeName("n2"), 0)
    stage.settle()
    assert stage.sets.told["a"] == [
        ("SlurmPending", "Slurm job 1 waits: Resources"),
        (names.PAID, "Slurm job 1 on node n2 pays for it"),
    ]


def test_a_pod_of_two_sets_hears_what_is_wrong_before_what_is_right() -> None:
    stage = Stage()
    stage.sets.create_claim("shared", wants("1g.10gb"))
    stage.sets.create_pod("a", uses=["shared"])
    stage.settle()
    stage.sets.create_pod("b", wants("5g.60gb"), uses=["shared"])
    for _ in range(5):
        stage.look()
    assert [reason for reason, _ in stage.sets.told["b"]] == ["NoLegalPlacement"]
    assert stage.sets.told["a"][-1][0] == names.PAID


def test_pods_that_were_there_before_their_namespace_was_labelled_are_left_alone() -> None:
    stage = Stage()
    pod = stage.sets.create_pod("old", wants("1g.10gb"))
    pod["spec"]["schedulingGates"] = []
    claim = stage.sets.claims["old-0"]
    result = {"request": "r", "driver": names.DRIVER_NAME, "pool": "elsewhere", "device": "gpu-0"}
    claim["status"] = {"allocation": {"devices": {"results": [result]}}}
    assert stage.look() == 0
    assert claim["status"]["allocation"]
    assert stage.sets.told == {}


def test_three_names_of_one_host() -> None:
    """Case C-70: Kubernetes' n1 is gpu7 in Slurm, where n1 is Kubernetes' n2; Slurm counts the GPUs of n1 backwards."""
    gpu7, n1 = SlurmNodeName("gpu7"), SlurmNodeName("n1")
    stage = Stage(
        slurm=FakeSlurm({gpu7: (UNITS.count,) * 2, n1: (UNITS.count,) * 2}),
        slurm_names={"n1": gpu7, "n2": n1},
        maps={"n1": {0: gpu("n1", 1), 1: gpu("n1", 0)}},
    )
    assert stage.slurm.start_native(n1, 0)
    assert stage.slurm.start_native(n1, 1)
    stage.sets.create_pod("a", wants("7g.80gb"))
    stage.settle()
    (job,) = stage.slurm.jobs.values()
    assert job.node == gpu7
    assert stage.sets.pods["a"]["spec"]["nodeName"] == "n1"
    index = {"n1/gpu-1": 0, "n1/gpu-0": 1}[stage.devices("a")[0][0]]
    assert job.gpu == HeldGpu(index, UNITS.count)

    stage.sets.finish_pod("a")
    stage.look()
    stage.sets.driver_lets_go("a")
    stage.look()
    assert stage.job_states() == ["running"], "n1 still reports the claim; that n2 does not says nothing"
    stage.driver_claims["n1"].clear()
    stage.look()
    assert stage.job_states() == ["ended"]


def test_where_two_nodes_say_that_they_are_one_both_must_be_empty() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    node = stage.sets.pods["a"]["spec"]["nodeName"]
    other = next(n for n in NODES if n != node)
    stage.slurm_names[other] = SlurmNodeName(node)
    stage.sets.finish_pod("a")
    stage.sets.driver_lets_go("a")
    stage.look()
    assert stage.job_states() == ["running"]
    stage.driver_claims[node].clear()
    stage.look()
    assert stage.job_states() == ["ended"]
    assert stage.slurm.jobs[1].ending is Ending.CANCELLED


def test_a_gated_pod_that_is_deleted_goes_at_once_and_leaves_neither_claim_nor_job() -> None:
    stage = Stage()
    stage.take_all_gpus()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    del stage.sets.pods["a"]
    claim = stage.sets.claims["a-0"]
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:01Z"
    assert names.HELD in claim["metadata"]["finalizers"]
    stage.settle()
    assert stage.sets.claims == {}
    assert stage.job_states() == ["ended"]
