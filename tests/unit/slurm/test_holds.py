"""Which jobs are ours, what is read again, and what is forgotten."""

from __future__ import annotations

import pytest

from dynamig.errors import Unavailable
from dynamig.protocol.identity import JobIdentity, JobKey
from dynamig.protocol.seen import Found, Gone, Unknown
from dynamig.protocol.slurm_jobs import HeldGpu, JobState
from dynamig.slurm import ExternalJobs, HeldGres
from tests.unit.slurm.world import World

OURS = JobIdentity("set", 1)


@pytest.fixture
def world() -> World:
    made = World()
    made.add(1, "RUNNING")
    made.add(2, "RUNNING", OURS)
    made.held[2] = HeldGres("shard", "", 3, 1)
    made.add(3, "PENDING", JobIdentity("other", 1), reason="Resources", node=None)
    return made


@pytest.fixture
def jobs(world: World) -> ExternalJobs:
    return ExternalJobs(world)


def test_ours_are_those_with_our_identity(jobs: ExternalJobs) -> None:
    found = {job.key.job_id: job for job in jobs.ours()}
    assert found.keys() == {2, 3}
    assert (found[2].identity, found[2].gpu, found[2].node) == (OURS, HeldGpu(1, 3), "n1")
    assert (found[3].state, found[3].reason, found[3].gpu) == (JobState.PENDING, "Resources", None)


def test_only_what_may_have_changed_is_read_again(world: World, jobs: ExternalJobs) -> None:
    jobs.ours()
    world.reads.clear()
    jobs.ours()
    assert world.reads == {"controller": 1, "states": 1, "job": 1}, "one pending job of ours, whose reason may change"
    world.add(2, "CANCELLED", OURS)
    world.reads.clear()
    assert next(job for job in jobs.ours() if job.key.job_id == 2).state is JobState.ENDED
    assert world.reads["job"] == 2


def test_a_suspended_job_is_read_again_for_it_may_have_been_resumed_in_between(
    world: World, jobs: ExternalJobs
) -> None:
    for turned, ran in ((10, 10), (25, 15)):
        world.add(2, "SUSPENDED", OURS, turned=turned, ran=ran)
        found = next(job for job in jobs.ours() if job.key.job_id == 2)
        assert (found.suspended_since, found.suspended_before) == (turned, turned - ran)


def test_cost_does_not_grow_with_foreign_jobs(world: World, jobs: ExternalJobs) -> None:
    for job_id in range(100, 2100):
        world.add(job_id, "RUNNING")
    assert len(jobs.ours()) == 2
    assert world.reads["job"] == 2003, "each once"
    world.reads.clear()
    jobs.ours()
    assert world.reads["job"] == 1, "the pending one of ours"


def test_what_was_read_is_kept_when_slurm_falls_silent_in_the_middle(world: World, jobs: ExternalJobs) -> None:
    for job_id in range(100, 200):
        world.add(job_id, "RUNNING")
    world.silent_after = 60
    with pytest.raises(Unavailable):
        jobs.ours()
    world.silent_after = None
    world.reads.clear()
    assert len(jobs.ours()) == 2
    assert 40 <= world.reads["job"] <= 50


def test_jobs_that_slurm_forgot_are_forgotten(world: World, jobs: ExternalJobs) -> None:
    jobs.ours()
    del world.jobs[2]
    assert [job.key.job_id for job in jobs.ours()] == [3]


def test_after_a_restart_of_the_controller_nothing_is_remembered(world: World, jobs: ExternalJobs) -> None:
    """The same ids, in the same states, are other jobs: lost ones' ids are given out again."""
    jobs.ours()
    world.boot += 1
    world.add(1, "RUNNING", OURS, sluid="sNEW")
    world.held[1] = HeldGres("shard", "", 3, 0)
    world.add(2, "RUNNING")
    found = jobs.ours()
    assert {job.key for job in found} == {JobKey(1, "sNEW"), JobKey(3, "s3")}


def test_a_cancelled_job_that_came_back_is_seen(world: World, jobs: ExternalJobs) -> None:
    world.add(2, "CANCELLED", OURS)
    jobs.ours()
    world.boot += 1
    world.add(2, "RUNNING", OURS)
    assert next(job for job in jobs.ours() if job.key.job_id == 2).state is JobState.RUNNING


def test_silence_is_not_an_empty_list(world: World, jobs: ExternalJobs) -> None:
    jobs.ours()
    world.silent = True
    with pytest.raises(Unavailable):
        jobs.ours()
    assert isinstance(jobs.look(JobKey(2, "s2")), Unknown)


def test_a_running_job_that_holds_nothing_has_no_gpu(world: World, jobs: ExternalJobs) -> None:
    """Suspended, or it ended between two questions: no reason to be blind for all the others."""
    del world.held[2]
    assert next(job for job in jobs.ours() if job.key.job_id == 2).gpu is None


@pytest.mark.parametrize(
    ("held", "gpu"),
    [(HeldGres("gpu", "h100", 1, 0), None), (HeldGres("shard", "", 3, None), HeldGpu(None, 3))],
)
def test_only_shards_are_held_and_counted_ones_have_no_gpu(
    world: World, jobs: ExternalJobs, held: HeldGres, gpu: HeldGpu | None
) -> None:
    world.held[2] = held
    found = jobs.look(JobKey(2, "s2"))
    assert isinstance(found, Found)
    assert found.value.gpu == gpu


@pytest.mark.parametrize(
    ("shards", "gpu"),
    [
        ((8, 8), HeldGpu(0, 3)),  # exclusive: all of the node
        ((1, 8), HeldGpu(1, 3)),
        ((8,), HeldGpu(0, 3)),
        ((2,), HeldGpu(0, 2)),  # somebody took one away: seen, and not taken for enough
    ],
)
def test_a_hold_uses_no_more_than_it_asked_for(
    world: World, jobs: ExternalJobs, shards: tuple[int, ...], gpu: HeldGpu
) -> None:
    world.held[2] = tuple(HeldGres("shard", "", count, index) for index, count in reversed(list(enumerate(shards))))
    found = jobs.look(JobKey(2, "s2"))
    assert isinstance(found, Found)
    assert found.value.gpu == gpu


def test_look_is_about_this_very_job(world: World, jobs: ExternalJobs) -> None:
    assert isinstance(jobs.look(JobKey(2, "s2")), Found)
    assert isinstance(jobs.look(JobKey(2, "sOTHER")), Gone)
    assert isinstance(jobs.look(JobKey(9, "s9")), Gone)
    assert isinstance(jobs.look(JobKey(1, "s1")), Gone), "its admin_comment is not ours"
