"""Pods that are paid for and that kube-scheduler cannot place: their shards go to others in time, and nothing that can
be served waits for ever."""

from __future__ import annotations

import pytest

from dynamig.bridge.committed import PATIENCE_UNSCHEDULABLE
from dynamig.bridge.decide import COMMITS, LONGEST_PREPARE, REST
from dynamig.errors import Unavailable
from dynamig.protocol import names
from dynamig.protocol.claims import read_claim
from dynamig.protocol.hold_note import Attempt, hold_note
from dynamig.protocol.slurm_jobs import JobState, SlurmNodeName
from dynamig.protocol.times import to_rfc3339
from tests.unit.bridge.stage import NODES, Stage, wants

ONE_NODE = PATIENCE_UNSCHEDULABLE + LONGEST_PREPARE + 30
"""Seconds in which a hand-made claim is tried on one node, and let go there."""


def sharing(*pods: str) -> Stage:
    """A hand-made claim, and pods that use it and may not be on the node that is chosen first."""
    stage = Stage()
    stage.sets.create_claim("shared", wants("3g.40gb"))
    for pod in pods:
        stage.sets.create_pod(pod, uses=["shared"])
        stage.sets.unfit[pod] = ("n1",)
    return stage


def running(stage: Stage) -> dict[str, str]:
    """The node of each set's running job."""
    jobs = [j for j in stage.slurm.jobs.values() if j.state is JobState.RUNNING]
    return {j.identity.set_uid: str(j.node) for j in jobs}


def node_of(stage: Stage, pod: str) -> str | None:
    node: str | None = stage.sets.pods[pod]["spec"].get("nodeName")
    return node


def attempt_of(stage: Stage, claim: str) -> Attempt:
    note = hold_note(read_claim(stage.sets.claims[claim], names.DRIVER_NAME))
    assert note is not None
    assert note.attempt is not None
    return note.attempt


def test_a_hand_made_claim_goes_to_another_node_and_its_pods_jobs_with_it() -> None:
    stage = sharing("a", "b")
    stage.pass_time(PATIENCE_UNSCHEDULABLE - 10)
    assert running(stage)["claim-shared"] == "n1"
    assert node_of(stage, "a") is None
    stage.pass_time(ONE_NODE)
    assert running(stage) == dict.fromkeys(("claim-shared", "pod-a", "pod-b"), "n2")
    assert (node_of(stage, "a"), node_of(stage, "b")) == ("n2", "n2")
    stage.settle()
    assert stage.look() == 0
    assert not any(p["metadata"].get("deletionTimestamp") for p in stage.sets.pods.values())


def test_one_pod_that_uses_the_claim_keeps_it_where_it_is() -> None:
    stage = sharing("a")
    stage.sets.create_pod("b", uses=["shared"])
    stage.pass_time(2 * ONE_NODE)
    assert node_of(stage, "b") == "n1"
    assert node_of(stage, "a") is None
    assert running(stage)["claim-shared"] == "n1"


def test_a_pod_that_waits_for_its_own_hold_goes_where_the_claim_goes() -> None:
    """It is gated, since n1 has no processors left for it; the claim leaves with the pod that may not be there."""
    stage = sharing("a")
    stage.slurm.cpus = 4
    stage.sets.create_pod("big", wants("1g.10gb"), uses=["shared"], cpu="3")
    stage.pass_time(5)
    assert stage.sets.told["big"][-1][0] == "SlurmPending"
    stage.pass_time(ONE_NODE + 10)
    assert node_of(stage, "a") == "n2"
    assert stage.slurm.requests[max(stage.slurm.requests)].purpose.nodes == ("n2",)
    stage.slurm.cpus = 64
    stage.pass_time(40)
    assert node_of(stage, "big") == "n2"


def test_a_claim_that_can_be_used_nowhere_gives_its_shards_back_and_is_tried_again_later() -> None:
    stage = sharing("a")
    stage.sets.unfit["a"] = NODES
    stage.pass_time(2 * ONE_NODE)
    assert "claim-shared" not in running(stage), "others may have them"
    again = to_rfc3339(int((attempt_of(stage, "shared").committed or 0) + REST))
    assert stage.sets.told["a"][-1] == (
        "Unschedulable",
        f"kube-scheduler cannot place the pod on n1, n2: one is tried again at {again}, or for a new pod",
    )
    assert stage.look() == 0
    jobs = len(stage.slurm.jobs)
    stage.sets.unfit.clear()
    stage.pass_time(REST)
    assert node_of(stage, "a") == "n1", "the one that was tried longest ago"
    assert attempt_of(stage, "shared").excluded == ("n1", "n2")
    assert len(stage.slurm.jobs) <= jobs + 2


def test_a_new_pod_of_a_claim_that_rests_is_served_at_once() -> None:
    stage = sharing("a")
    stage.sets.unfit["a"] = NODES
    stage.pass_time(2 * ONE_NODE)
    stage.sets.create_pod("b", uses=["shared"])
    stage.pass_time(10)
    assert node_of(stage, "b") is not None


def test_a_hold_that_could_not_be_cancelled_when_another_node_was_noted_is_cancelled_later() -> None:
    stage = sharing("a")
    stage.slurm.failing["cancel"] = Unavailable("SLURM_UNAVAILABLE", "injected")
    stage.pass_time(ONE_NODE)
    assert attempt_of(stage, "shared").excluded == ("n1",)
    assert running(stage)["claim-shared"] == "n1"
    stage.slurm.failing.clear()
    stage.pass_time(60)
    assert running(stage)["claim-shared"] == "n2"
    assert node_of(stage, "a") == "n2"


