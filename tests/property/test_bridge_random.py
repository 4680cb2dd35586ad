"""The bridge against a world that does what it likes: pods come and go, Slurm ends, loses and brings back jobs, writes
conflict, nodes fall silent. Nothing overlaps at any time, every step is one of the lifecycle's, and in the end nothing
is left."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations

import pytest

from dynamig.bridge.actions import Action, Commit
from dynamig.bridge.decide import one_job
from dynamig.bridge.sets import claim_sets
from dynamig.errors import Conflict
from dynamig.protocol import names
from dynamig.protocol.hold_lifecycle import NEXT, HoldState
from dynamig.protocol.identity import Role
from dynamig.protocol.outages import Outage
from dynamig.protocol.slurm_jobs import Ending, JobState, SlurmNodeName
from tests.unit.bridge.stage import NODES, Stage, gpu, offers, wants

RUNS = int(os.environ.get("DYNAMIG_BRIDGE_RUNS", "25"))
STEPS = 60
PROFILES = ("1g.10gb", "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
WRITES = ("note", "allocate", "deallocate", "ungate", "let_go")


class WatchedStage(Stage):
    """Checks every action's effect on the lifecycle of every set."""

    def run(self, action: Action) -> None:
        before = self.hold_states()
        if isinstance(action, Commit):
            assert action.choice.cost <= self.slurm.requests[action.job.key.job_id].purpose.shards, "it is not paid for"
        try:
            super().run(action)
        finally:
            for uid, state in self.hold_states().items():
                was = before.get(uid, state)
                assert state is was or state in NEXT[was], f"{type(action).__name__}: {was.value} -> {state.value}"

    def hold_states(self) -> Mapping[str, HoldState]:
        if self.slurm.silent:
            return {}
        world = self.world()
        return {s.uid: s.state(one_job(world.holds_of(s.uid), s)[0]) for s in claim_sets(world)}

    def look_at_it(self) -> None:
        """One look, if Slurm answers; then everybody else's turn."""
        if not self.slurm.silent:
            self.look()
        self.sets.schedule()
        self._drivers()
        self.check()

    def check(self) -> None:
        """I1: no memory slice of a GPU in two allocated claims."""
        taken: list[tuple[str, frozenset[tuple[str, int]]]] = []
        for name, claim in self.sets.claims.items():
            results = (claim["status"].get("allocation") or {}).get("devices", {}).get("results", ())
            taken.append((name, frozenset().union(*(slices_of(r["pool"], r["device"]) for r in results))))
        for (a, mine), (b, theirs) in combinations(taken, 2):
            assert not mine & theirs, f"claims {a} and {b} share memory slices"


def slices_of(pool: str, device: str) -> frozenset[tuple[str, int]]:
    found = next(p for p in offers().values() if p.name == pool).device(device)
    at = found.partition.placement if found.partition is not None else None
    return frozenset((pool, s) for s in (range(at.start, at.end) if at else range(8)))


