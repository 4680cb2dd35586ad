"""Recorded bodies to values, values to bodies."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pytest

from dynamig.errors import Conflict, Refused, Unavailable
from dynamig.protocol.identity import JobIdentity, JobKey, Purpose, Role
from dynamig.protocol.slurm_jobs import Ending, HeldGpu, HoldRequest, JobState
from dynamig.slurm import v0_0_45 as wire
from dynamig.slurm.holds import slurm_node
from dynamig.slurm.values import HeldGres, JobChanges, SlurmJob, job_of_ours
from tests.unit.slurm.replay import recorded

A = TypeVar("A", bound=wire.Answer)
IDENTITY = JobIdentity("3f1c", 1)


def read(kind: type[A], name: str) -> A:
    return wire.read(kind, name, *recorded(name))


def job(name: str) -> SlurmJob:
    entries = read(wire.JobsAnswer, name).jobs
    assert entries is not None
    return wire.job(entries[0])


def test_a_running_hold() -> None:
    seen = job("job-running")
    assert (seen.node, seen.user, seen.partition, seen.minutes) == ("n1", "alice", "kubernetes", 5)
    assert seen.submitted == 1_795_974_241
    assert seen.key.since.startswith("sA")
    ours = job_of_ours(seen, HeldGpu(0, 2))
    assert ours is not None
    assert (ours.identity, ours.purpose.claims, ours.state, ours.ending) == (
        IDENTITY,
        frozenset({"c1"}),
        JobState.RUNNING,
        None,
    )


def test_a_pending_hold_says_why_and_has_no_node() -> None:
    ours = job_of_ours(job("job-pending"), None)
    assert ours is not None
    assert (ours.state, ours.node, ours.ran) == (JobState.PENDING, None, False)
    assert ours.reason in ("Resources", "Priority")


def test_a_cancelled_hold_was_meant_to_end() -> None:
    seen = job("job-cancelled")
    assert (seen.state, seen.ending, seen.node) == (JobState.ENDED, Ending.CANCELLED, "n1")
    assert seen.key == job("job-running").key


def test_a_native_job_is_not_ours() -> None:
    assert job_of_ours(job("job-native"), None) is None


@pytest.mark.parametrize(
    ("states", "state", "ending"),
    [
        ({"PENDING"}, JobState.PENDING, None),
        ({"RUNNING", "CONFIGURING"}, JobState.RUNNING, None),
        ({"SUSPENDED"}, JobState.RUNNING, None),
        ({"NODE_FAIL"}, JobState.ENDED, Ending.NODE_FAIL),
        ({"TIMEOUT", "COMPLETING"}, JobState.ENDED, Ending.EXPIRED),
        ({"CANCELLED"}, JobState.ENDED, Ending.CANCELLED),
        ({"PREEMPTED"}, JobState.ENDED, Ending.PREEMPTED),
        ({"COMPLETED"}, JobState.ENDED, Ending.OTHER),
        ({"PENDING", "REQUEUED"}, JobState.PENDING, None),
    ],
)
def test_states(states: set[str], state: JobState, ending: Ending | None) -> None:
    seen = SlurmJob(JobKey(1, "s"), frozenset(states), "", "", "", "", "", None, None, None, 0)
    assert (seen.state, seen.ending) == (state, ending)


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        ({}, ""),
        ({"gres": "gres/gpu:1,gres/shard:h100:2"}, ""),
        ({"gres": "gres/shard:7", "cpus": 8, "memory": 9000}, ""),
        ({"memory": None}, ""),
        ({"gres": "gres/shard:1"}, "1 shards instead of 2"),
        ({"gres": "gres/gpu:2"}, "0 shards instead of 2"),
        ({"gres": "gres/"}, "0 shards instead of 2"),
        ({"nodes": 2}, "2 nodes instead of one"),
        ({"cpus": 1, "memory": 1}, "1 processors instead of 2 and 1 MiB instead of 50"),
    ],
)
def test_a_job_that_somebody_changed_says_what_it_lacks(asks: dict[str, object], words: str) -> None:
    purpose = Purpose(IDENTITY, shards=2, cpus=2, memory=50)
    known: dict[str, object] = {"gres": "gres/shard:2", "nodes": 1, "cpus": 2, "memory": 50}
    seen = replace(job("job-pending"), admin_comment=purpose.to_admin_comment(), **{**known, **asks})  # type: ignore[arg-type]
    found = job_of_ours(seen, None)
    assert found is not None
    assert found.changed == words


def test_what_a_job_asks_for_is_read() -> None:
    seen = job("job-pending")
    assert (seen.gres, seen.nodes, seen.cpus, seen.memory) == ("gres/shard:7", 1, 1, 1)


@pytest.mark.parametrize(
    ("state", "turned", "ran", "since", "before"),
    [  # as one job of 1,000 s of the epoch was seen, suspended at 10, 19 and 29 s for 5, 6 and 7 s
        ("RUNNING", 0, 0, None, 0),
        ("SUSPENDED", 1010, 10, 1010, 0),
        ("RUNNING", 1015, 10, None, 5),
        ("SUSPENDED", 1019, 14, 1019, 5),
        ("RUNNING", 1025, 14, None, 11),
        ("SUSPENDED", 1029, 18, 1029, 11),
        ("RUNNING", 1036, 18, None, 18),
    ],
)
def test_suspensions_add_up(state: str, turned: int, ran: int, since: float | None, before: float) -> None:
    start, suspend, ran_for = (wire.Number(True, False, n) for n in (1000, turned, ran))
    entry = wire.JobEntry(
        7, [state], wire.StepId("s"), wire.Number(), start_time=start, suspend_time=suspend, pre_sus_time=ran_for
    )
    seen = wire.job(entry)
    assert (seen.suspended_since, seen.suspended_before) == (since, before)


def test_a_job_from_before_sluids_is_known_by_its_submit_time() -> None:
    entry = wire.JobEntry(7, ["RUNNING"], wire.StepId(), wire.Number(True, False, 1_795_974_241))
    assert wire.job(entry).key == JobKey(7, "1795974241")


def test_resources_say_host_and_gpu() -> None:
    assert wire.resources(read(wire.ResourcesAnswer, "resources")) == {"n1": (HeldGres("shard", "", 2, 0),)}


def test_gres_that_is_only_counted_has_no_gpu() -> None:
    answer = wire.ResourcesAnswer(nodes=[wire.NodeResources("x", [wire.GresEntry("mig", 2, "1g.10gb", None)])])
    assert wire.resources(answer) == {"x": (HeldGres("mig", "1g.10gb", 2, None),)}


def test_states_of_all_jobs_without_tasks_of_arrays() -> None:
    states = wire.states(read(wire.StatesAnswer, "states"))
    assert job("job-running").key.job_id in states
    answer = wire.StatesAnswer(jobs=[wire.StateEntry("5_[1-9]", ["PENDING"]), wire.StateEntry("6", ["RUNNING"])])
    assert wire.states(answer) == {6: frozenset({"RUNNING"})}


def test_nodes() -> None:
    first, second = [slurm_node(wire.node(n)) for n in read(wire.NodesAnswer, "nodes").nodes or ()]
    assert (first.name, first.usable, second.usable) == ("n1", True, True)
    assert [(gpu.free, gpu.taken) for gpu in first.gpus] == [(6, False), (0, True)]
    assert [gpu.free for gpu in second.gpus] == [8, 8]


@pytest.mark.parametrize(
    ("states", "usable"),
    [
        ({"IDLE"}, True),
        ({"MIXED", "COMPLETING"}, True),
        ({"IDLE", "EXTERNAL", "DYNAMIC_NORM"}, True),
        ({"IDLE", "DRAIN"}, False),
        ({"DOWN"}, False),
        ({"MIXED", "NOT_RESPONDING"}, False),
        ({"IDLE", "A_FLAG_OF_TOMORROW"}, False),
        (set[str](), False),
    ],
)
def test_usable_nodes(states: set[str], usable: bool) -> None:
    entry = wire.NodeEntry("n", sorted(states), gres="gpu:1", gres_used="gpu:0(IDX:N/A)")
    assert slurm_node(wire.node(entry)).usable is usable


def test_gres_that_we_cannot_read_is_said_and_not_guessed() -> None:
    with pytest.raises(Unavailable, match="GRES of node n"):
        slurm_node(wire.node(wire.NodeEntry("n", ["IDLE"], gres="what?")))


def test_the_controller() -> None:
    controller = wire.controller(read(wire.ConfAnswer, "conf"), "slurmctld")
    assert controller.version == "26.05.5"
    assert controller.boot > 1_700_000_000


@pytest.mark.parametrize(
    ("name", "error", "code"),
    [
        ("cancel-again", Conflict, "JOB_ENDED"),
        ("cancel-unknown", Refused, "NOT_FOUND"),
        ("dead-cancel", Unavailable, "SLURM_UNAVAILABLE"),
        ("dead-job", Unavailable, "SLURM_UNAVAILABLE"),
        ("dead-submit", Unavailable, "SLURM_UNAVAILABLE"),
        ("dead-update", Unavailable, "SLURM_UNAVAILABLE"),
        ("dead-states", Unavailable, "SLURM_UNAVAILABLE"),
        ("job-unknown", Refused, "NOT_FOUND"),
        ("update-ended", Conflict, "JOB_ENDED"),
        ("submit-impossible", Refused, "SLURM_2014"),
        ("rights-none", Refused, "SLURM_FORBIDDEN"),
        ("bad-token", Refused, "SLURM_AUTH"),
        ("no-token", Refused, "SLURM_AUTH"),
        ("unknown-version", Unavailable, "SLURM_BAD_ANSWER"),
    ],
)
def test_an_error_is_read_wherever_it_stands(name: str, error: type[Exception], code: str) -> None:
    with pytest.raises(error, match=rf"\[{code}\]"):
        read(wire.StatusAnswer, name)


def test_a_cancel_that_worked_says_nothing() -> None:
    assert read(wire.StatusAnswer, "cancel").status == []


PURPOSE = Purpose(IDENTITY, "ns/p", frozenset({"c1"}), ("n1", "n2"), 3, cpus=2, memory=512)


def request(purpose: Purpose = PURPOSE, **other: object) -> HoldRequest:
    fields: dict[str, object] = {
        "purpose": purpose,
        "comment": "for people",
        "minutes": 60,
        "account": "",
        "user": "alice",
        "partition": "kubernetes",
    }
    return HoldRequest(**{**fields, **other})  # type: ignore[arg-type]


def test_a_hold_asks_for_one_of_its_nodes_and_for_shards_of_one_gpu() -> None:
    body = wire.submit_body(request(priority=9, nice=5), 60)["job"]
    assert body["nice"] == 5
    assert (body["required_nodes"], body["minimum_nodes"], body["maximum_nodes"]) == (["n1", "n2"], 1, 1)
    assert (body["flags"], body["tres_per_node"], body["requeue"]) == (["EXTERNAL_JOB"], "gres/shard:3", False)
    assert body["time_limit"] == {"set": True, "infinite": False, "number": 60}
    assert (body["memory_per_node"]["number"], body["cpus_per_task"], body["priority"]["number"]) == (512, 2, 9)
    assert not {"account", "qos", "script"} & body.keys()


def test_no_limit_is_said_and_no_shards_are_left_out() -> None:
    ballast = request(Purpose(JobIdentity("p", 2, Role.BALLAST)), account="physics", qos="high")
    job_body = wire.submit_body(ballast, None)["job"]
    assert job_body["time_limit"] == {"set": True, "infinite": True}
    assert not {"tres_per_node", "priority", "nice"} & job_body.keys()
    assert (job_body["account"], job_body["qos"], job_body["name"]) == ("physics", "high", "dynamig-ballast")


def test_an_update_names_only_what_changes() -> None:
    assert wire.update_body(JobChanges()) == {}
    assert wire.update_body(JobChanges(comment="", priority=0)) == {
        "comment": "",
        "priority": {"set": True, "infinite": False, "number": 0},
    }
    assert wire.update_body(JobChanges(start=5)) == {"begin_time": {"set": True, "infinite": False, "number": 5}}


def test_names_cannot_leave_their_place_in_a_path() -> None:
    assert wire.node_path("a/../b?c") == f"{wire.BASE}/node/a%2F..%2Fb%3Fc"
