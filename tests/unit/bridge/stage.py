"""A cluster for the bridge in memory: two nodes of two H100 each, Slurm with 7 shards per GPU, pods and claims."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dynamig.bridge.accounts import Accounts, Terms
from dynamig.bridge.act import Hands
from dynamig.bridge.actions import Action, Decision, Tell
from dynamig.bridge.decide import decide
from dynamig.bridge.errands import Errands
from dynamig.bridge.failures import Failures
from dynamig.bridge.fits import UNMARKED, NodeMarks
from dynamig.bridge.health import LookFailed
from dynamig.bridge.plan import Choice, NoChoice, Pick
from dynamig.bridge.sets import ClaimSet
from dynamig.bridge.world import NodeView, World, read_pod, read_set_claim
from dynamig.dra import Pool, PublishedPool, read_pools, resource_slices
from dynamig.driver.catalog import build
from dynamig.driver.config import GpuPolicies
from dynamig.mig import GpuUuid, Partition, Table, fewest_lost
from dynamig.protocol import names
from dynamig.protocol.identity import JobIdentity, Purpose, Role
from dynamig.protocol.outages import Outage
from dynamig.protocol.shards import units_of_geometry
from dynamig.protocol.slurm_jobs import TOP_PRIORITY, HoldRequest, JobState, SlurmNodeName
from dynamig.protocol.slurm_text import slurm_text
from dynamig.testing.fake_sets import FakeSets
from dynamig.testing.fake_slurm import FakeSlurm
from tests.unit.driver.bench_node import h100
from tests.unit.mig.models import H100

TABLE = Table(H100)
UNITS = units_of_geometry(H100)
NODES = ("n1", "n2")
EVERYBODY = Accounts({}, Terms("dynamig", "", ("all",)))


def gpu(node: str, index: int) -> GpuUuid:
    return GpuUuid(f"GPU-{node}-{index}")


def silent(heard: str = "GPU_LOST", since: int = 900) -> Outage:
    return Outage(heard, since)


def wants(profile: str) -> dict[str, Any]:
    return {"profile": profile}


@dataclass
class Stage:
    """`driver_claims`: what each node's driver reports as living or intended; `slurm_names`, `maps`: of nodes that are
    called otherwise in Slurm, or whose GPUs have other indices there; `leads`: whether the bridge does; `meanwhile`:
    what happens elsewhere just before an action; `done`: the bridge's actions, and what came of each."""

    sets: FakeSets = field(default_factory=FakeSets)
    slurm: FakeSlurm = field(default_factory=lambda: FakeSlurm({SlurmNodeName(n): (UNITS.count,) * 2 for n in NODES}))
    now: float = 1000.0
    driver_claims: dict[str, set[str]] = field(default_factory=lambda: {n: set() for n in NODES})
    not_ready: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    closed: set[GpuUuid] = field(default_factory=set)
    outages: dict[GpuUuid, Outage] = field(default_factory=dict)
    slurm_names: dict[str, SlurmNodeName] = field(default_factory=dict)
    maps: dict[str, Mapping[int, GpuUuid]] = field(default_factory=dict)
    marks: dict[str, NodeMarks] = field(default_factory=dict)
    accounts: Accounts = EVERYBODY
    leads: bool = True
    meanwhile: Callable[[Action], None] = lambda action: None
    done: list[tuple[Action, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sets.now = self.now
        self.slurm.clock = lambda: self.now
        self.hands = Hands(self.sets, self.slurm, names.DRIVER_NAME, lambda: self.now)
        self.failures = Failures(lambda: self.now)
        self.errands = Errands(
            lambda action: self.run(action),
            self.failures,
            lambda: self.leads,
            lambda action, outcome: self.done.append((action, outcome)),
        )

    def world(self) -> World:
        pods = {n: read_pod(p, self.accounts) for n, p in self.sets.pods.items()}
        claims = [read_set_claim(c, names.DRIVER_NAME) for c in self.sets.claims.values()]
        return World(
            now=self.now,
            driver=names.DRIVER_NAME,
            pods={p.ref.uid: p for p in pods.values()},
            claims={c.view.ref.uid: c for c in claims},
            pools=published(),
            classes={},
            nodes={n: self._node(n) for n in NODES},
            jobs=self.slurm.ours(),
            slurm_nodes={n.name: n for n in self.slurm.nodes()},
            slurm_started=self.slurm.started(),
        )

    def _node(self, name: str) -> NodeView:
        ready = name not in self.not_ready | self.gone
        return NodeView(
            name=name,
            slurm=self.slurm_names.get(name, SlurmNodeName(name)),
            fresh=ready,
            ready=ready,
            why_not="" if ready else "its driver does not report",
            claims=frozenset(self.driver_claims[name]),
            reported=self.now if ready else 0.0,
            map=self.maps.get(name, {i: gpu(name, i) for i in range(2)}),
            gone=name in self.gone,
            marks=self.marks.get(name, UNMARKED),
            outages=dict(self.outages),
        )

    def look(self) -> int:
        """One look of the bridge; how many actions it took, words to pods apart."""
        self.now += 1
        self.sets.now = self.now
        before = len(self.done)
        with suppress(LookFailed):
            self.errands.carry_out(self.decisions())
        return sum(not isinstance(action, Tell) for action, _ in self.done[before:])

    def decisions(self) -> Iterator[Decision]:
        return decide(self.world(), lambda world: TableChooser(world, self.closed), self.failures.setback)

    def run(self, action: Action) -> None:
        self.meanwhile(action)
        self.hands.run(action)

    def look_for(self, seconds: float) -> None:
        """Looks, one a second."""
        for _ in range(round(seconds)):
            self.look()

    def pass_time(self, seconds: float) -> None:
        """One look a second, with kube-scheduler and drivers doing their parts."""
        for _ in range(round(seconds)):
            self.look_with_everybody()

    def settle(self, looks: int = 20) -> None:
        """The same until there is nothing more to do."""
        for _ in range(looks):
            if not self.look_with_everybody():
                return
        raise AssertionError("the bridge does not come to rest")

    def look_with_everybody(self) -> int:
        """One look; then kube-scheduler's and the drivers' turn. How many actions it took."""
        took = self.look()
        self.sets.schedule()
        self._drivers()
        return took

    def _drivers(self) -> None:
        """Each node's driver has what is bound to it on its hardware."""
        for node in NODES:
            bound = [p for p in self.sets.pods.values() if p["spec"].get("nodeName") == node]
            for pod in bound:
                if pod["status"]["phase"] == "Running":
                    self.driver_claims[node] |= {c["metadata"]["uid"] for c in self.sets.claims_of(pod)}

    def finish(self, pod: str) -> None:
        """The pod succeeds, its node's driver sees the hardware empty and says so."""
        self.sets.finish_pod(pod)
        gone = {c["metadata"]["uid"] for c in self.sets.claims_of(self.sets.pods[pod])}
        self.sets.driver_lets_go(pod)
        for reported in self.driver_claims.values():
            reported -= gone

    def unschedule(self, pod: str) -> None:
        """kube-scheduler finds no node for a pod, and clears the allocation of its claims."""
        for claim in self.sets.claims_of(self.sets.pods[pod]):
            self.sets.clear(claim["metadata"]["name"])

    def devices(self, pod: str) -> list[tuple[str, str]]:
        found = []
        for claim in self.sets.claims_of(self.sets.pods[pod]):
            allocation = claim["status"].get("allocation") or {}
            found += [(r["pool"], r["device"]) for r in allocation.get("devices", {}).get("results", ())]
        return found

    def states(self) -> dict[str, JobState]:
        """State of each set's latest job."""
        return {j.identity.set_uid: j.state for j in self.slurm.jobs.values()}

    def take_all_gpus(self) -> None:
        """Native jobs have every GPU."""
        for node in NODES:
            for index in range(2):
                assert self.slurm.start_native(SlurmNodeName(node), index)

    def foreign_on(self, node: str, index: int) -> None:
        """From now on a stranger's instances leave no place on the GPU; Slurm knows nothing of it."""
        self.closed.add(gpu(node, index))

    def leave_ballast(self, node: str, index: int, shards: int) -> None:
        """What a bridge leaves that dies between ballast and hold."""
        identity = JobIdentity("pod-of-nobody", 1, Role.BALLAST, index)
        purpose = Purpose(identity, "ns/nobody", nodes=(node,), shards=shards)
        self.slurm.submit(HoldRequest(purpose, slurm_text(""), 1, "", "dynamig", "", priority=TOP_PRIORITY))

    def job_states(self) -> list[str]:
        return [j.state.value for j in self.slurm.jobs.values()]


@functools.cache
def offers() -> Mapping[GpuUuid, Pool]:
    """The pools that the nodes' drivers would publish."""
    found: dict[GpuUuid, Pool] = {}
    for node in NODES:
        readings = [h100(index, uuid=gpu(node, index)) for index in range(2)]
        catalog = build(node, readings, {r.uuid: r.minor for r in readings}, GpuPolicies())
        found |= {o.reading.uuid: o.pool for o in catalog.offers.values()}
    return found


@functools.cache
def published() -> Mapping[GpuUuid, PublishedPool]:
    found: dict[GpuUuid, PublishedPool] = {}
    for uuid, pool in offers().items():
        node = pool.name.split("/")[0]
        (found[uuid],) = read_pools(resource_slices(pool, driver=names.DRIVER_NAME, node=node, generation=1))
    return found


def _devices(pick: Pick) -> Mapping[str, Any]:
    """Of a claim with one device."""
    chosen = {"request": pick.request, "driver": names.DRIVER_NAME, "pool": pick.pool, "device": pick.device}
    return {"results": [chosen]}


class TableChooser:
    """Reads the wanted profile from the test's claim specs; the real one evaluates selectors."""

    def __init__(self, world: World, closed: Collection[GpuUuid]) -> None:
        self._world = world
        self._closed = closed

    def __call__(self, of: ClaimSet, gpu: GpuUuid, *, most: int | None = None) -> Choice | NoChoice:
        return self._choose(of, gpu, self._live(of, gpu), most)

    def when_empty(self, of: ClaimSet, gpu: GpuUuid) -> Choice | NoChoice:
        return self._choose(of, gpu, [], None)

    def _choose(self, of: ClaimSet, gpu: GpuUuid, live: list[Partition], most: int | None) -> Choice | NoChoice:
        if gpu in self._closed:
            return NoChoice("instances that nobody can be shown to own are on it")
        pool = offers()[gpu]
        picks, total, lost, now = [], 0, 0, list(live)
        for claim in of.claims:
            profile = next((p for p in H100.profiles if p.name == claim.body["spec"]["profile"]), None)
            if profile is None:
                return NoChoice(f"no device has profile {claim.body['spec']['profile']}")
            best = fewest_lost(TABLE, now, profile.id)
            if best is None:
                return NoChoice(f"{profile.name} does not fit beside {len(now)} others")
            lost += len(TABLE.lost(now, best))
            total += UNITS.cost(range(best.placement.start, best.placement.end))
            device = pool.device_for(best)
            assert device is not None
            picks.append(Pick(claim.view.ref.uid, "r", pool.name, device.name))
            now.append(best)
        if most is not None and total > most:
            return NoChoice(f"costs {total} shards, {most} are held or free")
        return Choice(gpu, tuple(picks), total, lost, {p.claim_uid: _devices(p) for p in picks})

    def _live(self, of: ClaimSet, gpu: GpuUuid) -> list[Partition]:
        """What other claims have, allocated, still noted or just promised, on the GPU."""
        mine = {c.view.ref.uid for c in of.claims}
        pool = offers()[gpu]
        held: list[str] = []
        for claim in self._world.claims.values():
            if claim.view.ref.uid in mine:
                continue
            devices = [(d.pool, d.device) for d in claim.view.allocated]
            noted = claim.note.devices if claim.note and claim.view.held else ()
            promised = self._world.promised.get(claim.view.ref.uid, ())
            devices = devices or [(d.pool, d.device) for d in (*noted, *promised)]
            held += [d for p, d in devices if p == pool.name]
        partitions = [pool.device(d).partition for d in held]
        return [p for p in partitions if p is not None]
