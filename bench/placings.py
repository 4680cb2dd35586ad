"""Ways to place pods in a cluster of nodes with eight H100: the bridge, a naive bridge, and first fit without Slurm."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from bench.fake_cluster import GPUS, UNITS, FakeCluster, node_names
from dynamig.bridge.actions import Action, Cancel, Submit
from dynamig.mig import Partition, Table, fewest_lost, first_fit
from dynamig.protocol.identity import JobIdentity, JobKey, Purpose, Role
from dynamig.protocol.slurm_jobs import HoldRequest, Job, JobState, SlurmNodeName
from dynamig.protocol.slurm_text import slurm_text
from dynamig.testing.fake_slurm import FakeSlurm
from tests.unit.mig.models import H100

TABLE = Table(H100)
PROFILE = {p.name: p for p in H100.profiles}
Gpu = tuple[str, int]


@dataclass
class Counts:
    """`wrong`: holds that started where their set has no place that they pay for, and were cancelled."""

    holds: int = 0
    ballast: int = 0
    wrong: int = 0


class Bridge:
    """The bridge's own decisions, on a cluster in memory."""

    def __init__(self, nodes: int) -> None:
        self.counts = Counts()
        self._cluster = FakeCluster.of(nodes)

    def arrive(self, pod: int, profile: str) -> None:
        self._cluster.arrive_as(_name(pod), profile)

    def finish(self, pod: int) -> None:
        self._cluster.finish(_name(pod))

    def give_up(self, pod: int) -> None:
        self._cluster.give_up(_name(pod))

    def settle(self, now: float) -> Collection[int]:
        self._cluster.now = max(self._cluster.now, now)
        self._count(self._cluster.settle())
        self._cluster.forget_ended()
        return [_number(name) for name in self._cluster.sets.pods if self._cluster.running(name)]

    def _count(self, did: Collection[Action]) -> None:
        alive = {pod["metadata"]["uid"] for pod in self._cluster.sets.pods.values()}
        for action in did:
            match action:
                case Submit(_, _, plan):
                    self.counts.holds += 1
                    self.counts.ballast += len(plan.ballast)
                case Cancel(job) if _runs(job) and job.identity.set_uid in alive:
                    self.counts.wrong += 1


def _runs(job: Job) -> bool:
    return job.identity.role is Role.HOLD and job.state is JobState.RUNNING


def _name(pod: int) -> str:
    return f"p{pod:06d}"


def _number(name: str) -> int:
    return int(name[1:])


class Naive:
    """Asks Slurm for the least that the profile can cost, on any node; if it gets a GPU without a place that this pays
    for, it cancels, and asks again at the next change of the cluster."""

    def __init__(self, nodes: int) -> None:
        self.counts = Counts()
        self._slurm = FakeSlurm({SlurmNodeName(n): (UNITS.count,) * GPUS for n in node_names(nodes)}, cpus=1024)
        self._waiting: dict[int, str] = {}
        self._jobs: dict[int, JobKey] = {}
        self._live: dict[Gpu, dict[int, Partition]] = {}

    def arrive(self, pod: int, profile: str) -> None:
        self._waiting[pod] = profile

    def finish(self, pod: int) -> None:
        for live in self._live.values():
            live.pop(pod, None)
        self._slurm.cancel(self._jobs.pop(pod))

    def give_up(self, pod: int) -> None:
        del self._waiting[pod]
        if (key := self._jobs.pop(pod, None)) is not None:
            self._slurm.cancel(key)

    def settle(self, now: float) -> Collection[int]:
        for pod, profile in self._waiting.items():
            if pod not in self._jobs:
                self._jobs[pod] = self._slurm.submit(_request(pod, profile, self._slurm))
                self.counts.holds += 1
        while any(self._take(pod) for pod in list(self._waiting) if pod in self._jobs):
            pass
        for number in [n for n, job in self._slurm.jobs.items() if not job.living]:
            self._slurm.forget(number)
            del self._slurm.requests[number]
        return [pod for live in self._live.values() for pod in live]

    def _take(self, pod: int) -> bool:
        """Whether the pod's job runs, and so the pod does or has given the job back: others may start then."""
        job = self._slurm.jobs[self._jobs[pod].job_id]
        if job.state is not JobState.RUNNING:
            return False
        assert job.node is not None
        assert job.gpu is not None
        assert job.gpu.index is not None
        live = self._live.setdefault((job.node, job.gpu.index), {})
        place = _paid_place(live.values(), self._waiting[pod], job.gpu.shards)
        if place is None:
            self.counts.wrong += 1
            self._slurm.cancel(self._jobs.pop(pod))
        else:
            live[pod] = place
            del self._waiting[pod]
        return True


