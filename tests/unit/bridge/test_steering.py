"""Slurm picks the lowest GPU with enough shards; where that has no place for the set, the bridge steers or waits."""

from __future__ import annotations

from dynamig.protocol.identity import Role
from dynamig.protocol.slurm_jobs import TOP_PRIORITY, JobState, SlurmNodeName
from tests.unit.bridge.stage import Stage, wants

N1 = SlurmNodeName("n1")


def fragmented() -> Stage:
    """Only n1, where GPU 0 has two shards free, slices 1 and 3: no 2g begins there. GPU 1 is empty."""
    stage = Stage(not_ready={"n2"})
    for n in range(7):
        stage.sets.create_pod(f"small{n}", wants("1g.10gb"))
        stage.settle()
    for n in range(7):
        ((_, device),) = stage.devices(f"small{n}")
        if device in ("gpu-0-mig-1g10gb-19-1", "gpu-0-mig-1g10gb-19-3"):
            stage.finish(f"small{n}")
    stage.settle()
    node = next(n for n in stage.slurm.nodes() if n.name == N1)
    assert [g.free for g in node.gpus] == [2, 7]
    return stage


def running(stage: Stage, role: Role) -> list[int]:
    return [j.key.job_id for j in stage.slurm.jobs.values() if j.identity.role is role and j.state is JobState.RUNNING]


def test_ballast_fills_the_gpu_that_slurm_would_pick_and_ends_when_the_hold_runs() -> None:
    stage = fragmented()
    before = set(stage.slurm.jobs)
    stage.sets.create_pod("wide", wants("2g.20gb"))
    stage.settle()
    ballast, hold = (job for number, job in stage.slurm.jobs.items() if number not in before)
    assert (ballast.identity.role, ballast.purpose.shards, ballast.priority) == (Role.BALLAST, 2, TOP_PRIORITY)
    assert (ballast.state, hold.state) == (JobState.ENDED, JobState.RUNNING)
    assert stage.devices("wide")[0][0] == "n1/gpu-1"
    assert stage.slurm.requests[ballast.key.job_id].minutes == 1, "it ends by itself if the bridge dies"


def test_a_set_that_shards_would_start_and_no_place_could_serve_waits_without_a_job() -> None:
    """A job for shards without a place would start at once, again and again."""
    stage = fragmented()
    stage.slurm.start_native(N1, 1)
    jobs = len(stage.slurm.jobs)
    stage.sets.create_pod("wide", wants("2g.20gb"))
    for _ in range(10):
        stage.look()
    assert len(stage.slurm.jobs) == jobs
    assert stage.sets.told["wide"][-1][0] == "NoLegalPlacement"
    stage.slurm.end_native(N1, 1)
    stage.settle()
    assert stage.devices("wide")[0][0] == "n1/gpu-1"


def test_a_free_gpu_that_has_a_place_is_never_filled() -> None:
    """It belongs to native jobs as well: the set takes the place there, though it costs more."""
    stage = Stage(not_ready={"n2"})
    stage.sets.create_pod("a", wants("7g.80gb"))
    stage.settle()
    assert [j.identity.role for j in stage.slurm.jobs.values()] == [Role.HOLD]


def test_a_hold_that_waited_and_starts_where_it_has_no_place_keeps_its_place_in_the_queue() -> None:
    stage = Stage()
    stage.take_all_gpus()
    stage.sets.create_pod("wide", wants("3g.40gb"))
    stage.settle()
    first = stage.slurm.jobs[1]
    assert first.state is JobState.PENDING
    stage.slurm.start_native(N1, 0)
    stage.foreign_on("n1", 0)
    stage.slurm.end_native(N1, 0)
    assert stage.slurm.jobs[1].state is JobState.RUNNING
    stage.look()
    assert stage.job_states() == ["ended"]
    stage.slurm.end_native(SlurmNodeName("n2"), 1)
    stage.settle()
    assert stage.devices("wide")[0][0] == "n2/gpu-1"
    kept = [j for j in stage.slurm.jobs.values() if j.state is JobState.RUNNING]
    assert first.priority is not None
    assert [j.priority for j in kept] == [first.priority + 1]


def test_a_hold_that_waits_is_moved_to_where_it_can_start() -> None:
    """It waits for n2; meanwhile a place becomes free on n1, where Slurm was not asked for it."""
    stage = fragmented()
    stage.not_ready.clear()
    for node, index in (("n1", 1), ("n2", 0), ("n2", 1)):
        stage.slurm.start_native(SlurmNodeName(node), index)
    stage.sets.create_pod("wide", wants("2g.20gb"))
    stage.settle()
    waiting = max(stage.slurm.jobs.values(), key=lambda j: j.key.job_id)
    assert (waiting.state, waiting.purpose.nodes) == (JobState.PENDING, ("n2",))
    beside = next(n for n in range(7) if stage.devices(f"small{n}") == [("n1/gpu-0", "gpu-0-mig-1g10gb-19-2")])
    stage.finish(f"small{beside}")
    stage.settle()
    assert stage.devices("wide") == [("n1/gpu-0", "gpu-0-mig-2g20gb-14-2")]


def test_two_sets_do_not_take_each_others_shards_for_gone() -> None:
    """Shards without a place become free: each of two that waited starts there once, and neither again and again."""
    stage = Stage(not_ready={"n2"})
    stage.slurm.start_native(N1, 1)
    for n in range(7):
        stage.sets.create_pod(f"small{n}", wants("1g.10gb"))
        stage.settle()
    for n in range(2):
        stage.sets.create_pod(f"wide{n}", wants("2g.20gb"))
        stage.settle()
    assert [j.state for j in stage.slurm.jobs.values()].count(JobState.PENDING) == 2
    for n in range(7):
        if stage.devices(f"small{n}")[0][1] in ("gpu-0-mig-1g10gb-19-1", "gpu-0-mig-1g10gb-19-3"):
            stage.finish(f"small{n}")
    for _ in range(20):
        stage.look()
    assert len(stage.slurm.jobs) == 9, "the two holds that waited, and no other"
    assert {stage.sets.told[f"wide{n}"][-1][0] for n in range(2)} == {"NoLegalPlacement"}
    stage.slurm.end_native(N1, 1)
    stage.settle()
    assert all(stage.devices(f"wide{n}")[0][0] == "n1/gpu-1" for n in range(2))


def test_ballast_whose_hold_never_came_is_removed() -> None:
    stage = Stage()
    stage.leave_ballast("n1", 0, shards=2)
    assert running(stage, Role.BALLAST)
    for _ in range(15):
        stage.look()
    assert running(stage, Role.BALLAST) == []
