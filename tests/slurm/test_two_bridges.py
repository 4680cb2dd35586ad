"""Two bridges beside each other: one acts, and the other takes its place, whatever becomes of the first."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from dynamig.protocol import names
from dynamig.protocol.identity import Role, identity_of
from lab import bridge
from lab.lab import Lab
from tests.e2e.cluster import Cluster, mig, until
from tests.slurm.second_bridge import SecondBridge, ask, leads

FOLLOWED_S = 60.0
"""Within which the lead must have changed: 15 s for the Lease and 2 for the next look at it, on a slow machine."""


@pytest.fixture
def second(lab: Lab, cluster: Cluster) -> Iterator[SecondBridge]:
    """The lab's bridge leads, this one stands by and is ready."""
    until(lambda: _leads(lab.spec.ports.bridge), within=FOLLOWED_S)
    with SecondBridge(lab) as started:
        until(lambda: _ready(started.port))
        assert not leads(started.port)
        yield started


def test_a_leader_that_is_killed_is_followed_and_pods_get_their_slices(
    lab: Lab, cluster: Cluster, second: SecondBridge
) -> None:
    cluster.pod("before", mig(profile="1g.10gb"))
    cluster.running("before")
    lab.kill("bridge", signal.SIGKILL)
    cluster.pod("after", mig(profile="2g.20gb"))
    until(lambda: _leads(second.port), within=FOLLOWED_S)
    cluster.running("after")
    held_once(lab, cluster, "before", "after")
    assert lab.kubectl_json("-n", names.NAMESPACE, "get", "lease", names.BRIDGE_LEASE)["spec"]["leaseTransitions"] > 0


def test_a_leader_that_stops_cleanly_is_followed_at_once(lab: Lab, cluster: Cluster, second: SecondBridge) -> None:
    lab.stop("bridge")
    lease = lab.kubectl_json("-n", names.NAMESPACE, "get", "lease", names.BRIDGE_LEASE)["spec"]
    assert lease["leaseDurationSeconds"] == 1 or lease["holderIdentity"], "let go, and perhaps taken already"
    until(lambda: _leads(second.port), within=FOLLOWED_S)
    cluster.pod("a", mig(profile="1g.10gb"))
    cluster.running("a")
    lab.start("bridge")  # its readiness is asked: it stands by
    second.stop()
    until(lambda: _leads(lab.spec.ports.bridge), within=FOLLOWED_S)
    cluster.pod("b", mig(profile="1g.10gb"))
    cluster.running("b")


def test_two_that_both_believe_to_lead_make_no_twins(lab: Lab, cluster: Cluster, second: SecondBridge) -> None:
    """The leader is stopped in the middle of its work, wakes up after it was followed, and finds that out by itself."""
    pods = [cluster.pod(f"a{n}", mig(profile="1g.10gb")) for n in range(4)]
    lab.kill("bridge", signal.SIGSTOP)
    try:
        pods += [cluster.pod(f"b{n}", mig(profile="1g.10gb")) for n in range(4)]
        until(lambda: _leads(second.port), within=FOLLOWED_S)
        pods += [cluster.pod(f"c{n}", mig(profile="1g.10gb")) for n in range(4)]
    finally:
        lab.kill("bridge", signal.SIGCONT)
    cluster.running(*pods)
    until(lambda: _ready(lab.spec.ports.bridge))
    assert not leads(lab.spec.ports.bridge)
    held_once(lab, cluster, *pods)
    ever = _sets_of_holds(lab)
    asked = [ever[uid] for uid in _uids(cluster, pods).values()]
    # One twin may have been, and was cancelled: of a leader stopped just between its look for twins and its submit.
    assert sum(asked) <= len(pods) + 1, asked


def test_slurm_away_is_told_by_readiness_and_on_pods_and_passes(lab: Lab, cluster: Cluster) -> None:
    port = lab.spec.ports.bridge
    until(lambda: _leads(port), within=FOLLOWED_S)
    lab.stop("slurmrestd")
    try:
        cluster.pod("waits", mig(profile="1g.10gb"))
        until(lambda: _not_ready(port, "Slurm: SLURM_UNAVAILABLE"), within=FOLLOWED_S)
        assert ask(port, "/livez")[0] == 200

        def told() -> None:
            assert cluster.slurm_condition("waits")["reason"] == "SlurmUnavailable"

        until(told)
    finally:
        lab.start("slurmrestd")
    cluster.running("waits")
    until(lambda: _ready(port))


def test_the_bridge_writes_no_lease_but_its_own(lab: Lab, cluster: Cluster) -> None:
    config = bridge.files(lab.layout).kubeconfig
    kubectl = [str(lab.kubectl_path), f"--kubeconfig={config}", "-n", names.NAMESPACE]

    def may(verb: str, lease: str) -> bool:
        asked = [*kubectl, "auth", "can-i", verb, f"leases.coordination.k8s.io/{lease}"]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    assert may("update", names.BRIDGE_LEASE)
    assert not may("patch", names.BRIDGE_LEASE)
    assert not may("delete", names.BRIDGE_LEASE)
    for verb in ("update", "patch", "delete"):
        assert not may(verb, names.lease_name("n1")), verb
    lease = lab.kubectl_json("-n", names.NAMESPACE, "get", "lease", names.lease_name("n1"))
    done = subprocess.run([*kubectl, "replace", "-f", "-"], input=json.dumps(lease), capture_output=True, text=True)
    assert "forbidden" in done.stderr


def held_once(lab: Lab, cluster: Cluster, *pods: str) -> None:
    """Each of the pods has one living hold."""
    holds = _sets_of_holds(lab, ("PENDING", "RUNNING"))
    assert {pod: holds[uid] for pod, uid in _uids(cluster, pods).items()} == dict.fromkeys(pods, 1)


def _sets_of_holds(lab: Lab, states: Sequence[str] = ()) -> Counter[str]:
    """How many holds each set has, or (without states) ever had, as far as slurmctld remembers."""
    jobs = [j for j in lab.slurm_json("scontrol", "show", "jobs")["jobs"] if not states or j["job_state"][0] in states]
    found = [identity_of(j["admin_comment"]) for j in jobs]
    return Counter(i.set_uid for i in found if i is not None and i.role is Role.HOLD)


def _uids(cluster: Cluster, pods: Sequence[str]) -> dict[str, str]:
    return {pod: cluster.get("pod", pod)["metadata"]["uid"] for pod in pods}


def _leads(port: int) -> None:
    assert leads(port)


def _ready(port: int) -> None:
    assert ask(port, "/readyz") == (200, "ok\n")


def _not_ready(port: int, why: str) -> None:
    status, told = ask(port, "/readyz")
    assert (status, told[: len(why)]) == (503, why)
