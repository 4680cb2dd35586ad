"""A hold that its owner lets wait, or that an operator changes while it waits: nothing is committed to less than it
costs."""

from __future__ import annotations

import pytest

from dynamig.bridge.decide import PATIENCE_CHANGED
from dynamig.protocol import names
from dynamig.protocol.identity import JobKey
from dynamig.protocol.seen import Seen
from dynamig.protocol.slurm_jobs import Ending, Job, JobState
from tests.unit.bridge.stage import Stage, wants


def waiting(profile: str = "2g.20gb") -> Stage:
    """A pod whose hold waits for native jobs, which have every GPU."""
    stage = Stage()
    stage.take_all_gpus()
    stage.sets.create_pod("a", wants(profile))
    stage.settle()
    return stage


def let_start(stage: Stage) -> None:
    for node, index in list(stage.slurm.native):
        stage.slurm.end_native(node, index)


def says(stage: Stage) -> tuple[str, str]:
    found: tuple[str, str] = stage.sets.told["a"][-1]
    return found


def node_of(stage: Stage) -> str | None:
    node: str | None = stage.sets.pods["a"]["spec"].get("nodeName")
    return node


# -- changed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [0, 1])
@pytest.mark.parametrize("starts", [True, False])
def test_a_hold_that_asks_for_less_is_not_committed_to_and_is_asked_for_anew(shards: int, starts: bool) -> None:
    stage = waiting()
    stage.slurm.change(1, shards)
    if starts:
        let_start(stage)
    stage.look_for(5)
    assert stage.devices("a") == []
    assert says(stage)[0] == names.HOLD_CHANGED
    assert "job 1" in says(stage)[1]
    assert f"{shards} shards" in says(stage)[1]
    let_start(stage)
    stage.pass_time(PATIENCE_CHANGED + 10)
    assert [j.state for j in stage.slurm.jobs.values()] == [JobState.ENDED, JobState.RUNNING]
    assert node_of(stage) is not None
    assert says(stage)[0] == names.PAID


def test_where_every_hold_is_changed_it_does_not_go_round_all_the_time() -> None:
    stage = waiting()
    let_start(stage)
    for _ in range(300):
        for job in list(stage.slurm.jobs.values()):
            if job.living and not job.changed:
                stage.slurm.change(job.key.job_id, 1)
        stage.look()
    assert stage.devices("a") == []
    assert len(stage.slurm.jobs) <= 300 / PATIENCE_CHANGED + 1


@pytest.mark.parametrize("shards", [0, 1])
def test_a_second_hold_of_what_already_lives_is_no_scancel_when_it_is_changed_and_given_up(shards: int) -> None:
    """Slurm lost the first one; an operator changes the second, which then runs for less."""
    stage = Stage()
    stage.sets.create_pod("a", wants("2g.20gb"))
    stage.settle()
    stage.slurm.paused = True
    stage.slurm.end(1, Ending.NODE_FAIL)
    stage.pass_time(5)
    stage.slurm.change(2, shards)
    stage.slurm.paused = False
    stage.slurm.schedule()
    stage.pass_time(10)
    assert "deletionTimestamp" not in stage.sets.pods["a"]["metadata"]
    assert [j.state for j in stage.slurm.jobs.values()] == [JobState.ENDED, JobState.ENDED, JobState.RUNNING]
    assert says(stage)[0] == names.PAID


def test_what_is_verified_is_what_was_decided_on() -> None:
    """The job has another GPU by the time that its set is verified: the pod keeps its gate."""
    stage = Stage()
    stage.sets.create_pod("a", wants("2g.20gb"))
    stage.look()
    look = stage.slurm.look

    def look_too_late(key: JobKey) -> Seen[Job]:
        stage.slurm.move(1, 1)
        return look(key)

    stage.slurm.look = look_too_late  # type: ignore[method-assign]
    stage.look()
    assert stage.devices("a") != []
    assert stage.sets.pods["a"]["spec"]["schedulingGates"] != []
    stage.settle()
    assert [pool for pool, _ in stage.devices("a")] == ["n1/gpu-1"]
    assert node_of(stage) == "n1"


# -- held --------------------------------------------------------------------------------------------------------------


def test_a_hold_that_its_owner_lets_wait_is_left_alone_and_its_pod_says_so() -> None:
    stage = waiting()
    stage.slurm.hold(1)
    let_start(stage)
    stage.pass_time(400)
    assert [j.state for j in stage.slurm.jobs.values()] == [JobState.PENDING], "it is not asked for anew elsewhere"
    assert says(stage) == (
        names.HOLD_HELD,
        "Slurm job 1, which is to pay for this pod, is held (JobHeldUser): scontrol release 1",
    )
    stage.slurm.release(1)
    stage.pass_time(5)
    assert node_of(stage) is not None


def test_a_hold_that_is_cancelled_while_it_is_held_ends_its_pod() -> None:
    stage = waiting()
    stage.slurm.hold(1)
    stage.look()
    stage.slurm.end(1, Ending.CANCELLED)
    stage.look()
    assert "deletionTimestamp" in stage.sets.pods["a"]["metadata"]


def test_a_pod_that_waits_for_a_held_hold_keeps_nobody_from_what_is_free() -> None:
    stage = waiting("7g.80gb")
    stage.slurm.hold(1)
    let_start(stage)
    for pod in ("b", "c", "d", "e"):
        stage.sets.create_pod(pod, wants("7g.80gb"))
    stage.settle()
    assert all(stage.sets.pods[pod]["spec"].get("nodeName") for pod in ("b", "c", "d", "e"))
