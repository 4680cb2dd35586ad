"""Real Slurm in the lab, and our adapter on the real slurmrestd: what its values claim is what Slurm does.

Holds are external jobs of `alice`, submitted with the bridge's token; native jobs are hers too.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from dynamig.errors import Conflict, Refused, Unavailable
from dynamig.protocol.identity import JobIdentity, JobKey, Purpose, purpose_of
from dynamig.protocol.seen import Found, Gone, Unknown
from dynamig.protocol.slurm_jobs import Ending, HeldGpu, HoldRequest, Job, JobState, SlurmNode, SlurmNodeName
from dynamig.protocol.slurm_text import LONGEST, slurm_text
from dynamig.slurm import ExternalJobs, JobChanges, SlurmClient, SlurmJob, connect
from lab.lab import Lab
from tests.e2e.cluster import until

N1, N2 = SlurmNodeName("n1"), SlurmNodeName("n2")
BRIDGE, USER = "dynamig", "alice"
WHOLE_GPU = 7
"""Shards of an H100: its seven units (dynamig.protocol.shards)."""


@dataclass
class Slurm:
    """Holds and native jobs, as tests order them."""

    lab: Lab
    client: SlurmClient
    jobs: ExternalJobs
    submitted: int = 0
    keys: list[JobKey] = field(default_factory=list)

    def request(self, nodes: Sequence[SlurmNodeName] = (N1,), shards: int = 2, **other: Any) -> HoldRequest:
        self.submitted += 1
        identity = JobIdentity(f"pod-{id(self)}-{self.submitted}", 1)
        fields: dict[str, Any] = {
            "purpose": Purpose(identity, "ns/p", frozenset({"c1"}), tuple(nodes), shards),
            "comment": "Kubernetes pod ns/p",
            "minutes": 5,
            "account": "",
            "user": USER,
            "partition": "kubernetes",
        }
        return HoldRequest(**{**fields, **other})

    def hold(self, nodes: Sequence[SlurmNodeName] = (N1,), shards: int = 2, **other: Any) -> JobKey:
        key = self.jobs.submit(self.request(nodes, shards, **other))
        self.keys.append(key)
        return key

    def running(self, key: JobKey) -> Job:
        def runs() -> Job:
            return _runs(found(self.jobs.look(key)))

        return until(runs, within=30)

    def native(self, *args: str, script: str = "sleep 300") -> int:
        return self.lab.submit(f"#!/bin/sh\n{script}\n", *args)

    def squeue(self, job_id: int, column: str = "%T") -> str:
        return self.lab.slurm("squeue", "--noheader", "--states=all", f"--jobs={job_id}", f"--format={column}").strip()

    def reaches(self, job_id: int, state: str) -> None:
        def there() -> None:
            assert self.squeue(job_id) == state

        until(there, within=30)

    def output(self, job_id: int, node: str) -> str:
        self.reaches(job_id, "COMPLETED")
        return self.lab.node(node).run("cat", f"/home/{USER}/slurm-{job_id}.out")

    def node(self, name: SlurmNodeName) -> SlurmNode:
        return next(node for node in self.jobs.nodes() if node.name == name)

    def of_ours(self, key: JobKey) -> Job | None:
        return next((job for job in self.jobs.ours() if job.key == key), None)

    def empty(self) -> None:
        """No job is pending or runs, no GPU is in use, and both nodes take jobs."""
        self.lab.slurm("scancel", f"--user={USER}")
        self.lab.slurm("scancel", "--user=slurm")

        def nothing() -> None:
            assert self.lab.slurm("squeue", "--noheader") == ""
            for node in self.jobs.nodes():
                assert node.usable, node
                assert all(not gpu.taken and gpu.used == 0 for gpu in node.gpus), node

        until(nothing, within=60)


@pytest.fixture
def slurm(lab: Lab) -> Iterator[Slurm]:
    client = connect(lab.slurmrestd_url, BRIDGE, lambda: token)
    token = lab.slurm_token(BRIDGE)
    made = Slurm(lab, client, ExternalJobs(client))
    made.empty()
    yield made
    for daemon in ("slurmctld", "slurmrestd", "slurmd-n1", "slurmd-n2"):
        lab.start(daemon)
    made.empty()


def found(seen: object) -> Any:
    assert isinstance(seen, Found), seen
    return seen.value


def read(slurm: Slurm, key: JobKey) -> SlurmJob:
    job = found(slurm.client.same_job(key))
    assert isinstance(job, SlurmJob)
    return job


# -- the lab: native jobs ----------------------------------------------------------------------------------------------


def test_a_native_job_gets_both_gpus_of_a_node_and_sees_them(slurm: Slurm) -> None:
    job = slurm.native("--gres=gpu:2", "-w", "n1", script="id -un; echo $SLURM_JOB_GPUS; nvml-list")
    user, indices, listed = slurm.output(job, "n1").strip().splitlines()
    assert (user, indices) == (USER, "0,1")
    seen = {gpu["uuid"]: gpu["minor"] for gpu in json.loads(listed)["gpus"]}
    assert seen == {gpu["uuid"]: gpu["minor"] for gpu in slurm.lab.node("n1").nvml_list()["gpus"]}
    assert sorted(seen.values()) == [0, 1]


def test_an_interactive_job_runs(slurm: Slurm) -> None:
    told = slurm.lab.slurm("srun", "--gres=gpu:1", "--nodelist=n2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", user=USER)
    assert told.strip() in ("0", "1")


def test_native_jobs_and_holds_exclude_each_other_gpu_by_gpu(slurm: Slurm) -> None:
    first = slurm.running(slurm.hold(shards=2))
    assert (first.node, first.gpu) == (N1, HeldGpu(0, 2))
    one = slurm.native("--gres=gpu:1", "-w", "n1")
    slurm.reaches(one, "RUNNING")
    gpus = slurm.node(N1).gpus
    assert [(gpu.taken, gpu.used, gpu.free) for gpu in gpus] == [(False, 2, WHOLE_GPU - 2), (True, 0, 0)]
    both = slurm.native("--gres=gpu:2", "-w", "n1")
    waits = slurm.hold(shards=6)
    until(lambda: _is(slurm.squeue(both, "%r"), "Resources"))
    until(lambda: _is(bool(found(slurm.jobs.look(waits)).reason), True))
    assert found(slurm.jobs.look(waits)).state is JobState.PENDING
    slurm.lab.slurm("scancel", str(both), str(one))
    assert slurm.running(waits).gpu == HeldGpu(1, 6)


@pytest.mark.parametrize(
    "asks", [("--gres=shard:1",), ("--gres=shard:h100:1",), ("--tres-per-task=gres/shard:1",), ("--gres=mps:1",)]
)
def test_users_are_kept_off_shards(slurm: Slurm, asks: tuple[str, ...]) -> None:
    with pytest.raises(Unavailable, match=r"for Kubernetes pods here|Invalid generic resource"):
        slurm.native(*asks)
    with pytest.raises(Unavailable, match=r"for Kubernetes pods here|Invalid generic resource"):
        slurm.lab.slurm("srun", *asks, "true", user=USER)


def test_users_are_kept_off_shards_by_a_change_of_their_job_too(slurm: Slurm) -> None:
    job = slurm.native("--hold", "--gres=gpu:1")
    with pytest.raises(Unavailable, match=r"Kubernetes pods|Invalid generic resource"):
        slurm.lab.slurm("scontrol", "update", f"jobid={job}", "TresPerNode=gres/shard:1", user=USER)


def test_users_submit_no_external_jobs(slurm: Slurm) -> None:
    with pytest.raises(Unavailable, match="external jobs are for Kubernetes"):
        slurm.lab.slurm("sbatch", "--external", "-w", "n1", user=USER)


def test_a_running_native_job_survives_kill_9_of_its_slurmd(slurm: Slurm) -> None:
    """Once its script runs. Killed a moment earlier, between prolog and script, it would hang RUNNING for minutes."""
    job = slurm.native("-w", "n1", script="echo began; sleep 3; echo survived")
    until(lambda: slurm.lab.node("n1").run("grep", "began", f"/home/{USER}/slurm-{job}.out"), within=30)
    slurm.lab.kill("slurmd-n1")
    slurm.lab.start("slurmd-n1")
    assert "survived" in slurm.output(job, "n1")


@pytest.mark.parametrize("daemon", ["munged-control", "munged-n1", "slurmrestd", "slurmctld"])
def test_kill_9_and_start_heals(slurm: Slurm, daemon: str) -> None:
    slurm.lab.kill(daemon)
    slurm.lab.start(daemon)
    assert "ok" in slurm.output(slurm.native("-w", "n1", script="echo ok"), "n1")
    slurm.running(slurm.hold())


# -- the adapter: jobs -------------------------------------------------------------------------------------------------


def test_a_hold_is_an_external_job_of_its_owner_with_our_identity(slurm: Slurm) -> None:
    request = slurm.request(nodes=(N2, N1), shards=3, priority=4242)
    key = slurm.jobs.submit(request)
    job = slurm.running(key)
    assert (job.identity, job.purpose.claims) == (request.identity, frozenset({"c1"}))
    assert job.node in (N1, N2)
    assert job.gpu == HeldGpu(0, 3)
    shown = slurm.lab.slurm_json("scontrol", "show", "job", str(key.job_id))["jobs"][0]
    assert "EXTERNAL_JOB" in shown["flags"]
    assert (shown["user_name"], shown["requeue"], shown["time_limit"]["number"]) == (USER, False, 5)
    assert (shown["step_id"]["sluid"], shown["priority"]["number"]) == (key.since, 4242)
    assert slurm.squeue(key.job_id, "%k") == request.comment


def test_a_job_without_a_limit_gets_the_partitions_longest_not_its_default(slurm: Slurm) -> None:
    assert read(slurm, slurm.hold(minutes=None)).minutes is None
    slurm.lab.slurm("scontrol", "update", "partitionname=low", "maxtime=77")
    try:
        assert read(slurm, slurm.hold(minutes=None, partition="low")).minutes == 77
    finally:
        slurm.lab.slurm("scontrol", "update", "partitionname=low", "maxtime=infinite")


def test_a_job_that_can_never_run_is_refused(slurm: Slurm) -> None:
    for bad in (slurm.request(shards=1000), slurm.request(nodes=(SlurmNodeName("nowhere"),))):
        with pytest.raises(Refused, match="SLURM_20"):
            slurm.jobs.submit(bad)
    for bad in (slurm.request(partition="nowhere"), slurm.request(partition="nowhere", minutes=None)):
        with pytest.raises(Refused, match=r"SLURM_2000|UNKNOWN_PARTITION"):
            slurm.jobs.submit(bad)


def test_the_predicted_gpu_is_the_one_that_slurm_picks(slurm: Slurm) -> None:
    for shards in (5, 4, 2, 3):
        predicted = slurm.node(N1).pick(shards)
        job = slurm.running(slurm.hold(shards=shards))
        assert predicted is not None
        assert job.gpu == HeldGpu(predicted.index, shards)


def test_cancel_ends_the_job_and_may_be_repeated(slurm: Slurm) -> None:
    key = slurm.hold(shards=WHOLE_GPU)
    slurm.running(key)
    slurm.jobs.cancel(key)
    job = found(slurm.jobs.look(key))
    assert (job.state, job.ending) == (JobState.ENDED, Ending.CANCELLED)
    assert slurm.node(N1).gpus[0].free == WHOLE_GPU
    slurm.jobs.cancel(key)
    slurm.jobs.cancel(JobKey(999_999, "sAAAAAAAAAAA00"))


def test_a_job_that_has_the_id_of_an_earlier_one_is_not_taken_for_it(slurm: Slurm) -> None:
    """Ids are given out again after a crash of the controller; here the earlier job is one that never was."""
    key = slurm.hold()
    slurm.running(key)
    earlier = JobKey(key.job_id, "sAAAAAAAAAAA00")
    assert isinstance(slurm.jobs.look(earlier), Gone)
    slurm.jobs.cancel(earlier)
    with pytest.raises(Conflict, match="JOB_ENDED"):
        slurm.jobs.comment(earlier, slurm_text("lies"))
    job = read(slurm, key)
    assert (job.state, job.comment) == (JobState.RUNNING, "Kubernetes pod ns/p")


def test_slurmctld_takes_a_sluid_for_a_cancel_and_refuses_one_that_is_not_there(slurm: Slurm) -> None:
    """What `cancel` is built on: also between our look and our DELETE no other job can be hit."""
    key = slurm.hold()
    other = JobKey(key.job_id, key.since[:-3] + "Z00")
    rest = slurm.client._rest
    with pytest.raises(Refused, match="NOT_FOUND"):
        rest.delete(f"/slurm/v0.0.45/job/{other.since}", "cancel")
    assert read(slurm, key).state is not JobState.ENDED
    rest.delete(f"/slurm/v0.0.45/job/{key.since}", "cancel")
    assert read(slurm, key).state is JobState.ENDED


def test_an_unprivileged_token_never_reaches_a_cancel(slurm: Slurm) -> None:
    """With somebody else's job it would stop slurmctld for good."""
    key = slurm.hold(user="slurm")
    token = slurm.lab.slurm_token(USER)
    weak = connect(slurm.lab.slurmrestd_url, USER, lambda: token)
    for attempt in (weak.check_rights, lambda: weak.cancel(key), lambda: weak.submit(slurm.request())):
        with pytest.raises(Refused, match="SLURM_FORBIDDEN"):
            attempt()
    slurm.client.controller()
    assert read(slurm, key).state is not JobState.ENDED


