"""slurmctld in memory: external jobs on GPUs with shards, picked as Slurm picks (tried on 26.05.5).

Lowest index with enough free shards; a GPU that a native job has whole gives no shard; jobs start in order of priority,
then of submission, as soon as they fit. It can be told to be silent, to end jobs, to forget them, to run native ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dynamig.errors import Conflict, DynamigError, Refused, Unavailable
from dynamig.protocol import names
from dynamig.protocol.identity import JobKey
from dynamig.protocol.seen import Found, Gone, Seen, Unknown
from dynamig.protocol.slurm_jobs import (
    Ending,
    HeldGpu,
    HoldRequest,
    Job,
    JobState,
    SlurmGpu,
    SlurmNode,
    SlurmNodeName,
)
from dynamig.protocol.slurm_text import LONGEST, SlurmText

FIRST_PRIORITY = 4_294_901_759
"""Of the first job; each later one has one less (priority/basic)."""


@dataclass
class FakeSlurm:
    """`shards`: per node, the shards of each GPU by index. `paused`: no job starts. `drained`: for which reason;
    `downed`: nodes that somebody set DOWN, with his reason, which then stands for both; `reason_since`: of all reasons.
    `failing`: by name of a call, the error that it raises for as long as it stands there."""

    shards: Mapping[SlurmNodeName, Sequence[int]]
    silent: bool = False
    reason_since: int = 0
    failing: dict[str, DynamigError] = field(default_factory=dict)
    paused: bool = False
    privileged: bool = True
    requests: dict[int, HoldRequest] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    native: set[tuple[SlurmNodeName, int]] = field(default_factory=set)
    down: set[SlurmNodeName] = field(default_factory=set)
    drained: dict[SlurmNodeName, str] = field(default_factory=dict)
    downed: dict[SlurmNodeName, str] = field(default_factory=dict)
    extra: dict[SlurmNodeName, dict[str, Any]] = field(default_factory=dict)
    cpus: int = 64
    boot: float = 0.0
    clock: Callable[[], float] = lambda: 0.0
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def check_rights(self) -> None:
        self._answer()
        if not self.privileged:
            raise Refused("SLURM_FORBIDDEN", "not an operator's token")

    def submit(self, request: HoldRequest) -> JobKey:
        self._answer("submit")
        _check_length(request.comment)
        number = next(self._ids)
        key = JobKey(number, f"sluid-{number}")
        self.requests[number] = request
        self.jobs[number] = Job(
            key,
            request.purpose,
            JobState.PENDING,
            request.comment,
            "Priority",
            priority=request.priority or FIRST_PRIORITY - number,
            submitted=self.clock(),
        )
        self.schedule()
        return key

    def ours(self) -> Sequence[Job]:
        self._answer()
        return tuple(self.jobs.values())

    def look(self, key: JobKey) -> Seen[Job]:
        if self.silent:
            return Unknown("slurmctld does not answer")
        job = self.jobs.get(key.job_id)
        return Found(job) if job is not None and job.key == key else Gone("no such job")

    def cancel(self, key: JobKey) -> None:
        self._answer("cancel")
        self.end(key.job_id, Ending.CANCELLED)

    def comment(self, key: JobKey, text: SlurmText) -> None:
        self._answer("comment")
        _check_length(text)
        self.jobs[key.job_id] = replace(self.jobs[key.job_id], comment=text)

    def started(self) -> float:
        self._answer()
        return self.boot

    def write_extra(self, node: SlurmNodeName, key: str, value: Any) -> None:
        self._answer("write_extra")
        rest = {k: v for k, v in self.extra.get(node, {}).items() if k != key}
        self.extra[node] = rest if value is None else {**rest, key: value}

    def drain(self, node: SlurmNodeName, reason: SlurmText) -> None:
        self._check_ours(node, "drain")
        self.drained[node] = names.DRAINED + reason

    def undrain(self, node: SlurmNodeName) -> None:
        self._check_ours(node, "undrain")
        self.drained.pop(node, None)
        self.schedule()

    def _check_ours(self, node: SlurmNodeName, call: str) -> None:
        self._answer(call)
        if not (self.downed.get(node) or self.drained.get(node, names.DRAINED)).startswith(names.DRAINED):
            raise Conflict("NODE_NOT_OURS", f"node {node} has another's reason")

    def nodes(self) -> Sequence[SlurmNode]:
        self._answer()
        return tuple(
            SlurmNode(
                name,
                usable=not {name} & (self.down | self.drained.keys() | self.downed.keys()),
                gpus=tuple(
                    SlurmGpu(i, total, self._used(name, i), (name, i) in self.native) for i, total in enumerate(gpus)
                ),
                cpus=self.cpus - sum(self.requests[j.key.job_id].purpose.cpus for j in self._running_on(name)),
                memory=1_000_000,
                extra=self.extra.get(name, {}),
                drained=name in self.drained,
                reason=self.downed.get(name) or self.drained.get(name, "Not responding" if name in self.down else ""),
                reason_since=self.reason_since,
            )
            for name, gpus in self.shards.items()
        )

    # -- what happens in Slurm without the bridge ------------------------------------------------------------

    def resume(self, node: SlurmNodeName) -> None:
        """`scontrol update state=resume`: neither drained nor down, and no reason (tried, 26.05.5)."""
        self.drained.pop(node, None)
        self.downed.pop(node, None)
        self.schedule()

    def end(self, job_id: int, ending: Ending) -> None:
        job = self.jobs[job_id]
        if job.state is not JobState.ENDED:
            self.jobs[job_id] = replace(job, state=JobState.ENDED, ending=ending)
        self.schedule()

    def forget(self, job_id: int) -> None:
        """What a controller that was killed may do to a job of the last seconds."""
        del self.jobs[job_id]

    def hold(self, job_id: int) -> None:
        """Its owner's `scontrol hold`."""
        self.jobs[job_id] = replace(self.jobs[job_id], priority=0, reason="JobHeldUser")

    def release(self, job_id: int) -> None:
        self.jobs[job_id] = replace(self.jobs[job_id], priority=FIRST_PRIORITY - job_id, reason="")
        self.schedule()

    def change(self, job_id: int, shards: int) -> None:
        """An operator lets the waiting job ask for so many shards."""
        request = self.requests[job_id]
        self.requests[job_id] = replace(request, purpose=replace(request.purpose, shards=shards))
        self.jobs[job_id] = replace(self.jobs[job_id], changed=f"{shards} shards")

    def move(self, job_id: int, index: int) -> None:
        """The job holds its shards on another GPU than before."""
        job = self.jobs[job_id]
        assert job.gpu is not None
        self.jobs[job_id] = replace(job, gpu=replace(job.gpu, index=index))

    def start_native(self, node: SlurmNodeName, index: int) -> bool:
        """A native job takes a whole GPU, if Slurm's books have it free."""
        if self._used(node, index) or (node, index) in self.native:
            return False
        self.native.add((node, index))
        return True

    def end_native(self, node: SlurmNodeName, index: int) -> None:
        self.native.discard((node, index))
        self.schedule()

    def schedule(self) -> None:
        if self.paused:
            return
        waiting = [j for j in self.jobs.values() if j.state is JobState.PENDING and not j.held]
        for job in sorted(waiting, key=lambda j: (-(j.priority or 0), j.key.job_id)):
            self._try(job)

    def _try(self, job: Job) -> None:
        request = self.requests[job.key.job_id]
        by_name = {n.name: n for n in self.nodes()} if not self.silent else {}
        asked = request.purpose
        for name in map(SlurmNodeName, asked.nodes):
            node = by_name.get(name)
            if node is None or not node.has_room_for(asked.cpus, asked.memory):
                continue
            picked = node.pick(asked.shards)
            if picked is not None:
                held = HeldGpu(picked.index, asked.shards) if asked.shards else None
                self.jobs[job.key.job_id] = replace(job, state=JobState.RUNNING, reason="", node=name, gpu=held)
                return
        self.jobs[job.key.job_id] = replace(job, reason="Resources")

    def _running_on(self, node: SlurmNodeName) -> list[Job]:
        return [j for j in self.jobs.values() if j.state is JobState.RUNNING and j.node == node]

    def _used(self, node: SlurmNodeName, index: int) -> int:
        return sum(j.gpu.shards for j in self._running_on(node) if j.gpu is not None and j.gpu.index == index)

    def _answer(self, call: str = "") -> None:
        if self.silent:
            raise Unavailable("SLURM_UNAVAILABLE", "slurmctld does not answer")
        if (error := self.failing.get(call)) is not None:
            raise error


def _check_length(comment: str) -> None:
    if len(comment.encode()) > LONGEST:
        raise Refused("SLURM_2012", "Pathname of a file, directory or other parameter too long")
