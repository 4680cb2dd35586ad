"""How long pods of Slurm namespaces wait for their slices, beside Slurm's own jobs, on a lab where both share the GPUs.

In turn: a pod with a claim for one 1g partition in a Slurm namespace; an external job for as many shards, submitted by
the bench with the bridge's user, token and partition; a pod without claims in a namespace of nobody. Pods are seen on
the API server's watch streams, jobs by asking slurmctld for all states every few milliseconds. Each is gone before
the next begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from lightkube import Client

from bench.figures import Figure, Report, series
from bench.pod_objects import create_pod, delete_pod, namespace
from bench.sightings import (
    ALLOCATED,
    BOUND,
    CLAIM_GONE,
    DELETING,
    NOTED,
    POD_GONE,
    RUNNING,
    SUCCEEDED,
    UNGATED,
    VERIFIED,
    Sightings,
)
from bench.slurm_lab import slurm_lab
from bench.slurm_side import FREED, SUBMITTED, SlurmSide
from bench.slurm_side import RUNNING as JOB_RUNNING
from dynamig.kube.client import connect
from dynamig.protocol import names
from lab.lab import Lab

WITHIN_S = 170.0
"""The kubelet tries a failed prepare again after about 80 s; such a pod counts as it is."""

TARGET_S = 0.15
"""What a bound pod may take beyond Slurm's own start of a job."""

STEPS = ("created", NOTED, SUBMITTED, JOB_RUNNING + " in Slurm", ALLOCATED, VERIFIED, UNGATED, BOUND, RUNNING)
BRIEF = "sleep 2"
"""What a pod does that is to end by itself."""


@dataclass
class Bench:
    """One run: its lab, both sides of it, and the rows of seconds found so far."""

    lab: Lab
    client: Client
    slurm: SlurmSide
    paid: Side
    free: Side
    rows: dict[str, list[float]] = field(default_factory=dict)

    def note(self, row: str, seconds: float) -> None:
        self.rows.setdefault(row, []).append(seconds)


@dataclass
class Side:
    """Pods of one namespace."""

    client: Client
    namespace: str
    claim: bool
    seen: Sightings
    made: int = 0

    def create(self, command: str = "sleep 100000") -> tuple[str, float]:
        """Its name, and when its creation was asked for."""
        self.made += 1
        name = f"pod-{self.made}"
        return name, create_pod(self.client, self.namespace, name, claim=self.claim, command=command)

    def wait(self, pod: str, stage: str) -> float:
        return self.seen.wait(pod, stage, within=WITHIN_S)

    def remove(self, *pods: str) -> None:
        """The pods, and their claims, are gone."""
        for pod in pods:
            delete_pod(self.client, self.namespace, pod)
        for pod in pods:
            self.wait(pod, POD_GONE)
            if self.claim:
                self.wait(pod, CLAIM_GONE)


def report(*, quick: bool) -> Report:
    with ready() as bench:
        for number in range(-1, 3 if quick else 10):
            for measure in (_pod, _job, _plain_pod):
                measure(bench)
            if number < 0:
                bench.rows.clear()  # the first of each warms caches of all daemons
        for _ in range(2 if quick else 4):
            for measure in (_end, _scancel, _job_end):
                measure(bench)
        for _ in range(1 if quick else 2):
            _freed(bench)
        return Report(tuple(_figures(bench.rows)), _notes(bench.rows))


@contextmanager
def ready() -> Iterator[Bench]:
    """A lab, a Slurm namespace and another one in it, and everything watched."""
    with slurm_lab() as lab:
        client = connect(lab.admin_kubeconfig)
        with namespace(client, {names.SCHEDULER_LABEL: "slurm"}) as paid, namespace(client) as free:
            bench = Bench(
                lab,
                client,
                SlurmSide(lab),
                Side(client, paid, True, Sightings(client, paid)),
                Side(client, free, False, Sightings(client, free)),
            )
            for sightings in (bench.paid.seen, bench.free.seen, bench.slurm.jobs):
                sightings.watch()
            try:
                yield bench
            finally:
                bench.slurm.jobs.stop()


# -- one after the other -----------------------------------------------------------------------------------------------


def _pod(bench: Bench) -> None:
    known = bench.slurm.jobs.known()
    pod, created = bench.paid.create()
    running = bench.paid.wait(pod, RUNNING)
    job, submitted = bench.slurm.jobs.wait_new(SUBMITTED, known)
    at = {stage: bench.paid.wait(pod, stage) for stage in (NOTED, ALLOCATED, VERIFIED, UNGATED, BOUND)}
    at |= {"created": created, SUBMITTED: submitted, RUNNING: running}
    at[JOB_RUNNING + " in Slurm"] = bench.slurm.jobs.wait(job, JOB_RUNNING)
    bench.note("created to bound", at[BOUND] - created)
    bench.note("created to running", running - created)
    for first, then in pairwise(STEPS):
        bench.note(f"{first} to {then}", at[then] - at[first])
    bench.paid.remove(pod)
    bench.slurm.jobs.wait(job, FREED)