def test_a_bad_token_is_said_to_be_one(slurm: Slurm) -> None:
    for token in ("", "a.b.c", slurm.lab.slurm_token(BRIDGE)[:-4] + "AAAA"):
        client = connect(slurm.lab.slurmrestd_url, BRIDGE, partial(str, token))
        with pytest.raises(Refused, match="SLURM_AUTH"):
            client.controller()
        assert isinstance(client.job(1), Unknown)


def test_changes_of_a_job(slurm: Slurm) -> None:
    slurm.running(slurm.hold(shards=WHOLE_GPU))
    slurm.running(slurm.hold(shards=WHOLE_GPU))
    waits = slurm.hold(shards=1)
    slurm.client.update(waits, JobChanges(comment="moved", minutes=9, priority=77))
    job = read(slurm, waits)
    assert (job.comment, job.minutes, job.priority) == ("moved", 9, 77)
    slurm.client.update(waits, JobChanges(admin_comment="not ours"))
    assert isinstance(slurm.jobs.look(waits), Gone)
    assert slurm.of_ours(waits) is None
    slurm.jobs.cancel(waits)
    with pytest.raises(Conflict, match="JOB_ENDED"):
        slurm.jobs.comment(waits, slurm_text("too late"))


def test_the_longest_comment_that_slurmctld_takes(slurm: Slurm) -> None:
    """The purpose may be longer: a claim that is paid for on many nodes names them all."""
    nodes = tuple(SlurmNodeName(f"n1.{number}.example.org") for number in range(200))
    key = slurm.hold(comment=slurm_text("x" * 2 * LONGEST))
    assert len(read(slurm, key).comment) == LONGEST
    slurm.client.update(key, JobChanges(admin_comment=Purpose(JobIdentity("a", 1), nodes=nodes).to_admin_comment()))
    assert purpose_of(read(slurm, key).admin_comment) == Purpose(JobIdentity("a", 1), nodes=nodes)
    with pytest.raises(Refused, match="SLURM_2012"):
        slurm.client.update(key, JobChanges(comment="x" * (LONGEST + 1)))
    with pytest.raises(Refused, match="SLURM_2012"):
        slurm.hold(comment="x" * (LONGEST + 1))


