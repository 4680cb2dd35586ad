"""Many pods at once, beside as many external jobs, on a lab where Slurm and Kubernetes share the GPUs.

Pods, or jobs, are made one right after the other, by one client each. The rate counts from before the first is made to
when the last is seen bound, or running.
"""

from __future__ import annotations

from bench.bridge import Bench, ready
from bench.figures import Figure, Report, series
from bench.sightings import BOUND, RUNNING
from bench.slurm_side import FREED
from bench.slurm_side import RUNNING as JOB_RUNNING

BURST = 24
"""1g partitions; the lab's four GPUs have 28."""

PODS, JOBS = "pods bound per second", "jobs running per second"


def report(*, quick: bool) -> Report:
    with ready() as bench:
        for _ in range(1 if quick else 3):
            _pods(bench)
            _jobs(bench)
        ours, theirs = (series(row, "1/s", bench.rows[row]) for row in (PODS, JOBS))
    return Report((Figure(ours, theirs),), (f"{BURST} at a time",))


def _pods(bench: Bench) -> None:
    """They run before they go: this is not about pods that are deleted while they start."""
    made = [bench.paid.create() for _ in range(BURST)]
    begun, pods = made[0][1], [pod for pod, _ in made]
    bench.note(PODS, BURST / (max(bench.paid.wait(pod, BOUND) for pod in pods) - begun))
    for pod in pods:
        bench.paid.wait(pod, RUNNING)
    bench.paid.remove(*pods)


def _jobs(bench: Bench) -> None:
    made = [bench.slurm.submit(bench.lab.nodes) for _ in range(BURST)]
    begun = made[0][1]
    bench.note(JOBS, BURST / (max(bench.slurm.jobs.wait(job, JOB_RUNNING) for job, _ in made) - begun))
    for job, _ in made:
        bench.slurm.cancel(job)
        bench.slurm.jobs.wait(job, FREED)
