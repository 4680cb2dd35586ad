"""What squeue and nvml-list print, as values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynamig.protocol.identity import JobIdentity, Purpose, Role
from examples.demo.seen import JobSeen, NodeSeen, gpus_seen, mine, snapshot
from tests.unit.examples.world import books, squeue_job


def job(**changes: object) -> JobSeen:
    (found,) = snapshot([], [], [], [squeue_job(5, "train", "alice", "make demo: x") | changes]).jobs
    return found


def test_whole_gpus_are_told_by_index() -> None:
    found = job(job_state=["RUNNING", "CONFIGURING"], nodes="n1", gres_detail=["gpu:h100:2(IDX:0-1)"])
    assert (found.running, found.gpus, dict(found.shards), found.places) == (True, (0, 1), {}, (("n1", 0), ("n1", 1)))


def test_shards_are_told_by_gpu() -> None:
    found = job(job_state=["RUNNING"], nodes="n2", gres_detail=["shard:3(0/7,3/7)"])
    assert (found.gpus, dict(found.shards), found.places) == ((), {1: 3}, (("n2", 1),))


def test_a_pending_job_has_nothing_and_a_reason_once_slurm_has_looked() -> None:
    assert (job().held_back, job().places, job().node) == (True, (), None)
    assert not job(state_reason="None").held_back


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"comment": "mine"}, False),
        ({"user_name": "bob"}, False),
        ({"admin_comment": "not ours"}, True),
    ],
)
def test_native_jobs_of_the_demo_are_known_by_user_and_comment(changes: dict[str, str], expected: bool) -> None:
    assert mine(job(**changes)) is expected


def test_holds_of_the_demo_are_known_by_the_pods_namespace() -> None:
    (hold,) = books(("notebook",)).jobs
    assert hold.pays_for("uid-pod-notebook")
    assert mine(hold)
    other = Purpose(JobIdentity("uid-pod-notebook", 1), pod="team/notebook")
    assert not mine(replace(hold, purpose=other))


def test_ballast_pays_for_nobody_and_is_the_demos_all_the_same() -> None:
    (hold,) = books(("notebook",)).jobs
    ballast = Purpose(JobIdentity("uid-pod-notebook", 1, Role.BALLAST), pod="dynamig-demo/notebook")
    filling = replace(hold, purpose=ballast)
    assert mine(filling)
    assert not filling.pays_for("uid-pod-notebook")


def test_slurm_counts_gpus_by_their_minors() -> None:
    listed = {
        "gpus": [{"uuid": "GPU-b", "mig_current": 0, "minor": 1}, {"uuid": "GPU-a", "mig_current": 1, "minor": 0}]
    }
    node = NodeSeen(gpus_seen(listed), frozenset(), frozenset(), {})
    assert (node.gpu_at(0), node.gpu_at(1)) == ("GPU-a", "GPU-b")