def test_readers_of_slurms_commands_find_every_field(slurm: Slurm) -> None:
    """As scripts and Open OnDemand split them (case C-08); what was written is what is read."""
    text = slurm_text("Kubernetes pod ns/a.b and ns/c: 1g.10gb+me at 6 of GPU-1 MIG-2 and 1x|y=z\n;, at 0")
    request = slurm.request(comment=text)
    key = slurm.jobs.submit(request)
    job_id, purpose = str(key.job_id), request.purpose.to_admin_comment()
    wanted = [job_id, "dynamig-hold", text]
    fields = ("JobID", "Name", "Comment")
    for separator in ("|", "\x1f"):
        shown = slurm.lab.slurm(
            "squeue", "--noheader", f"--jobs={job_id}", "-O", ",".join(f"{f}:{separator}" for f in fields)
        )
        [line] = shown.splitlines()
        assert line.split(separator) == [*wanted, ""]
    [line] = slurm.lab.slurm("scontrol", "--oneliner", "show", "job", job_id).splitlines()
    shown_fields = dict(re.findall(r"(\w+)=(.*?)(?= \w+=|$)", line))
    assert [shown_fields[f] for f in ("JobId", "JobName", "Comment", "AdminComment")] == [*wanted, purpose]


def test_a_requeued_native_job_starts_when_it_is_told_to(slurm: Slurm) -> None:
    """P12: the bridge moves StartTime of a job that the prolog turned away; by itself it would wait two minutes."""
    job_id = slurm.native("--gres=gpu:1", "-w", "n1")
    slurm.reaches(job_id, "RUNNING")
    before = found(slurm.client.job(job_id))
    slurm.lab.slurm("scontrol", "requeue", str(job_id))
    slurm.reaches(job_id, "PENDING")
    after = found(slurm.client.job(job_id))
    assert before.key != after.key, "every run has a SLUID of its own"
    slurm.client.update(after.key, JobChanges(start=int(time.time())))
    slurm.reaches(job_id, "RUNNING")


