"""Claims that live while their Slurm job is gone (P9): held again on the same GPU, or ended; silence proves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynamig.bridge.committed import LONGEST_GRACE, PATIENCE_BARE, PATIENCE_SUSPENDED, SEEN_TWICE
from dynamig.protocol import names
from dynamig.protocol.claims import read_claim
from dynamig.protocol.hold_note import hold_note
from dynamig.protocol.slurm_jobs import TOP_PRIORITY, Ending, HeldGpu, JobState, SlurmNodeName
from dynamig.protocol.times import from_rfc3339
from tests.unit.bridge.stage import Stage, wants

N1, N2 = SlurmNodeName("n1"), SlurmNodeName("n2")


def living(profile: str = "2g.20gb") -> Stage:
    """A pod that runs on GPU 1 of n1, with its job 2; job 1 fills GPU 0."""
    stage = Stage()
    stage.slurm.down.add(N2)
    stage.sets.create_pod("whole", wants("7g.80gb"))
    stage.settle()
    stage.sets.create_pod("a", wants(profile))
    stage.settle()
    assert stage.devices("a")[0][0] == "n1/gpu-1"
    stage.slurm.down.clear()
    return stage


def paid_by(stage: Stage) -> int:
    note = hold_note(read_claim(stage.sets.claims["a-0"], names.DRIVER_NAME))
    assert note is not None
    assert note.attempt is not None
    assert note.attempt.job is not None
    return note.attempt.job.job_id


def test_a_job_that_slurmctld_lost_is_held_again_on_the_same_gpu() -> None:
    stage = living()
    stage.slurm.forget(2)
    stage.look_for(SEEN_TWICE + 4)
    job = stage.slurm.jobs[3]
    assert (job.state, job.node, job.priority, job.identity.attempt) == (JobState.RUNNING, N1, TOP_PRIORITY, 2)
    assert job.gpu is not None
    assert (job.gpu.index, job.gpu.shards) == (1, 2)
    assert paid_by(stage) == 3
    assert "deletionTimestamp" not in stage.sets.pods["a"]["metadata"]


def test_nobody_lives_longer_on_a_gpu_that_is_not_paid_for_than_half_a_minute() -> None:
    """C-65: whatever grace a pod asks for, and whatever its user gave it by deleting it first."""
    for delete_first in (False, True):
        stage = living()
        stage.sets.pods["a"]["spec"]["terminationGracePeriodSeconds"] = 3600
        if delete_first:
            stage.sets.delete_pod("a", 3600)
            stage.look_for(2)
        stage.slurm.end(2, Ending.CANCELLED)
        stage.look_for(3)
        ends_by = from_rfc3339(stage.sets.pods["a"]["metadata"]["deletionTimestamp"])
        assert ends_by - stage.now <= LONGEST_GRACE
        assert stage.look() == 0, "told once"


def test_a_pod_that_wants_to_end_sooner_may() -> None:
    stage = living()
    stage.sets.pods["a"]["spec"]["terminationGracePeriodSeconds"] = 5
    stage.slurm.end(2, Ending.CANCELLED)
    stage.look_for(3)
    assert from_rfc3339(stage.sets.pods["a"]["metadata"]["deletionTimestamp"]) - stage.now <= 5


def test_it_fills_a_free_gpu_for_a_moment_if_slurm_would_pick_that() -> None:
    stage = living()
    stage.sets.finish_pod("whole")
    stage.sets.driver_lets_go("whole")
    stage.driver_claims["n1"].discard("claim-whole-0")
    stage.settle()
    stage.slurm.forget(2)
    stage.look_for(SEEN_TWICE + 4)
    kept = [j for j in stage.slurm.jobs.values() if j.state is JobState.RUNNING]
    assert [(j.gpu.index, j.gpu.shards) for j in kept if j.gpu is not None] == [(1, 2)]


def test_a_missing_job_proves_nothing_right_after_a_start_of_slurmctld() -> None:
    stage = living()
    lost = stage.slurm.jobs[2]
    stage.slurm.forget(2)
    stage.slurm.boot = stage.now
    for _ in range(8):
        assert stage.look() == 0
    stage.slurm.jobs[2] = lost
    stage.settle()
    assert len(stage.slurm.jobs) == 2
    assert paid_by(stage) == 2


def test_a_job_that_is_missing_for_a_moment_is_not_asked_for_again() -> None:
    stage = living()
    lost = stage.slurm.jobs[2]
    stage.slurm.forget(2)
    stage.look()
    assert stage.look() == 0, "it was missing for a second"
    stage.slurm.jobs[2] = lost
    stage.settle()
    assert len(stage.slurm.jobs) == 2
    assert paid_by(stage) == 2


def test_a_job_that_comes_back_after_it_was_asked_for_again_stays_and_the_other_goes() -> None:
    stage = living()
    lost = stage.slurm.jobs[2]
    stage.slurm.forget(2)
    for _ in range(5):
        stage.look()
    assert 3 in stage.slurm.jobs
    stage.slurm.jobs[2] = lost
    stage.settle()
    assert [stage.slurm.jobs[n].state for n in (2, 3)].count(JobState.RUNNING) == 1
    assert stage.slurm.jobs[paid_by(stage)].state is JobState.RUNNING


def test_while_its_node_takes_no_jobs_the_clock_stands_still() -> None:
    stage = living()
    stage.slurm.end(2, Ending.NODE_FAIL)
    stage.slurm.down.add(N1)
    for _ in range(5):
        stage.look()
        stage.now += PATIENCE_BARE
    assert stage.sets.told["a"][-1][0] == "HoldLost"
    assert "deletionTimestamp" not in stage.sets.pods["a"]["metadata"]
    stage.slurm.down.clear()
    stage.settle()
    assert stage.slurm.jobs[paid_by(stage)].state is JobState.RUNNING
    assert paid_by(stage) == 3


def test_a_gpu_that_cannot_be_held_again_ends_its_pod_in_the_end() -> None:
    stage = living()
    stage.slurm.end(2, Ending.NODE_FAIL)
    assert stage.slurm.start_native(N1, 1), "Slurm's books say that it is free; the prolog's loan keeps the job away"
    for _ in range(5):
        stage.look()
    assert "not 2 shards free" in stage.sets.told["a"][-1][1]
    stage.now += PATIENCE_BARE
    stage.look()
    assert stage.sets.pods["a"]["metadata"]["deletionTimestamp"]
    assert stage.sets.told["a"][-1][0] == "HoldLost"


def test_the_clock_stands_still_too_while_the_new_hold_waits_on_a_node_that_is_drained_meanwhile() -> None:
    stage = living()
    stage.slurm.paused = True
    stage.slurm.end(2, Ending.NODE_FAIL)
    stage.look_for(5)
    assert stage.slurm.jobs[3].state is JobState.PENDING
    stage.slurm.drained[N1] = "maintenance"
    stage.look_for(PATIENCE_BARE + 10)
    assert "does not take jobs" in stage.sets.told["a"][-1][1]
    del stage.slurm.drained[N1]
    stage.look_for(10)
    stage.slurm.paused = False
    stage.slurm.schedule()
    stage.settle()
    assert stage.sets.pods["a"]["status"]["phase"] == "Running"
    assert stage.sets.told["a"][-1][0] == names.PAID


def test_the_clock_stands_still_too_where_nothing_could_be_asked_for_before_the_node_is_drained() -> None:
    stage = living()
    stage.slurm.end(2, Ending.NODE_FAIL)
    assert stage.slurm.start_native(N1, 1)
    stage.look_for(5)
    stage.slurm.drained[N1] = "maintenance"
    stage.look_for(PATIENCE_BARE + 10)
    del stage.slurm.drained[N1]
    stage.slurm.end_native(N1, 1)
    stage.settle()
    assert stage.sets.pods["a"]["status"]["phase"] == "Running"
    assert stage.slurm.jobs[paid_by(stage)].state is JobState.RUNNING


def suspend(stage: Stage, *, clock_ahead: float = 0.0) -> None:
    """`clock_ahead`: seconds that slurmctld's clock is ahead of the bridge's."""
    job = stage.slurm.jobs[2]
    stage.slurm.jobs[2] = replace(job, suspended_since=stage.now + clock_ahead, gpu=None)


def resume(stage: Stage, *, gpu: HeldGpu | None) -> None:
    job = stage.slurm.jobs[2]
    assert job.suspended_since is not None
    before = job.suspended_before + stage.now - job.suspended_since
    stage.slurm.jobs[2] = replace(job, suspended_since=None, suspended_before=before, gpu=gpu)


def ended_for_suspension(stage: Stage) -> bool:
    ended = "a" not in stage.sets.pods or "deletionTimestamp" in stage.sets.pods["a"]["metadata"]
    assert not ended or stage.sets.told["a"][-1][0] == names.HOLD_SUSPENDED
    return ended


def test_a_pod_whose_job_is_suspended_is_told_and_ended_after_a_minute() -> None:
    stage = living()
    assert paid_by(stage) == 2
    suspend(stage)
    stage.look_for(PATIENCE_SUSPENDED - 2)
    assert stage.sets.told["a"][-1][0] == names.HOLD_SUSPENDED
    assert not ended_for_suspension(stage)
    stage.look_for(5)
    assert ended_for_suspension(stage)


def test_suspensions_in_turns_add_up() -> None:
    stage = living()
    gpu = stage.slurm.jobs[2].gpu
    for _ in range(2):
        suspend(stage)
        stage.look_for(PATIENCE_SUSPENDED / 3)
        resume(stage, gpu=gpu)
        stage.look_for(3 * PATIENCE_SUSPENDED)
        assert stage.sets.told["a"][-1][0] == names.PAID
    suspend(stage)
    stage.look_for(PATIENCE_SUSPENDED / 3 - 2)
    assert not ended_for_suspension(stage)
    stage.look_for(5)
    assert ended_for_suspension(stage)


def test_suspensions_that_no_look_saw_count_too() -> None:
    stage = living()
    stage.slurm.jobs[2] = replace(stage.slurm.jobs[2], suspended_before=PATIENCE_SUSPENDED)
    stage.look_for(5)
    assert not ended_for_suspension(stage)
    stage.slurm.jobs[2] = replace(stage.slurm.jobs[2], suspended_before=PATIENCE_SUSPENDED + 1)
    stage.look_for(2)
    assert ended_for_suspension(stage)


def test_a_pod_that_is_ended_when_its_job_runs_again_is_not_told_that_it_is_paid_for() -> None:
    stage = living()
    gpu = stage.slurm.jobs[2].gpu
    suspend(stage)
    stage.look_for(5)
    stage.now += PATIENCE_SUSPENDED  # nobody looks meanwhile
    resume(stage, gpu=gpu)
    stage.look()
    assert ended_for_suspension(stage)


@pytest.mark.parametrize("ahead", [-1000.0, 5.0])
def test_a_clock_of_slurmctlds_that_is_wrong_ends_no_pod_too_early(ahead: float) -> None:
    stage = living()
    suspend(stage, clock_ahead=ahead)
    stage.look_for(PATIENCE_SUSPENDED - 2)
    assert not ended_for_suspension(stage)
    stage.look_for(10)
    assert ended_for_suspension(stage)


@pytest.mark.parametrize("has", [HeldGpu(0, 2), HeldGpu(1, 1)], ids=["another-gpu", "fewer-shards"])
def test_a_job_that_has_not_what_the_claims_have_does_not_pay_for_them(has: HeldGpu) -> None:
    stage = living()
    assert stage.slurm.jobs[2].gpu == HeldGpu(1, 2)
    stage.slurm.jobs[2] = replace(stage.slurm.jobs[2], gpu=has)
    stage.look()
    assert stage.slurm.jobs[2].state is JobState.ENDED
