"""A hold is its user's own job: what she may change of it in Slurm, and what follows if an operator changes it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dynamig.errors import Unavailable
from dynamig.protocol import names
from lab.lab import Lab
from tests.e2e.cluster import NAMESPACE, Cluster, mig, until
from tests.slurm.test_main_job import hold_of, native, native_state, state
from tests.slurm.test_rights import another_bridge, told

pytestmark = pytest.mark.timeout(420)

OWNER = {NAMESPACE: {"user": "alice", "partitions": ["all"], "minutes": 60, "maxMinutes": 60}}

FORBIDDEN = (
    *(
        "Gres=shard:1",
        "Gres=gpu:1",
        "Gres=",
        "TresPerNode=gres/shard:1",
        "TresPerJob=gres/gpu:1",
        "TresBind=gres/gpu:none",
    ),
    *("NumNodes=2", "NumCPUs=1", "NumTasks=2", "CPUsPerTask=1", "MinCPUsNode=1", "MinMemoryNode=1", "MinMemoryCPU=1"),
    *("ReqNodeList=n2", "ReqNodeList=", "ExcNodeList=n1", "Features=fast", "OverSubscribe=yes", "Contiguous=yes"),
    *("Partition=low", "Account=other", "QOS=high", "ReservationName=mine", "Licenses=one", "WCKey=mine", "Requeue=1"),
    *(
        "TimeLimit=61",
        "TimeLimit=UNLIMITED",
        "TimeMin=1",
        "StartTime=now+1hour",
        "Dependency=singleton",
        "Nice=7 NumNodes=2",
    ),
    *("Comment=mine", "Name=mine", "Extra=mine"),
)
"""What a user might ask of `scontrol update`. AdminComment and Deadline Slurm itself refuses her."""


SCHEDULERS = frozenset(
    {"accrue_time", "eligible_time", "end_time", "flags", "last_sched_evaluation", "pre_sus_time", "priority"}
    | {"scheduled_nodes", "start_time", "state_reason"}
)


def job(lab: Lab, job_id: int) -> dict[str, Any]:
    found: dict[str, Any] = lab.slurm_json("scontrol", "show", "job", str(job_id))["jobs"][0]
    return found


def asks(lab: Lab, job_id: int) -> dict[str, Any]:
    """All of a job but what Slurm's scheduler writes there."""
    return {key: value for key, value in job(lab, job_id).items() if key not in SCHEDULERS}


@contextmanager
def waiting_holds(lab: Lab, cluster: Cluster, *pods: str) -> Iterator[list[int]]:
    """The ids of the pods' holds, which wait for native jobs in the block; at its end those are gone."""
    taken = [native(lab, node) for node in lab.nodes]
    for native_job in taken:
        until(lambda j=native_job: _equal(native_state(lab, j), "RUNNING"))  # type: ignore[misc]
    for pod in pods:
        cluster.pod(pod, mig(profile="2g.20gb"), resources={"requests": {"cpu": "100m", "memory": "50Mi"}})
    holds = [until(lambda p=pod: hold_of(lab, cluster, p)) for pod in pods]  # type: ignore[misc]
    assert {state(hold) for hold in holds} == {"PENDING"}
    try:
        yield [int(hold["job_id"]) for hold in holds]
    finally:
        lab.slurm("scancel", *map(str, taken))


@pytest.fixture
def bridge(lab: Lab, cluster: Cluster, tmp_path: Path) -> Iterator[None]:
    """Alice owns the holds of the pods. It is gone before `cluster` ends, which starts what is not there."""
    with another_bridge(lab, tmp_path, accounts=OWNER):
        yield


@pytest.mark.usefixtures("bridge")
def test_what_the_user_of_a_hold_may_change(lab: Lab, cluster: Cluster) -> None:
    with waiting_holds(lab, cluster, "hers") as (hold,):
        before = asks(lab, hold)
        for change in FORBIDDEN:
            with pytest.raises(Unavailable, match="stays as it is: this job pays for a Kubernetes pod"):
                update(lab, hold, change)
        for change in ("AdminComment={}", "Deadline=now+1hour"):
            with pytest.raises(Unavailable, match="denied"):
                update(lab, hold, change)
        assert asks(lab, hold) == before
        for change in ("Nice=7", "TimeLimit=40", "TimeLimit=30 Nice=8"):
            update(lab, hold, change)
        lab.slurm("scontrol", "hold", str(hold), user="alice")
        assert f"Slurm job {hold}" in told(cluster, "hers", names.HOLD_HELD)["message"]
    time.sleep(3)  # nothing else keeps it from starting
    assert [state(hold_of(lab, cluster, "hers"))] == ["PENDING"]
    lab.slurm("scontrol", "release", str(hold), user="alice")
    cluster.running("hers")
    paying = hold_of(lab, cluster, "hers")
    assert (paying["job_id"], paying["time_limit"]["number"]) == (hold, 30)
    for change in ("Requeue=1", "EndTime=now+2hours", "NumNodes=2"):
        with pytest.raises(Unavailable, match="stays as it is"):
            update(lab, hold, change)
    lab.slurm("scancel", str(hold), user="alice")
    until(lambda: _equal(lab.kubectl("-n", NAMESPACE, "get", "pod", "hers", "--ignore-not-found"), ""))
    cluster.empty()


def update(lab: Lab, job_id: int, change: str, user: str = "alice") -> None:
    lab.slurm("scontrol", "update", f"jobid={job_id}", *change.split(), user=user)


def test_an_ordinary_job_does_not_become_one_with_shards(lab: Lab, cluster: Cluster) -> None:
    ordinary = lab.submit("#!/bin/sh\ntrue\n", "--hold", "--gres=gpu:1", user="alice")
    for change in ("Gres=shard:1", "TresPerNode=gres/shard:1", "TresPerJob=gres/shard:1", "TresPerTask=gres/shard:1"):
        with pytest.raises(Unavailable, match="shards of GPUs are for Kubernetes pods"):
            update(lab, ordinary, change)
    with pytest.raises(Unavailable, match="denied"):
        update(lab, ordinary, 'AdminComment={"owner":"dynamig"}')
    update(lab, ordinary, "Gres=gpu:2 Comment=mine")
    assert job(lab, ordinary)["tres_per_node"] == "gres/gpu:2"


CHANGES = {
    "fewer": "Gres=shard:1",
    "whole": "Gres=gpu:1",
    "none": "Gres=",
    "nodes": "NumNodes=2",
    "memory": "MinMemoryNode=1",
}


@pytest.mark.usefixtures("bridge")
def test_a_hold_that_an_operator_changes_is_not_committed_to(lab: Lab, cluster: Cluster) -> None:
    """root may; each pod is told, and then paid for by another job."""
    with waiting_holds(lab, cluster, *CHANGES) as holds:
        changed = dict(zip(CHANGES, holds, strict=True))
        for pod, hold in changed.items():
            update(lab, hold, CHANGES[pod], user="root")
        for pod, hold in changed.items():
            assert f"Slurm job {hold}" in told(cluster, pod, names.HOLD_CHANGED)["message"]
    cluster.running(*CHANGES)
    for pod, hold in changed.items():
        paying = hold_of(lab, cluster, pod)
        assert paying["job_id"] != hold
        asked = (paying["tres_per_node"], paying["node_count"]["number"], paying["memory_per_node"]["number"])
        assert asked == ("gres/shard:2", 1, 50)
        assert state(job(lab, hold)) == "CANCELLED"


def _equal(seen: object, wanted: object) -> None:
    assert seen == wanted