def _job(bench: Bench) -> None:
    job, begun = bench.slurm.submit(bench.lab.nodes)
    bench.note("job: submit to running", bench.slurm.jobs.wait(job, JOB_RUNNING) - begun)
    bench.slurm.cancel(job)
    bench.slurm.jobs.wait(job, FREED)


def _plain_pod(bench: Bench) -> None:
    pod, created = bench.free.create()
    bench.note("plain: created to running", bench.free.wait(pod, RUNNING) - created)
    bench.note("plain: created to bound", bench.free.wait(pod, BOUND) - created)
    bench.free.remove(pod)


# -- ends --------------------------------------------------------------------------------------------------------------


def _end(bench: Bench) -> None:
    """A pod that ends by itself."""
    known = bench.slurm.jobs.known()
    pod, _ = bench.paid.create(BRIEF)
    succeeded = bench.paid.wait(pod, SUCCEEDED)
    job, _ = bench.slurm.jobs.wait_new(SUBMITTED, known)
    bench.note("pod finished to job ended", bench.slurm.jobs.wait(job, FREED) - succeeded)
    delete_pod(bench.client, bench.paid.namespace, pod)
    bench.paid.wait(pod, POD_GONE)


def _scancel(bench: Bench) -> None:
    known = bench.slurm.jobs.known()
    pod, _ = bench.paid.create()
    bench.paid.wait(pod, RUNNING)
    job, _ = bench.slurm.jobs.wait_new(SUBMITTED, known)
    begun = bench.slurm.cancel(job)
    bench.note("scancel to pod being deleted", bench.paid.wait(pod, DELETING) - begun)
    bench.paid.wait(pod, POD_GONE)
    bench.paid.wait(pod, CLAIM_GONE)


def _job_end(bench: Bench) -> None:
    job, _ = bench.slurm.submit(bench.lab.nodes)
    bench.slurm.jobs.wait(job, JOB_RUNNING)
    begun = bench.slurm.cancel(job)
    bench.note("job: scancel to ended", bench.slurm.jobs.wait(job, FREED) - begun)


def _freed(bench: Bench) -> None:
    """Native jobs have all GPUs; a pod and an external job wait; one native job is cancelled."""
    natives = all_taken(bench.lab, bench.slurm)
    known = bench.slurm.jobs.known()
    pod, _ = bench.paid.create()
    hold, _ = bench.slurm.jobs.wait_new(SUBMITTED, known)
    beside, _ = bench.slurm.submit(bench.lab.nodes)
    begun = bench.slurm.cancel(natives[-1])
    bench.note("native job cancelled to hold running", bench.slurm.jobs.wait(hold, JOB_RUNNING) - begun)
    bench.note("native job cancelled to job running", bench.slurm.jobs.wait(beside, JOB_RUNNING) - begun)
    bench.note("hold running to bound", bench.paid.wait(pod, BOUND) - bench.slurm.jobs.wait(hold, JOB_RUNNING))
    for job in (beside, *natives[:-1]):
        bench.slurm.cancel(job)
        bench.slurm.jobs.wait(job, FREED)
    bench.paid.remove(pod)


def all_taken(lab: Lab, slurm: SlurmSide) -> list[int]:
    """Native jobs that have all GPUs of all nodes."""
    script = "#!/bin/sh\nsleep 100000\n"
    jobs = [lab.submit(script, "--gres=gpu:2", f"--nodelist={node}") for node in lab.nodes]
    for job in jobs:
        slurm.jobs.wait(job, JOB_RUNNING)
    return jobs


# -- figures -----------------------------------------------------------------------------------------------------------


AGAINST = (
    ("created to bound", "job: submit to running"),
    ("created to bound", "plain: created to bound"),
    ("created to running", "plain: created to running"),
    ("pod finished to job ended", "job: scancel to ended"),
    ("scancel to pod being deleted", "job: scancel to ended"),
    ("native job cancelled to hold running", "native job cancelled to job running"),
    ("hold running to bound", "job: submit to running"),
)


def _figures(rows: dict[str, list[float]]) -> Iterator[Figure]:
    for ours, theirs in AGAINST:
        yield Figure(series(ours, "s", rows[ours]), series(theirs, "s", rows[theirs]))
    for first, then in pairwise(STEPS):
        step = f"{first} to {then}"
        yield Figure(series(step, "s", rows[step]), series("created to bound", "s", rows["created to bound"]))


def _notes(rows: dict[str, list[float]]) -> tuple[str, ...]:
    bound, job = (series(row, "s", rows[row]).median for row in ("created to bound", "job: submit to running"))
    over = bound - job
    return (
        f"bound after Slurm's own submit to running + {over:.3f} s; the target is + {TARGET_S} s",
        "`created`, `submit`, `scancel`: when the bench asked; the rest: first seen, jobs every few ms",
    )
