"""Somebody else's scheduling gates, and pods that are narrowed while they have one: nothing is held for a pod that
could not be scheduled, and none is let go to a node where it may not be."""

from __future__ import annotations

import pytest

from dynamig.bridge.actions import Ungate
from dynamig.bridge.fits import NodeMarks
from dynamig.errors import Unavailable
from dynamig.protocol import names
from dynamig.protocol.slurm_jobs import JobState
from tests.unit.bridge.stage import NODES, Stage, wants

QUOTA = "example.com/quota"
ZONES = {"n1": NodeMarks({"zone": "a"}), "n2": NodeMarks({"zone": "b"})}


def gated(*uses: str) -> Stage:
    """Pod a, with somebody else's gate behind ours. `uses`: a claim made by hand."""
    stage = Stage()
    stage.marks = dict(ZONES)
    if uses:
        stage.sets.create_claim(uses[0], wants("1g.10gb"))
    made = stage.sets.create_pod("a", wants("2g.20gb"), uses=uses)
    made["spec"]["schedulingGates"].append({"name": QUOTA})
    return stage


def node_of(stage: Stage, pod: str) -> str | None:
    found: str | None = stage.sets.pods[pod]["spec"].get("nodeName")
    return found


@pytest.mark.parametrize("uses", [(), ("shared",)])
def test_nothing_is_held_before_ours_is_the_last_gate(uses: tuple[str, ...]) -> None:
    stage = gated(*uses)
    stage.settle()
    assert stage.slurm.jobs == {}
    assert stage.sets.told["a"] == [
        (names.OTHER_GATES, f"Slurm is asked once its other scheduling gates are gone: {QUOTA}")
    ]
    stage.sets.narrow("a", {"zone": "b"})
    stage.sets.open_gate("a", QUOTA)
    stage.settle()
    assert node_of(stage, "a") == "n2"
    assert stage.sets.told["a"][-1][0] == names.PAID


def test_a_shared_claim_is_held_for_the_pods_that_can_use_it() -> None:
    stage = gated("shared")
    stage.sets.create_pod("b", uses=["shared"])
    stage.settle()
    assert node_of(stage, "b") is not None
    assert {j.identity.set_uid for j in stage.slurm.jobs.values()} == {"claim-shared", "pod-b"}
    stage.sets.open_gate("a", QUOTA)
    stage.settle()
    assert node_of(stage, "a") == node_of(stage, "b")


def test_a_pod_with_other_gates_that_is_deleted_leaves_nothing() -> None:
    stage = gated()
    stage.settle()
    stage.sets.force_delete_pod("a")
    stage.settle()
    assert stage.sets.claims == {}
    assert stage.slurm.jobs == {}


def narrowed_at_ungate(stage: Stage, times: int) -> None:
    """Just before the bridge takes its gate off, somebody narrows the pod to the other node."""
    run = stage.hands.run

    def late(action: object) -> None:
        nonlocal times
        if isinstance(action, Ungate) and times:
            times -= 1
            stage.sets.narrow("a", {"zone": "b"})
        run(action)  # type: ignore[arg-type]

    stage.hands.run = late  # type: ignore[method-assign]


def test_a_pod_that_is_narrowed_between_commit_and_gate_goes_where_it_may() -> None:
    stage = Stage()
    stage.marks = dict(ZONES)
    stage.sets.create_pod("a", wants("2g.20gb"))
    narrowed_at_ungate(stage, times=1)
    stage.settle()
    assert node_of(stage, "a") == "n2"
    assert [(j.node, j.state) for j in stage.slurm.jobs.values()] == [("n1", JobState.ENDED), ("n2", JobState.RUNNING)]


def test_a_node_that_is_closed_between_commit_and_gate_is_left() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("2g.20gb"))
    stage.sets.faults.fail("ungate", Unavailable("API_UNAVAILABLE", "injected"), nth=1)
    while not stage.devices("a"):
        stage.look()
    (home,) = (job.node for job in stage.slurm.jobs.values())
    stage.marks = {str(home): NodeMarks(taints=[{"key": "broken", "effect": "NoSchedule"}])}
    stage.pass_time(10)
    (other,) = set(NODES) - {str(home)}
    assert node_of(stage, "a") == other


def test_a_pod_that_is_narrowed_while_its_hold_waits_moves_when_it_starts() -> None:
    stage = Stage()
    stage.marks = dict(ZONES)
    stage.slurm.paused = True
    stage.sets.create_pod("a", wants("2g.20gb"))
    stage.look_for(3)
    stage.sets.narrow("a", {"zone": "b"})
    stage.slurm.paused = False
    stage.slurm.schedule()
    stage.settle()
    assert node_of(stage, "a") == "n2"