def test_ours_are_told_from_foreign_jobs_and_follow_slurm(slurm: Slurm) -> None:
    native = slurm.native("--gres=gpu:1", "-w", "n2")
    first, second = slurm.hold(shards=WHOLE_GPU), slurm.hold(shards=WHOLE_GPU)
    slurm.running(first)
    slurm.running(second)
    third = slurm.hold(shards=1)
    until(lambda: _is(_reason(slurm.of_ours(third)), True))
    assert native not in {job.key.job_id for job in slurm.jobs.ours()}
    slurm.jobs.cancel(first)
    seen = slurm.of_ours(first)
    assert seen is not None
    assert seen.ending is Ending.CANCELLED
    assert until(lambda: _runs(slurm.of_ours(third))).gpu == HeldGpu(0, 1)


def test_a_suspended_hold_keeps_its_gpu_and_does_not_blind_us(slurm: Slurm) -> None:
    key = slurm.hold()
    slurm.running(key)
    slurm.lab.slurm("scontrol", "suspend", str(key.job_id))
    job = slurm.of_ours(key)
    assert job is not None
    assert (job.state, job.gpu) == (JobState.RUNNING, None)
    assert slurm.node(N1).gpus[0].used == 2
    slurm.lab.slurm("scontrol", "resume", str(key.job_id))
    assert slurm.running(key).gpu == HeldGpu(0, 2)


