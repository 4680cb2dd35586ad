"""What each look of the bridge asks of Slurm, on the lab: beside foreign jobs, and with pods that wait.

The bridge's own adapter asks what its service asks in a look, through the same slurmrestd; nothing is decided on it.
It stands against one question for slurmctld's configuration, asked in turn with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bench.bridge import Bench, all_taken, ready
from bench.figures import Figure, Report, series
from bench.slurm_side import FOREIGN, FREED, SUBMITTED
from dynamig.slurm import ExternalJobs

FOREIGN_JOBS = (0, 500, 1500)
WAITING = (1, 50)


def report(*, quick: bool) -> Report:
    with ready() as bench:
        figures = [*_beside_foreign(bench, FOREIGN_JOBS[:2] if quick else FOREIGN_JOBS, 5 if quick else 30)]
        figures += _with_waiting(bench, WAITING[:1] if quick else WAITING, 5 if quick else 30)
    return Report(
        tuple(figures),
        ("foreign: batch jobs that are held; first: of an adapter that knows no job yet, as after a restart",),
    )


def _beside_foreign(bench: Bench, counts: tuple[int, ...], rounds: int) -> Iterator[Figure]:
    made = 0
    try:
        for count in counts:
            for _ in range(count - made):
                bench.slurm.submit_held()
            made = count
            yield from _asked(bench, f"{count} foreign jobs", rounds)
    finally:
        bench.lab.slurm("scancel", f"--name={FOREIGN}")


def _with_waiting(bench: Bench, counts: tuple[int, ...], rounds: int) -> Iterator[Figure]:
    """Native jobs have all GPUs, so that every hold stays pending."""
    natives, pods = all_taken(bench.lab, bench.slurm), list[str]()
    known = bench.slurm.jobs.known()
    for count in counts:
        while len(pods) < count:
            pods.append(bench.paid.create()[0])
            known.add(bench.slurm.jobs.wait_new(SUBMITTED, known)[0])
        yield from _asked(bench, f"{count} waiting pods", rounds)
    bench.paid.remove(*pods)
    for job in natives:
        bench.slurm.cancel(job)
        bench.slurm.jobs.wait(job, FREED)


def _asked(bench: Bench, what: str, rounds: int) -> Iterator[Figure]:
    jobs = ExternalJobs(bench.slurm.client)
    first = _seconds(lambda: _look(jobs))
    ours, conf = list[float](), list[float]()
    for _ in range(rounds):
        ours.append(_seconds(lambda: _look(jobs)))
        conf.append(_seconds(bench.slurm.client.controller))
    floor = series(f"slurmctld's configuration, {what}", "ms", conf, scale=1e3)
    yield Figure(series(f"a look's questions, {what}", "ms", ours, scale=1e3), floor)
    yield Figure(series(f"the first look's, {what}", "ms", [first], scale=1e3), floor)


def _look(jobs: ExternalJobs) -> None:
    """As `dynamig.bridge.service` does."""
    jobs.ours()
    jobs.nodes()
    jobs.started()


def _seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun
