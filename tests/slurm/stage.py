"""What crash and race tests need together: the bridge behind proxies, native jobs that watch, and words for both."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamig.errors import Unavailable
from dynamig.protocol.identity import JobIdentity, identity_of
from dynamig.slurm.gres import gpus
from lab.lab import Lab
from tests.e2e.cluster import NAMESPACE, Cluster, until
from tests.slurm.native import Look, NativeJobs, drained, violations
from tests.slurm.proxied_bridge import Compose, Process, Proxies, Running, Thread, proxies
from tests.slurm.witness import Witness

LIVING = frozenset({"PENDING", "RUNNING", "SUSPENDED"})
SLEEPS = "#!/bin/sh\nsleep 1000\n"
PATIENCE = 60.0
"""Seconds for what a fault may have delayed by a client's patience (15 s) a few times over."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A job of ours that has not ended."""

    job_id: int
    identity: JobIdentity
    state: str
    node: str


@dataclass(frozen=True, slots=True)
class Stage:
    lab: Lab
    cluster: Cluster
    proxies: Proxies
    bridge: Running
    native: NativeJobs

    # -- Slurm ---------------------------------------------------------------------------------------------------------

    def holds(self) -> list[Hold]:
        """Jobs of ours that have not ended, twins included."""
        found = []
        for job in self.lab.slurm_json("squeue")["jobs"]:
            identity = identity_of(job["admin_comment"])
            state = job["job_state"][0]
            if identity is not None and state in LIVING:
                found.append(Hold(job["job_id"], identity, state, job["nodes"]))
        return found

    def holds_of(self, pod: str) -> list[Hold]:
        uid = self.cluster.get("pod", pod)["metadata"]["uid"]
        return [h for h in self.holds() if h.identity.set_uid == uid]

    def hold_of(self, pod: str) -> Hold:
        """The one hold of the pod, once it is one that runs. Twins, and a hold lost, are cured within the patience."""

        def one() -> Hold:
            (hold,) = self.holds_of(pod)
            assert hold.state == "RUNNING"
            return hold

        return until(one, within=PATIENCE)

    def no_holds(self, within: float = PATIENCE) -> None:
        until(self._no_holds, within=within)

    def _no_holds(self) -> None:
        assert self.holds() == []

    @contextmanager
    def no_gpu_empty(self) -> Iterator[None]:
        """Native jobs have every GPU in the block that holds do not have."""
        jobs = [self.lab.submit(SLEEPS, f"--nodelist={n}", "--gres=gpu:1") for n in self.lab.nodes for _ in range(2)]
        try:
            until(self._no_gpu_empty, within=PATIENCE)
            yield
        finally:
            until(lambda: self.lab.slurm("scancel", *map(str, jobs)))

    def _no_gpu_empty(self) -> None:
        for node in self.lab.slurm_json("scontrol", "show", "nodes")["nodes"]:
            used = gpus(node["gres"], node["gres_used"])
            assert all(gpu.taken or gpu.used for gpu in used), node["gres_used"]

    # -- pods ----------------------------------------------------------------------------------------------------------

    def condition(self, pod: str) -> Mapping[str, Any]:
        return self.cluster.slurm_condition(pod)

    def let_go(self, *pods: str, grace_s: int = 1) -> None:
        """The pods are being deleted."""
        self.lab.kubectl("-n", NAMESPACE, "delete", "pod", *pods, f"--grace-period={grace_s}", "--wait=false")

    def gone(self, *pods: str, within: float = PATIENCE) -> None:
        """The pods are not there any more."""

        def none() -> None:
            assert self.lab.kubectl("-n", NAMESPACE, "get", "pod", *pods, "--ignore-not-found", "-o", "name") == ""

        until(none, within=within)


def each_has_one_hold(stage: Stage, pods: Sequence[str]) -> None:
    """These pods, and no others, are paid for, each by one job that runs."""
    of_pods = [stage.cluster.get("pod", pod)["metadata"]["uid"] for pod in pods]
    seen = [(hold.identity.set_uid, hold.state) for hold in stage.holds()]
    assert sorted(seen) == sorted((uid, "RUNNING") for uid in of_pods)


@dataclass(frozen=True, slots=True)
class Findings:
    """What must not be: looks of native jobs that found an instance of ours, and verified claims that overlap."""

    looks: tuple[Look, ...]
    overlaps: frozenset[str]


@contextmanager
def staged(lab: Lab, cluster: Cluster, compose: Compose | None = None) -> Iterator[Stage]:
    """At the end of the block no fault is left, everything comes to its end, and nothing was seen that must not be.

    `compose`: of a bridge of this process; without it the program itself runs."""
    findings: list[Findings] = []
    with watched(lab, cluster, compose, findings.append) as stage:
        yield stage
    assert findings == [Findings((), frozenset())], findings


@contextmanager
def watched(lab: Lab, cluster: Cluster, compose: Compose | None, tell: Callable[[Findings], None]) -> Iterator[Stage]:
    """The same, with what was seen told and not judged: for tests that show what a fence is for. The lab's own bridge
    is away in the block."""
    lab.stop("bridge")
    native, witness = NativeJobs(lab), Witness(lab)
    try:
        with proxies(lab) as between:
            bridge = Process(between) if compose is None else Thread(between, compose)
            bridge.start()
            try:
                native.start()
                witness.start()
                yield Stage(lab, cluster, between, bridge, native)
                between.calm()
                _clear(lab)
                looks = native.finish()
                assert drained(lab) == {}, "a prolog has failed: nodes that Slurm does not use any more"
            finally:
                bridge.stop()
        witness.stop()
        assert witness.looks > 0
        tell(Findings(tuple(violations(looks)), witness.overlaps))
    finally:
        native.stop()
        witness.stop()
        lab.start("bridge")


@contextmanager
def older_state(lab: Lab) -> Iterator[Callable[[], None]]:
    """A function that throws slurmctld back, by kill -9, to the state that it had saved at the start of the block."""
    state = lab.layout.control / "slurm/state"
    with tempfile.TemporaryDirectory(dir=state.parent) as folder:
        saved = Path(folder) / "state"
        shutil.copytree(state, saved)

        def crash() -> None:
            lab.kill("slurmctld")
            for file in [path for path in state.iterdir() if path.is_file()]:
                if (saved / file.name).exists():
                    shutil.copyfile(saved / file.name, file)  # keeps owner and mode
                else:
                    file.unlink()
            lab.start("slurmctld")

        yield crash


def _clear(lab: Lab) -> None:
    """Nothing of pods, claims or holds is left."""
    for kind in ("pods", "resourceclaims", "resourceclaimtemplates"):
        lab.kubectl("-n", NAMESPACE, "delete", kind, "--all", "--grace-period=1", "--wait=true", "--timeout=100s")
    until(lambda: _nothing_of_ours(lab), within=PATIENCE)


def _nothing_of_ours(lab: Lab) -> None:
    jobs = lab.slurm_json("squeue")["jobs"]
    ours = [j["job_id"] for j in jobs if identity_of(j["admin_comment"]) and j["job_state"][0] in LIVING]
    if ours:
        raise Unavailable("HOLDS_LEFT", f"holds of nobody: {ours}")