def test_a_claim_that_kube_scheduler_clears_itself_goes_to_another_node_too() -> None:
    stage = sharing("a")
    stage.pass_time(5)
    assert stage.devices("a")
    stage.sets.clear("shared")
    stage.pass_time(ONE_NODE)
    assert node_of(stage, "a") == "n2"


def test_the_last_pod_that_is_deleted_while_the_claim_looks_for_a_node_leaves_nothing() -> None:
    for seconds in range(0, round(ONE_NODE) + 20, 10):
        stage = sharing("a")
        stage.sets.unfit["a"] = NODES
        stage.pass_time(seconds)
        stage.sets.force_delete_pod("a")
        stage.pass_time(LONGEST_PREPARE + 20)
        assert running(stage) == {}
        assert names.HELD not in stage.sets.claims["shared"]["metadata"]["finalizers"]


def test_a_claim_that_is_deleted_while_it_looks_for_a_node_goes_although_its_pod_waits() -> None:
    stage = sharing("a")
    stage.sets.unfit["a"] = NODES
    claim = stage.sets.claims["shared"]["metadata"]
    while names.RELEASE not in claim.get("annotations", {}):
        stage.pass_time(1)
    claim["deletionTimestamp"] = to_rfc3339(stage.now)
    stage.pass_time(LONGEST_PREPARE + 20)
    assert stage.sets.claims.get("shared", {"metadata": {"finalizers": []}})["metadata"]["finalizers"] == []


def test_how_long_a_pod_was_gated_does_not_count() -> None:
    """PodScheduled keeps the time of the gate; each commit has its own half minute (P7)."""
    stage = Stage()
    stage.closed.update(g for n in NODES for g in stage.world().nodes[n].map.values())
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.sets.unfit["a"] = ("n1",)
    stage.pass_time(3 * PATIENCE_UNSCHEDULABLE)
    stage.closed.clear()
    stage.pass_time(PATIENCE_UNSCHEDULABLE)
    assert attempt_of(stage, "a-0").commits == 1
    assert stage.devices("a")
    stage.pass_time(COMMITS * (PATIENCE_UNSCHEDULABLE + 10))
    assert node_of(stage, "a") == "n2"


@pytest.mark.parametrize("silent", [[], ["n2"]])
def test_a_generated_claim_does_not_go_round_for_ever(silent: list[str]) -> None:
    stage = Stage(not_ready=set(silent))
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.sets.unfit["a"] = NODES
    stage.pass_time((len(NODES) - len(silent)) * COMMITS * (PATIENCE_UNSCHEDULABLE + 10))
    assert running(stage) == {}
    assert stage.look() == 0
    assert stage.sets.told["a"][-1][0] == "Unschedulable"


def test_a_pod_that_had_its_turn_in_vain_queues_behind_those_that_wait() -> None:
    """Another pod on each node does not want it beside itself (required anti-affinity, which counts both ways)."""
    stage = Stage()
    for node in NODES:
        assert stage.slurm.start_native(SlurmNodeName(node), 1)
    stage.sets.create_pod("unwanted", wants("7g.80gb"))
    stage.sets.unfit["unwanted"] = NODES
    stage.pass_time(3)
    for pod in ("b", "c", "d"):
        stage.sets.create_pod(pod, wants("7g.80gb"))
    stage.pass_time(3)
    assert running(stage) == {"pod-unwanted": "n1", "pod-b": "n2"}
    stage.pass_time(COMMITS * (PATIENCE_UNSCHEDULABLE + 10))
    assert running(stage) == {"pod-b": "n2", "pod-c": "n1"}
    stage.finish("b")
    stage.pass_time(5)
    assert running(stage) == {"pod-c": "n1", "pod-d": "n2"}


def test_the_pod_is_told_what_kube_scheduler_says() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.sets.unfit["a"] = NODES
    stage.pass_time(COMMITS * (PATIENCE_UNSCHEDULABLE + 10))
    assert ("Unschedulable", "kube-scheduler cannot place the pod on n1: 0/2 nodes are available") in stage.sets.told[
        "a"
    ]


def test_a_node_that_can_never_serve_it_is_no_other_node() -> None:
    """n2 has no place for it: n1 is tried again, though kube-scheduler could not place the pod there before."""
    stage = Stage()
    stage.closed.update(stage.world().nodes["n2"].map.values())
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.sets.unfit["a"] = NODES
    stage.pass_time(COMMITS * (PATIENCE_UNSCHEDULABLE + 10))
    assert running(stage) == {}
    stage.sets.unfit.clear()
    stage.pass_time(REST)
    assert node_of(stage, "a") == "n1"


def test_a_pod_that_fits_and_cannot_be_bound_gives_its_devices_back() -> None:
    """As one whose reservation the API server refuses: kube-scheduler says SchedulerError, and that for ever."""
    stage = Stage()
    pod = stage.sets.create_pod("a", wants("3g.40gb"))
    while not stage.devices("a"):
        stage.look()
    refused = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": "reservedFor: Invalid"}
    pod["status"]["conditions"] = [{**refused, "lastTransitionTime": to_rfc3339(stage.now)}]
    stage.look_for(PATIENCE_UNSCHEDULABLE - 5)
    assert stage.devices("a")
    stage.look_for(COMMITS * (PATIENCE_UNSCHEDULABLE + 30))
    assert any(reason == "Unschedulable" and "reservedFor: Invalid" in why for reason, why in stage.sets.told["a"])
    stage.look_for(2 * COMMITS * (PATIENCE_UNSCHEDULABLE + 30))
    assert stage.devices("a") == []
    assert running(stage) == {}