# -- the adapter: a controller that dies -------------------------------------------------------------------------------


def test_a_dead_controller_proves_nothing(slurm: Slurm) -> None:
    key = slurm.hold()
    slurm.running(key)
    slurm.lab.kill("slurmctld")
    assert isinstance(slurm.jobs.look(key), Unknown)
    for attempt in (slurm.jobs.ours, lambda: slurm.jobs.submit(slurm.request())):  # each waits 10 s for an answer
        with pytest.raises(Unavailable):
            attempt()
    with pytest.raises(Unavailable):  # slurmrestd says 403 here: nobody is forbidden anything
        slurm.client._rest.delete(f"/slurm/v0.0.45/job/{key.since}", "cancel")


def test_a_dead_slurmrestd_proves_nothing(slurm: Slurm) -> None:
    key = slurm.hold()
    slurm.lab.kill("slurmrestd")
    assert isinstance(slurm.jobs.look(key), Unknown)
    with pytest.raises(Unavailable):
        slurm.jobs.cancel(key)


def test_after_a_crash_of_the_controller_ours_are_what_it_says_now(slurm: Slurm) -> None:
    """Cancelled jobs come back, young ones are pending again or lost: in any case nothing remembered counts."""
    old, cancelled = slurm.hold(), slurm.hold()
    slurm.running(old)
    slurm.running(cancelled)
    boot = slurm.client.controller().boot
    _let_slurmctld_save(slurm)
    slurm.jobs.cancel(cancelled)
    young = slurm.hold()
    remembered = {job.key for job in slurm.jobs.ours()}
    assert {old, cancelled, young} <= remembered
    slurm.lab.kill("slurmctld")
    slurm.lab.start("slurmctld")
    assert slurm.client.controller().boot > boot
    told = {job.key: job.state for job in slurm.jobs.ours()}
    assert told[old] is JobState.RUNNING
    for key in (old, cancelled, young):
        seen = slurm.client.same_job(key)
        assert (key in told) is isinstance(seen, Found)
    if told.get(cancelled) is JobState.RUNNING:
        slurm.jobs.cancel(cancelled)
        assert found(slurm.jobs.look(cancelled)).state is JobState.ENDED


