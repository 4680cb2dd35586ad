"""Slurm as the benches see it: jobs that are nobody's hold, and when each job was first seen in each state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dynamig.errors import Unavailable
from dynamig.protocol.identity import JobIdentity, Purpose
from dynamig.protocol.slurm_jobs import HoldRequest
from dynamig.protocol.slurm_text import slurm_text
from dynamig.slurm import SlurmClient
from dynamig.slurm import v0_0_45 as wire
from dynamig.slurm.rest import Rest
from lab.bridge import SLURM_USER
from lab.lab import Lab

T = TypeVar("T")

EVERY_S = 0.007
"""Seconds between two looks at all jobs."""

WITHIN_S = 170.0
"""For a native job: its prolog waits for the GPU up to a minute, and a busy lab is slow."""

PARTITION = "all"
SUBMITTED, RUNNING, FREED = "submitted", "running", "freed"


class SlurmSide:
    """The bridge's own user and token, through the same slurmrestd."""

    def __init__(self, lab: Lab) -> None:
        token = lab.slurm_token(SLURM_USER)
        self.rest = Rest(lab.slurmrestd_url, SLURM_USER, lambda: token)
        self.client = SlurmClient(self.rest)
        self.jobs = JobSightings(Rest(lab.slurmrestd_url, SLURM_USER, lambda: token))

    def submit(self, nodes: Sequence[str], shards: int = 1) -> tuple[int, float]:
        """An external job as the bridge submits one, but nobody's hold; its id, and when it was asked for."""
        purpose = Purpose(JobIdentity("bench", 1), nodes=tuple(nodes), shards=shards)
        request = HoldRequest(purpose, slurm_text("bench"), 60, "", SLURM_USER, PARTITION)
        body = wire.submit_body(request, request.minutes)
        del body["job"]["admin_comment"]
        return self._submit(body)

    def submit_held(self) -> int:
        """A batch job that nobody lets start."""
        job = {
            "name": FOREIGN,
            "script": "#!/bin/sh\n",
            "hold": True,
            "partition": "low",
            "current_working_directory": "/",
            "environment": ["PATH=/usr/bin:/bin"],
        }
        return self._submit({"job": job})[0]

    def cancel(self, job: int) -> float:
        """When the cancel was asked for."""
        begun = time.monotonic()
        self.rest.delete(wire.job_path(job), f"cancelling job {job}")
        return begun

    def _submit(self, body: dict[str, Any]) -> tuple[int, float]:
        begun = time.monotonic()
        answer = self.rest.post(wire.SubmitAnswer, wire.SUBMIT, "submitting", body)
        if answer.job_id is None:
            raise Unavailable("SLURM_BAD_ANSWER", "no job id in the answer to a submit")
        return answer.job_id, begun


FOREIGN = "bench-foreign"


class JobSightings:
    """Seconds of the monotonic clock at which (job, stage) was first seen. *freed*: neither running nor completing."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._seen: dict[tuple[int, str], float] = {}
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self._stopping = threading.Event()

    def watch(self) -> None:
        """Until `stop`, by a thread that ends with the process."""
        threading.Thread(target=self._follow, daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def wait(self, job: int, stage: str, *, within: float = WITHIN_S) -> float:
        return self._wait(lambda: self._seen.get((job, stage)), f"job {job} {stage}", within)

    def wait_new(self, stage: str, known: set[int], *, within: float = WITHIN_S) -> tuple[int, float]:
        """The first job that is not among the known and that reached the stage, and when."""

        def first() -> tuple[float, int] | None:
            return min(((at, j) for (j, s), at in self._seen.items() if s == stage and j not in known), default=None)

        at, job = self._wait(first, f"a new job {stage}", within)
        return job, at

    def known(self) -> set[int]:
        with self._changed:
            return {job for job, _ in self._seen}

    def _wait(self, look: Callable[[], T | None], what: str, within: float) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._failure or look() is not None, timeout=within)
            if self._failure is not None:
                raise self._failure
            if (found := look()) is None:
                raise Unavailable("NOT_SEEN", f"{what}: not within {within:.0f} s", "")
            return found

    def _follow(self) -> None:
        try:
            while not self._stopping.wait(EVERY_S):
                states = wire.states(self._rest.get(wire.StatesAnswer, wire.JOB_STATES, "states of jobs"))
                self._note(states, time.monotonic())
        except Exception as error:  # noqa: BLE001 - a thread's failure belongs to who waits
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _note(self, states: Mapping[int, frozenset[str]], now: float) -> None:
        with self._changed:
            for job, state in states.items():
                self._seen.setdefault((job, SUBMITTED), now)
                if "RUNNING" in state:
                    self._seen.setdefault((job, RUNNING), now)
                elif not state & {"PENDING", "COMPLETING"}:
                    self._seen.setdefault((job, FREED), now)
            self._changed.notify_all()
