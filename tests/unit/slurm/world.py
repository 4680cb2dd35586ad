"""A Slurm in memory, for what is decided over many answers: implements the reads of the client, and counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dynamig.errors import Unavailable
from dynamig.protocol.identity import JobIdentity, JobKey, Purpose
from dynamig.protocol.seen import Found, Gone, Seen, Unknown
from dynamig.protocol.slurm_jobs import SlurmNodeName
from dynamig.slurm import Controller, HeldGres, NodeInfo, SlurmClient, SlurmJob

N1 = SlurmNodeName("n1")


class World(SlurmClient):
    def __init__(self) -> None:
        self.boot = 1
        self.silent = False
        self.silent_after: int | None = None
        self.jobs: dict[int, SlurmJob] = {}
        self.held: dict[int, HeldGres | tuple[HeldGres, ...]] = {}
        self.node_infos: list[NodeInfo] = []
        self.reads = Counter[str]()

    def add(
        self, job_id: int, states: str, identity: JobIdentity | None = None, sluid: str = "", **other: object
    ) -> None:
        comment = Purpose(identity, "ns/p", frozenset({"c"}), shards=3).to_admin_comment() if identity else ""
        key = JobKey(job_id, sluid or f"s{job_id}")
        of = frozenset(states.split("+"))
        made = SlurmJob(key, of, "", comment, "", "u", "p", N1, None, None, 0, gres="gres/shard:3")
        self.jobs[job_id] = replace(made, **other)  # type: ignore[arg-type]

    def controller(self) -> Controller:
        self._answer("controller")
        return Controller(self.boot, "26.05.5")

    def job_states(self) -> Mapping[int, frozenset[str]]:
        self._answer("states")
        return {job_id: job.states for job_id, job in self.jobs.items()}

    def job(self, job_id: int) -> Seen[SlurmJob]:
        self.reads["job"] += 1
        if self.silent or (self.silent_after is not None and self.reads["job"] > self.silent_after):
            return Unknown("silent")
        return Found(self.jobs[job_id]) if job_id in self.jobs else Gone("no such job")

    def resources(self, job_id: int) -> Seen[Mapping[SlurmNodeName, tuple[HeldGres, ...]]]:
        self.reads["resources"] += 1
        if self.silent:
            return Unknown("silent")
        if job_id not in self.held:
            return Gone("does not run")
        held = self.held[job_id]
        return Found({N1: held if isinstance(held, tuple) else (held,)})

    def nodes(self) -> Sequence[NodeInfo]:
        self._answer("nodes")
        return self.node_infos

    def _answer(self, what: str) -> None:
        self.reads[what] += 1
        if self.silent:
            raise Unavailable("SLURM_UNAVAILABLE", "silent")
