"""Nodes where kube-scheduler would not let a pod be: no hold is asked for there."""

from __future__ import annotations

from dynamig.bridge.fits import NodeMarks, marks_of
from dynamig.protocol.slurm_jobs import JobState
from tests.unit.bridge.stage import NODES, Stage, wants

CORDONED = marks_of({"metadata": {}, "spec": {"unschedulable": True}})


def node_of(stage: Stage, pod: str) -> str | None:
    found: str | None = stage.sets.pods[pod]["spec"].get("nodeName")
    return found


def test_a_cordoned_node_is_not_asked_for_and_what_runs_there_stays() -> None:
    stage = Stage()
    stage.sets.create_pod("before", wants("1g.10gb"))
    stage.settle()
    home = node_of(stage, "before")
    assert home is not None
    (other,) = set(NODES) - {home}
    stage.marks = {home: CORDONED}
    stage.sets.create_pod("after", wants("1g.10gb"))
    stage.settle()
    assert (node_of(stage, "before"), node_of(stage, "after")) == (home, other)
    stage.marks = dict.fromkeys(NODES, CORDONED)
    stage.sets.create_pod("late", wants("1g.10gb"))
    stage.settle()
    reason, message = stage.sets.told["late"][-1]
    assert reason == "NoLegalPlacement"
    assert all(f"{node}: it is cordoned" in message for node in NODES)
    stage.marks = {}
    stage.settle()
    assert node_of(stage, "late")


def test_a_pod_goes_where_its_node_selector_sends_it() -> None:
    stage = Stage()
    stage.marks = {"n2": NodeMarks({"zone": "b"})}
    pod = stage.sets.create_pod("a", wants("1g.10gb"))
    pod["spec"]["nodeSelector"] = {"zone": "b"}
    stage.settle()
    assert node_of(stage, "a") == "n2"


def test_a_pod_that_can_be_nowhere_keeps_a_shared_claim_from_no_other() -> None:
    stage = Stage()
    stage.sets.create_claim("shared", wants("1g.10gb"))
    stage.sets.create_pod("nowhere", uses=["shared"])["spec"]["nodeSelector"] = {"zone": "none"}
    stage.sets.create_pod("good", uses=["shared"])
    stage.settle()
    assert node_of(stage, "good")
    assert node_of(stage, "nowhere") is None


def test_a_hold_that_started_on_a_node_cordoned_meanwhile_moves() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    while not any(job.state is JobState.RUNNING for job in stage.slurm.jobs.values()):
        stage.look()
    (home,) = (job.node for job in stage.slurm.jobs.values())
    assert home is not None
    stage.marks = {home: CORDONED}
    stage.settle()
    assert node_of(stage, "a") == next(n for n in NODES if n != home)
    assert [job.state for job in stage.slurm.jobs.values()] == [JobState.ENDED, JobState.RUNNING]
