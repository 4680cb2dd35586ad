"""A cluster for the bridge in memory: nodes of eight H100 as drivers publish them, Slurm in memory, and in between the
bridge's own world, decisions and hands. Only kube-scheduler, kubelets and drivers are played here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

from dynamig.bridge import look
from dynamig.bridge.accounts import Accounts, Terms
from dynamig.bridge.act import Hands
from dynamig.bridge.actions import Action, Tell
from dynamig.bridge.choose import WorldChooser
from dynamig.bridge.decide import decide
from dynamig.bridge.world import World
from dynamig.dra import resource_slices
from dynamig.driver.catalog import build
from dynamig.driver.config import GpuPolicies
from dynamig.errors import DynamigError, Unavailable
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.device_map import Given, make_map
from dynamig.protocol.node_report import Report
from dynamig.protocol.shards import units_of_geometry
from dynamig.protocol.slurm_jobs import SlurmNodeName
from dynamig.protocol.times import to_rfc3339
from dynamig.testing.fake_sets import FakeSets
from dynamig.testing.fake_slurm import FakeSlurm
from tests.unit.driver.bench_node import h100
from tests.unit.mig.models import H100

Object = dict[str, Any]
GPUS = 8
UNITS = units_of_geometry(H100)
A = f"device.attributes['{names.DRIVER_NAME}']"
MIG_CLASS = "mig.nvidia.com"
CLASS: Object = {
    "metadata": {"name": MIG_CLASS},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{names.DRIVER_NAME}' && {A}.type == 'mig'"}}]},
}
NAMESPACES = ({"metadata": {"name": "ns", "labels": {names.SCHEDULER_LABEL: "slurm"}}},)
EVERYBODY = Accounts({}, Terms("dynamig", "", ("all",)))
A_LOOK = 0.1
"""Seconds that one look takes on the cluster's clock."""

IDS = 1000
"""Pods and jobs of one node, at most."""

LOOKS = 30
"""After one change of the cluster; more of them and the bridge does not come to rest."""


def wants(profile: str) -> Object:
    """The spec of a claim for one partition of a profile."""
    selector = {"cel": {"expression": f"{A}.profile == '{profile}'"}}
    request = {"name": "mig", "exactly": {"deviceClassName": MIG_CLASS, "selectors": [selector]}}
    return {"devices": {"requests": [request]}}


def node_names(nodes: int) -> list[str]:
    return [f"node-{i:03d}" for i in range(nodes)]


@dataclass(frozen=True)
class Published:
    """What one node's driver says: its slices, and the report in its Lease without claims."""

    slices: tuple[Object, ...]
    report: Report


@cache
def published(node: str) -> Published:
    readings = [h100(i, uuid=GpuUuid(f"GPU-{node}-{i}")) for i in range(GPUS)]
    pools = [o.pool for o in build(node, readings, {r.uuid: r.minor for r in readings}, GpuPolicies()).offers.values()]
    slices = (s for p in pools for s in resource_slices(p, driver=names.DRIVER_NAME, node=node, generation=1))
    return Published(tuple(slices), Report("boot", 1, True, (), make_map(readings, Given(node))))


