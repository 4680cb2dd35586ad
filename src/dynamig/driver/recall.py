"""Native jobs that were turned away are told when their GPUs are free (PROTOCOL P12).

Slurm lets a requeued job begin two minutes later at the earliest (26.05.5). Who turned it away knows best when it can
start: the node's driver, which then moves its StartTime to now. What is remembered here is in memory only; a driver
that restarts costs such a job those two minutes, nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from dynamig.driver.lender import Lender
from dynamig.driver.scontrol import SlurmWord
from dynamig.protocol.loans import COMPLETING, TERMINAL, Borrower, JobFacts
from dynamig.protocol.seen import Found, Gone

log = structlog.get_logger(__name__)

OFTEN, SELDOM = 2.0, 30.0
"""Seconds between looks while somebody was turned away, and while nobody was."""


@dataclass(frozen=True, slots=True)
class TurnedAway:
    run: Borrower
    indices: frozenset[int]


class Recall:
    """Thread safe. `answer`: seconds that slurmctld has for one answer; `poke`: called when there is news, so that
    `step` is called soon."""

    def __init__(self, lender: Lender, word: SlurmWord, answer: float, poke: Callable[[], None] = lambda: None) -> None:
        self._lender = lender
        self._word = word
        self._answer = answer
        self._poke = poke
        self._lock = threading.Lock()
        self._waiting: dict[int, TurnedAway] = {}

    def note(self, run: Borrower, indices: Collection[int]) -> None:
        with self._lock:
            self._waiting[run.job_id] = TurnedAway(run, frozenset(indices))
        self._poke()

    def forget(self, job_id: int) -> None:
        with self._lock:
            self._waiting.pop(job_id, None)

    def step(self) -> float:
        """Jobs whose GPUs are free were told to start, and those that do not wait any more are forgotten. Seconds until
        the next look."""
        with self._lock:
            waiting = list(self._waiting.values())
        for one in waiting:
            self._look(one)
        return OFTEN if waiting else SELDOM

    def _look(self, one: TurnedAway) -> None:
        job = self._word.job(one.run.job_id, within=self._answer)
        if isinstance(job, Gone) or (isinstance(job, Found) and _is_past(one.run, job.value)):
            self.forget(one.run.job_id)
        elif isinstance(job, Found) and _waits(one.run, job.value) and self._lender.could_lend(one.run, one.indices):
            self._start(one, Borrower(one.run.job_id, job.value.sluid, job.value.restart))

    def _start(self, one: TurnedAway, again: Borrower) -> None:
        if self._word.start_now(again, within=self._answer):
            log.info("recalled", job=again.job_id, gpus=sorted(one.indices))
            self.forget(again.job_id)


def _is_past(run: Borrower, job: JobFacts) -> bool:
    """Nothing more comes of it. An id whose restarts do not go on from the run's has been given to another job."""
    if COMPLETING in job.states:
        return False
    seen = Borrower(run.job_id, job.sluid, job.restart)
    return bool(job.states & TERMINAL) or not (run.is_same_run(seen) or job.restart > run.restart)


def _waits(run: Borrower, job: JobFacts) -> bool:
    """Requeued, and its last run is over on every node."""
    return "PENDING" in job.states and COMPLETING not in job.states and job.restart > run.restart