def _request(pod: int, profile: str, slurm: FakeSlurm) -> HoldRequest:
    cost = min(_cost(p) for p in PROFILE[profile].partitions())
    purpose = Purpose(JobIdentity(_name(pod), 1), nodes=tuple(slurm.shards), shards=cost)
    return HoldRequest(purpose, slurm_text(""), 1, "", "naive", "")


def _cost(partition: Partition) -> int:
    return UNITS.cost(range(partition.placement.start, partition.placement.end))


def _paid_place(live: Collection[Partition], profile: str, shards: int) -> Partition | None:
    """Of those that the shards pay for, the one that closes the fewest others."""
    paid = (p for p in TABLE.possible(live) if p.profile == PROFILE[profile].id and _cost(p) <= shards)
    return min(paid, key=lambda p: len(TABLE.lost(live, p)), default=None)


@dataclass
class WithoutSlurm:
    """Pods in the order in which they came; whoever fits starts."""

    nodes: int
    _waiting: dict[int, str] = field(default_factory=dict)
    _live: dict[Gpu, dict[int, Partition]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._live = {(node, index): {} for node in node_names(self.nodes) for index in range(GPUS)}

    def arrive(self, pod: int, profile: str) -> None:
        self._waiting[pod] = profile

    def finish(self, pod: int) -> None:
        for live in self._live.values():
            live.pop(pod, None)

    def give_up(self, pod: int) -> None:
        del self._waiting[pod]

    def settle(self, now: float) -> Collection[int]:
        for pod, profile in list(self._waiting.items()):
            if (found := self._place(profile)) is not None:
                gpu, partition = found
                self._live[gpu][pod] = partition
                del self._waiting[pod]
        return [pod for live in self._live.values() for pod in live]

    def _place(self, profile: str) -> tuple[Gpu, Partition] | None:
        raise NotImplementedError


class FirstFit(WithoutSlurm):
    """As kube-scheduler does: the node with the least in use, there the first device that fits, as published."""

    def _place(self, profile: str) -> tuple[Gpu, Partition] | None:
        for gpu in sorted(self._live, key=lambda gpu: (self._used(gpu[0]), gpu)):
            if (found := first_fit(TABLE, self._live[gpu].values(), PROFILE[profile].id)) is not None:
                return gpu, found
        return None

    def _used(self, node: str) -> int:
        return sum(p.placement.size for i in range(GPUS) for p in self._live[node, i].values())


class FewestLost(WithoutSlurm):
    """The place on any GPU that closes the fewest others."""

    def _place(self, profile: str) -> tuple[Gpu, Partition] | None:
        ranked = ((len(TABLE.lost(self._live[gpu].values(), p)), gpu, p) for gpu, p in self._possible(profile))
        best = min(ranked, key=lambda found: found[:2], default=None)
        return None if best is None else best[1:]

    def _possible(self, profile: str) -> Iterator[tuple[Gpu, Partition]]:
        for gpu, live in self._live.items():
            if (found := fewest_lost(TABLE, live.values(), PROFILE[profile].id)) is not None:
                yield gpu, found