# -- the adapter: nodes ------------------------------------------------------------------------------------------------


def test_nodes_and_their_gpus(slurm: Slurm) -> None:
    assert {node.name for node in slurm.jobs.nodes()} == {N1, N2}
    assert [(gpu.index, gpu.shards, gpu.free) for gpu in slurm.node(N1).gpus] == [
        (0, WHOLE_GPU, WHOLE_GPU),
        (1, WHOLE_GPU, WHOLE_GPU),
    ]
    assert isinstance(slurm.client.node("nowhere"), Gone)
    slurm.lab.slurm("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    try:
        assert not slurm.node(N2).usable
    finally:
        slurm.lab.slurm("scontrol", "update", "nodename=n2", "state=resume")


def test_one_key_of_extra_is_ours_and_the_rest_is_kept(slurm: Slurm) -> None:
    slurm.lab.slurm("scontrol", "update", "nodename=n1", 'extra={"site":"x"}')
    assert slurm.client.write_extra(N1, "dynamig", {"0": "pod ns/p"})
    assert not slurm.client.write_extra(N1, "dynamig", {"0": "pod ns/p"})
    assert json.loads(found(slurm.client.node("n1")).extra) == {"site": "x", "dynamig": {"0": "pod ns/p"}}
    assert slurm.client.write_extra(N1, "dynamig", None)
    assert json.loads(found(slurm.client.node("n1")).extra) == {"site": "x"}
    slurm.lab.slurm("scontrol", "update", "nodename=n1", "extra=by hand")
    with pytest.raises(Refused, match="EXTRA_NOT_JSON"):
        slurm.client.write_extra(N1, "dynamig", {"0": "pod ns/p"})
    slurm.lab.slurm("scontrol", "update", "nodename=n1", "extra=")


def _let_slurmctld_save(slurm: Slurm) -> None:
    """It writes job state every few seconds: a job that is running in the file comes back running."""
    state = slurm.lab.layout.control / "slurm/state/job_state"
    before = state.stat().st_mtime
    until(lambda: _is(state.stat().st_mtime > before, True), within=30)


def _is(got: object, wanted: object) -> None:
    assert got == wanted


def _reason(job: Job | None) -> bool:
    return job is not None and bool(job.reason)


def _runs(job: Job | None) -> Job:
    assert job is not None
    assert job.state is JobState.RUNNING
    return job
