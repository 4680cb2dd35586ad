"""The bridge's jobs in Slurm: implements `protocol.slurm_jobs.Jobs`.

`ours` is called all the time, in clusters with thousands of foreign jobs. Only the states of all jobs are read each
time; details are read of jobs never seen, and of ours that may have changed: one by one, 1.9 ms each, and what was read
is kept when the next one is not answered. (slurmrestd has one question for all, at 0.4 ms each, but builds the whole
answer first: with some thousand jobs, seconds of silence.) What is known of an id ends with the controller that gave it
out: after a restart of slurmctld, which its boot time tells, everything is read again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dynamig.errors import DynamigError, Unavailable
from dynamig.protocol.identity import JobKey
from dynamig.protocol.seen import Found, Gone, Seen, Unknown
from dynamig.protocol.slurm_jobs import HeldGpu, HoldRequest, Job, JobState, SlurmNode, SlurmNodeName
from dynamig.protocol.slurm_text import SlurmText
from dynamig.slurm import gres
from dynamig.slurm.client import SlurmClient
from dynamig.slurm.values import HeldGres, JobChanges, NodeInfo, SlurmJob, extra_of, job_of_ours

SHARD = "shard"

_TAKES_JOBS = frozenset({"IDLE", "MIXED", "ALLOCATED"})
_HARMLESS = frozenset({"CLOUD", "COMPLETING", "DYNAMIC_NORM", "EXTERNAL", "PLANNED"})
"""Flags of a node that takes jobs as if it had none. Any other one (DRAIN, NOT_RESPONDING, ...) keeps it out of use."""


class ExternalJobs:
    def __init__(self, client: SlurmClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._boot = 0
        self._ours: dict[int, tuple[frozenset[str], Job]] = {}
        self._foreign: set[int] = set()

    def check_rights(self) -> None:
        self._client.check_rights()

    def submit(self, request: HoldRequest) -> JobKey:
        return self._client.submit(request)

    def look(self, key: JobKey) -> Seen[Job]:
        seen = self._client.same_job(key)
        if not isinstance(seen, Found):
            return seen
        try:
            job = self._detail(seen.value)
        except DynamigError as error:
            return Unknown(str(error))
        return Found(job) if job else Gone(f"job {key.job_id} is not ours any more: its admin_comment was changed")

    def cancel(self, key: JobKey) -> None:
        self._client.cancel(key)

    def comment(self, key: JobKey, text: SlurmText) -> None:
        self._client.update(key, JobChanges(comment=text))
        with self._lock:  # what is known of a running job is not read again
            known = self._ours.get(key.job_id)
            if known is not None and known[1].key == key:
                self._ours[key.job_id] = (known[0], replace(known[1], comment=text))

    def nodes(self) -> Sequence[SlurmNode]:
        return [slurm_node(info) for info in self._client.nodes()]

    def started(self) -> float:
        """Of the controller whose jobs were told last; it is asked only if none were."""
        with self._lock:
            return float(self._boot or self._client.controller().boot)

    def write_extra(self, node: SlurmNodeName, key: str, value: Any) -> None:
        self._client.write_extra(node, key, value)

    def drain(self, node: SlurmNodeName, reason: SlurmText) -> None:
        self._client.drain(node, reason)

    def undrain(self, node: SlurmNodeName) -> None:
        self._client.undrain(node)

    def ours(self) -> Sequence[Job]:
        with self._lock:
            boot, states = self._client.controller().boot, self._client.job_states()
            if boot != self._boot:
                self._boot, self._ours, self._foreign = boot, {}, set()
            self._foreign &= states.keys()
            self._ours = {job_id: known for job_id, known in self._ours.items() if job_id in states}
            for job_id in sorted(states):
                if self._stale(job_id, states[job_id]):
                    self._read(job_id)
            return [job for _, job in self._ours.values()]

    def _stale(self, job_id: int, states: frozenset[str]) -> bool:
        """Pending jobs are read each time: their reason changes while their state does not. Suspended ones too: they
        may have been resumed in between."""
        if job_id in self._foreign:
            return False
        known = self._ours.get(job_id)
        return known is None or known[0] != states or known[1].state is JobState.PENDING or known[1].suspended

    def _read(self, job_id: int) -> None:
        match self._client.job(job_id):
            case Found(job):
                self._remember(job)
            case Gone():  # purged since the states were read
                self._ours.pop(job_id, None)
            case Unknown(reason):
                raise Unavailable("SLURM_UNAVAILABLE", reason)

    def _remember(self, seen: SlurmJob) -> None:
        job_id = seen.key.job_id
        job = self._detail(seen)
        if job is None:
            self._foreign.add(job_id)
            self._ours.pop(job_id, None)
        else:
            self._ours[job_id] = (seen.states, job)

    def _detail(self, seen: SlurmJob) -> Job | None:
        """With its GPU, if it is ours and runs. Raises Unavailable if slurmctld does not answer."""
        job = job_of_ours(seen, None)
        if job is None or job.state is not JobState.RUNNING or job.node is None:
            return job
        found = self._client.resources(job.key.job_id)
        if isinstance(found, Unknown):
            raise Unavailable("SLURM_UNAVAILABLE", found.reason)
        if isinstance(found, Gone):  # suspended, or it ended while we looked: no GPU that anybody could build on
            return job
        return job_of_ours(seen, held_gpu(found.value.get(job.node, ()), job.purpose.shards))


def held_gpu(held: Sequence[HeldGres], asked: int) -> HeldGpu | None:
    """What a hold that asked for `asked` shards builds on: the first GPU that gives as many. An exclusive job is given
    all shards of its node (case C-67), and uses no more of them than it asked for."""
    shards = [g for g in held if g.name == SHARD]
    enough = [g for g in shards if g.count >= asked] or shards
    first = min(enough, key=lambda g: -1 if g.index is None else g.index, default=None)
    return None if first is None else HeldGpu(first.index, min(first.count, asked))


def slurm_node(info: NodeInfo) -> SlurmNode:
    """Raises: Unavailable for GRES text that we cannot read."""
    usable = bool(info.states & _TAKES_JOBS) and info.states <= _TAKES_JOBS | _HARMLESS
    try:
        found = gres.gpus(info.gres, info.gres_used)
    except (ValueError, IndexError) as error:
        raise Unavailable("SLURM_BAD_ANSWER", f"GRES of node {info.name}: {error}", "a newer Slurm?") from error
    drained = "DRAIN" in info.states
    free = (info.cpus, info.memory)
    return SlurmNode(info.name, usable, found, *free, extra_of(info), drained, info.reason, info.reason_since)