@dataclass
class FakeCluster:
    """Its slices are objects of its own, as a watch would have listed them. `first_id`: of pods and jobs;
    `driver_claims`: by node, UIDs of claims that its driver has on the hardware."""

    nodes: Sequence[str]
    first_id: int = 1
    sets: FakeSets = field(default_factory=FakeSets)
    now: float = 1000.0

    def __post_init__(self) -> None:
        shards = {SlurmNodeName(n): (UNITS.count,) * GPUS for n in self.nodes}
        self.slurm = FakeSlurm(shards, cpus=1024, _ids=count(self.first_id))
        self._numbers = count(self.first_id)
        self.slurm.clock = lambda: self.now
        self.hands = Hands(self.sets, self.slurm, names.DRIVER_NAME, lambda: self.now)
        self.driver_claims: dict[str, set[str]] = {n: set() for n in self.nodes}
        self._slices = [deepcopy(s) for n in self.nodes for s in published(n).slices]

    @classmethod
    def of(cls, nodes: int) -> FakeCluster:
        return cls(node_names(nodes))

    def world(self) -> World:
        return look.world(**self.seen())

    def seen(self) -> Object:
        """What the bridge's service has from its watches and from Slurm when it builds its world."""
        return {
            "now": self.now,
            "driver": names.DRIVER_NAME,
            "pods": list(self.sets.pods.values()),
            "namespaces": NAMESPACES,
            "claims": list(self.sets.claims.values()),
            "slices": self._slices,
            "classes": (CLASS,),
            "leases": {names.lease_name(n): self._lease(n) for n in self.nodes},
            "nodes": [{"metadata": {"name": n}, "spec": {}} for n in self.nodes],
            "accounts": EVERYBODY,
            "jobs": self.slurm.ours(),
            "slurm_nodes": self.slurm.nodes(),
            "slurm_started": self.slurm.started(),
        }

    def _lease(self, node: str) -> Object:
        report = published(node).report
        told = Report(report.boot_id, 1, True, tuple(sorted(self.driver_claims[node])), report.device_map)
        return {
            "metadata": {"name": names.lease_name(node), "annotations": {names.REPORT: told.to_json()}},
            "spec": {"renewTime": to_rfc3339(self.now)},
        }

    def decided(self, world: World) -> Iterator[tuple[Action, ...]]:
        return (found.actions for found in decide(world, lambda w: WorldChooser(w, names.DRIVER_NAME)))

    def look(self) -> tuple[Action, ...]:
        """One look of the bridge; what it did, words to pods apart."""
        self.now += A_LOOK
        self.sets.now = self.now
        did: list[Action] = []
        for actions in self.decided(self.world()):
            did += self._carry_out(actions)
        return tuple(did)

    def _carry_out(self, actions: Sequence[Action]) -> Iterator[Action]:
        """As the service does: what fails ends what was decided for the same set."""
        for action in actions:
            try:
                self.hands.run(action)
            except DynamigError:
                return
            if not isinstance(action, Tell):
                yield action

    def settle(self) -> tuple[Action, ...]:
        """Looks until there is nothing more to do; everything that was done."""
        did: list[Action] = []
        for _ in range(LOOKS):
            latest = self.look()
            self.others()
            did += latest
            if not latest:
                return tuple(did)
        raise Unavailable("NO_REST", f"the bridge did not come to rest in {LOOKS} looks", "")

    def others(self) -> None:
        """kube-scheduler binds what may run, and drivers have it on their hardware."""
        self.sets.schedule()
        for pod in self.sets.pods.values():
            node = pod["spec"].get("nodeName")
            if node is not None and pod["status"]["phase"] == "Running":
                self.driver_claims[node] |= {c["metadata"]["uid"] for c in self.sets.claims_of(pod)}

    def running(self, pod: str) -> bool:
        return bool(self.sets.pods[pod]["status"]["phase"] == "Running")

    def finish(self, pod: str) -> None:
        """The pod is over, its hardware empty, and its node's driver has said so; then it is deleted."""
        gone = {c["metadata"]["uid"] for c in self.sets.claims_of(self.sets.pods[pod])}
        node = self.sets.pods[pod]["spec"]["nodeName"]
        self.sets.finish_pod(pod)
        self.sets.driver_lets_go(pod)
        self.driver_claims[node] -= gone
        del self.sets.pods[pod]

    def give_up(self, pod: str) -> None:
        """Its owner deletes a pod that has waited too long."""
        self.sets.force_delete_pod(pod)

    def arrive(self, profiles: Iterable[str]) -> None:
        """A new pod for each profile."""
        for profile in profiles:
            self.arrive_as(f"p{next(self._numbers):06d}", profile)

    def arrive_as(self, pod: str, profile: str) -> None:
        self.sets.create_pod(pod, wants(profile))

    def forget_ended(self) -> None:
        """As slurmctld does after MinJobAge."""
        for number in [n for n, job in self.slurm.jobs.items() if not job.living]:
            self.slurm.forget(number)
            del self.slurm.requests[number]


def joined(parts: Sequence[FakeCluster]) -> FakeCluster:
    """One cluster of clusters that were made with ids of their own (`first_id`)."""
    whole = FakeCluster([n for part in parts for n in part.nodes], first_id=max(p.first_id for p in parts) + IDS)
    for part in parts:
        whole.sets.pods |= part.sets.pods
        whole.sets.claims |= part.sets.claims
        whole.slurm.jobs |= part.slurm.jobs
        whole.slurm.requests |= part.slurm.requests
        whole.slurm.extra |= part.slurm.extra
        whole.driver_claims |= part.driver_claims
        whole.now = max(whole.now, part.now)
    return whole