class Chaos:
    """Random things that happen to a stage."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stage = WatchedStage()
        self.made = 0
        self.lost: list[int] = []
        self.his: dict[SlurmNodeName, str] = {}
        self.things: tuple[tuple[int, Callable[[], None]], ...] = (
            (6, self.create),
            (3, self.finish),
            (1, self.delete),
            (1, self.force_delete),
            (5, self.drivers_let_go),
            (2, self.native_starts),
            (2, self.native_ends),
            (1, self.scancel),
            (1, self.node_fails),
            (1, self.owner_holds),
            (1, self.owner_releases),
            (1, self.operator_changes),
            (1, self.forget),
            (1, self.comes_back),
            (1, self.unfit),
            (1, self.clear),
            (1, self.conflict),
            (1, self.silence),
            (1, self.time_passes),
            (1, self.gpu_falls_silent),
            (2, self.gpu_answers),
            (1, self.administrator_closes),
            (2, self.administrator_resumes),
        )

    def step(self) -> None:
        weights = [weight for weight, _ in self.things]
        ((_, thing),) = self.random.choices(self.things, weights)
        thing()
        for _ in range(self.random.randint(1, 4)):
            self.stage.look_at_it()
        reasons = {**self.stage.slurm.drained, **self.stage.slurm.downed}
        assert self.his.items() <= reasons.items(), "what an administrator closed stays closed, for his reason"

    def create(self) -> None:
        self.made += 1
        claims = [wants(self.random.choice(PROFILES)) for _ in range(self.random.choice((1, 1, 1, 2)))]
        uses = []
        if self.random.random() < 0.2:
            if "shared" not in self.stage.sets.claims:
                self.stage.sets.create_claim("shared", wants("1g.10gb"))
            uses = ["shared"]
        self.stage.sets.create_pod(f"p{self.made}", *claims, uses=uses)

    def finish(self) -> None:
        if running := [n for n, p in self.stage.sets.pods.items() if p["status"]["phase"] == "Running"]:
            self.stage.sets.finish_pod(self.random.choice(running))

    def delete(self) -> None:
        if pods := list(self.stage.sets.pods.values()):
            self.random.choice(pods)["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    def force_delete(self) -> None:
        if pods := list(self.stage.sets.pods):
            self.stage.sets.force_delete_pod(self.random.choice(pods))

    def drivers_let_go(self) -> None:
        """The kubelet ends what is deleted; drivers let go of what is over, and report so, each in its own time."""
        for name, pod in list(self.stage.sets.pods.items()):
            if pod["metadata"].get("deletionTimestamp") or pod["status"]["phase"] == "Succeeded":
                if pod["spec"].get("nodeName") or pod["status"]["phase"] == "Succeeded":
                    self.stage.sets.finish_pod(name)
                self.stage.sets.force_delete_pod(name)
        self.stage.sets.drivers_let_go(set(NODES))
        for reported in self.stage.driver_claims.values():
            if self.random.random() < 0.7:
                reported &= self.allocated()

    def allocated(self) -> set[str]:
        """UIDs of claims that have devices."""
        return {c["metadata"]["uid"] for c in self.stage.sets.claims.values() if c["status"].get("allocation")}

    def native_starts(self) -> None:
        self.stage.slurm.start_native(SlurmNodeName(self.random.choice(NODES)), self.random.randrange(2))

    def native_ends(self) -> None:
        for node, index in list(self.stage.slurm.native)[:2]:
            self.stage.slurm.end_native(node, index)

    def living(self) -> list[int]:
        jobs = self.stage.slurm.jobs.values()
        return [j.key.job_id for j in jobs if j.state is JobState.RUNNING and j.identity.role is Role.HOLD]

    def scancel(self) -> None:
        if jobs := self.living():
            ending = self.random.choice((Ending.CANCELLED, Ending.EXPIRED, Ending.PREEMPTED))
            self.stage.slurm.end(self.random.choice(jobs), ending)

    def node_fails(self) -> None:
        if jobs := self.living():
            self.stage.slurm.end(self.random.choice(jobs), Ending.NODE_FAIL)

    def pending(self) -> list[int]:
        return [j.key.job_id for j in self.stage.slurm.jobs.values() if j.state is JobState.PENDING]

    def owner_holds(self) -> None:
        if jobs := self.pending():
            self.stage.slurm.hold(self.random.choice(jobs))

    def owner_releases(self) -> None:
        for job in [j for j in self.stage.slurm.jobs.values() if j.held]:
            self.stage.slurm.release(job.key.job_id)

    def operator_changes(self) -> None:
        if jobs := self.pending():
            job = self.random.choice(jobs)
            self.stage.slurm.change(job, max(self.stage.slurm.requests[job].purpose.shards - 1, 0))

    def forget(self) -> None:
        """slurmctld is killed and started, and has lost a job, which may come back."""
        if jobs := self.living():
            lost = self.random.choice(jobs)
            self.kept = self.stage.slurm.jobs[lost]
            self.stage.slurm.forget(lost)
            self.lost.append(lost)
            self.stage.slurm.boot = self.stage.now

    def comes_back(self) -> None:
        """An ended job runs again after a crash of slurmctld, if nobody has its shards meanwhile."""
        ended = [j for j in self.stage.slurm.jobs.values() if j.state is JobState.ENDED and j.gpu is not None]
        if ended and (job := self.random.choice(ended)).gpu is not None and job.node is not None:
            node = next(n for n in self.stage.slurm.nodes() if n.name == job.node)
            its = next(g for g in node.gpus if g.index == job.gpu.index)
            if its.free >= job.gpu.shards:
                self.stage.slurm.jobs[job.key.job_id] = replace(job, state=JobState.RUNNING, ending=None)

    def unfit(self) -> None:
        """From now on kube-scheduler finds one node, both, or none again unfit for a pod."""
        if pods := list(self.stage.sets.pods):
            self.stage.sets.unfit[self.random.choice(pods)] = NODES[self.random.randrange(3) : self.random.randrange(3)]

    def clear(self) -> None:
        """kube-scheduler clears the allocation of one claim of a pod that it cannot place."""
        if waiting := [p for p in self.stage.sets.pods.values() if not p["spec"].get("nodeName")]:
            pod = self.random.choice(waiting)
            claims = [c for c in self.stage.sets.claims_of(pod) if not c["status"].get("reservedFor")]
            if claims and not pod["spec"]["schedulingGates"]:
                self.stage.sets.clear(self.random.choice(claims)["metadata"]["name"])

    def conflict(self) -> None:
        self.stage.sets.faults.fail(self.random.choice(WRITES), Conflict("CONFLICT", "injected"), nth=1)

    def silence(self) -> None:
        self.stage.slurm.silent = True
        for _ in range(3):
            self.stage.look_at_it()
        self.stage.slurm.silent = False

    def time_passes(self) -> None:
        self.stage.now += self.random.choice((5.0, 60.0, 400.0))

    def gpu_falls_silent(self) -> None:
        lost = gpu(self.random.choice(NODES), self.random.randrange(2))
        since = self.stage.outages[lost].since if lost in self.stage.outages else int(self.stage.now)
        self.stage.outages[lost] = Outage("GPU_LOST", since)

    def gpu_answers(self) -> None:
        """It is watched from now on, or has been for long enough."""
        if out := sorted(self.stage.outages):
            found = self.random.choice(out)
            outage = self.stage.outages.pop(found)
            if outage.silent:
                self.stage.outages[found] = replace(outage, until=int(self.stage.now) + 300)

    def administrator_closes(self) -> None:
        node, reason = SlurmNodeName(self.random.choice(NODES)), f"ticket {self.random.randrange(100)}"
        if node not in self.stage.slurm.downed:
            self.his[node] = reason
            self.random.choice((self.stage.slurm.drained, self.stage.slurm.downed))[node] = reason

    def administrator_resumes(self) -> None:
        node = SlurmNodeName(self.random.choice(NODES))
        self.his.pop(node, None)
        self.stage.slurm.resume(node)

    def wind_up(self) -> None:
        """Everything ends, and everybody does his part until there is nothing more to do."""
        self.stage.slurm.silent = False
        self.stage.outages.clear()
        for name in list(self.his):
            self.stage.slurm.resume(name)
        self.owner_releases()
        for node, index in list(self.stage.slurm.native):
            self.stage.slurm.end_native(node, index)
        for pod in self.stage.sets.pods.values():
            pod["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
        for _ in range(12):
            self.drivers_let_go()
            for reported in self.stage.driver_claims.values():
                reported &= {
                    c["metadata"]["uid"] for c in self.stage.sets.claims.values() if c["status"].get("allocation")
                }
            for _ in range(3):
                self.stage.look_at_it()


@pytest.mark.parametrize("seed", range(RUNS))
def test_nothing_overlaps_and_nothing_is_left(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(STEPS):
        chaos.step()
    chaos.wind_up()
    held = [n for n, c in chaos.stage.sets.claims.items() if names.HELD in c["metadata"]["finalizers"]]
    assert held == []
    assert [j.key.job_id for j in chaos.stage.slurm.jobs.values() if j.living] == []
    assert chaos.stage.slurm.drained == {}
    assert all(names.EXTRA_KEY not in extra for extra in chaos.stage.slurm.extra.values())


@pytest.mark.parametrize("seed", range(5))
def test_what_can_be_served_is_served(seed: int) -> None:
    """After the storm every pod of the smallest profile runs: no place is lost."""
    chaos = Chaos(1000 + seed)
    for _ in range(STEPS):
        chaos.step()
    chaos.wind_up()
    for n in range(28):
        chaos.stage.sets.create_pod(f"last{n}", wants("1g.10gb"))
    for _ in range(40):
        chaos.stage.look_at_it()
    waiting = [n for n in range(28) if not chaos.stage.sets.pods[f"last{n}"]["spec"].get("nodeName")]
    assert waiting == []
