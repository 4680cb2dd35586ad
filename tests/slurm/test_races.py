"""Interleavings that are rare by themselves, each made to happen through a proxy's gate.

What must come of all of them is the same: one hold for each living pod, none for others, native jobs on empty GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lab.lab import Lab
from tests.e2e.cluster import NAMESPACE, Cluster, mig, until
from tests.slurm.faults import Answer, Forward, Match
from tests.slurm.stage import PATIENCE, Stage, each_has_one_hold, older_state, staged
from tests.slurm.writes import KUBERNETES, SLURM

pytestmark = pytest.mark.timeout(420)


@pytest.fixture
def stage(lab: Lab, cluster: Cluster) -> Iterator[Stage]:
    with staged(lab, cluster) as made:
        yield made


UNKNOWN_TO_ITS_NODE_S = 200.0
"""Seconds for what is let go 90 s after its deletion (DELETED_FOR_GOOD of the bridge)."""


@pytest.mark.parametrize("write", ["note", "ungate"])
def test_a_pod_that_is_deleted_before_it_may_run(stage: Stage, write: str) -> None:
    """A gated pod vanishes at once, without a time in which it is seen to be deleted."""
    with stage.proxies.api.gate(KUBERNETES[write]) as gate:
        pod = stage.cluster.pod("short-lived", mig(profile="2g.20gb"))
        gate.wait_reached()
        stage.let_go(pod)
        stage.gone(pod)
    stage.no_holds(within=UNKNOWN_TO_ITS_NODE_S)
    until(lambda: no_claims(stage), within=PATIENCE)
    stage.cluster.running(stage.cluster.pod("next", mig(profile="2g.20gb")))


def no_claims(stage: Stage) -> None:
    assert stage.lab.kubectl("-n", NAMESPACE, "get", "resourceclaims", "--ignore-not-found") == ""


def test_a_hold_that_is_cancelled_while_its_claim_is_being_allocated(stage: Stage) -> None:
    with stage.proxies.api.gate(KUBERNETES["allocate"]) as gate:
        pod = stage.cluster.pod("robbed", mig(profile="2g.20gb"))
        gate.wait_reached()
        stage.lab.slurm("scancel", str(stage.hold_of(pod).job_id))
    until(lambda: runs_and_is_paid_for_or_is_gone(stage, pod), within=PATIENCE)


def runs_and_is_paid_for_or_is_gone(stage: Stage, pod: str) -> None:
    if stage.lab.kubectl("-n", NAMESPACE, "get", "pod", pod, "--ignore-not-found") == "":
        assert stage.holds() == []
        return
    assert stage.cluster.phase(pod) == "Running"
    each_has_one_hold(stage, [pod])


def test_a_submit_that_arrives_after_it_was_given_up_makes_no_second_hold(stage: Stage) -> None:
    """The bridge gives up after 15 s and submits again; then the first one arrives."""
    with stage.proxies.slurm.gate(SLURM["submit"]) as gate:
        pod = stage.cluster.pod("paid-once", mig(profile="1g.10gb"))
        gate.wait_reached()
        stage.cluster.running(pod)
    until(lambda: arrived(stage, 2), within=PATIENCE)
    until(lambda: each_has_one_hold(stage, [pod]), within=PATIENCE)


def arrived(stage: Stage, times: int) -> None:
    sent = [w for w in stage.proxies.slurm.writes if SLURM["submit"].fits(w.request)]
    assert len(sent) == times


def test_a_hold_that_slurmctld_brings_back_is_cancelled_again(stage: Stage) -> None:
    """Seen with 26.05: cancels of external jobs are not saved at once, and after kill -9 the jobs run again."""
    pod = stage.cluster.pod("back", mig(profile="1g.10gb"))
    stage.cluster.running(pod)
    stage.hold_of(pod)
    with older_state(stage.lab) as crash_to_before:
        stage.let_go(pod)
        stage.gone(pod)
        stage.no_holds()
        crash_to_before()
    assert len(stage.holds()) <= 1
    stage.no_holds()


@pytest.mark.soak
def test_a_pod_that_slurm_refuses_is_in_nobodys_way(stage: Stage) -> None:
    """Slurm refuses the jobs of one pod for good, as for an account that is not there; it is older, so served first."""
    stage.proxies.slurm.order(Match("POST", "/job/submit$", "e2e/refused"), invalid_account, count=None)
    stage.cluster.pod("refused", mig(profile="1g.10gb"))
    until(lambda: told_why(stage), within=PATIENCE)
    stage.cluster.running(stage.cluster.pod("served", mig(profile="1g.10gb")))


def invalid_account(forward: Forward) -> Answer:
    """As slurmrestd 26.05.5 answers for an account that does not exist: ESLURM_INVALID_ACCOUNT."""
    error = {"error_number": 2045, "error": "Invalid account or account/partition combination specified"}
    body = json.dumps({"errors": [{**error, "description": "Batch job submission failed", "source": "slurm_submit"}]})
    return Answer(500, (("Content-Type", "application/json"),), body.encode())


def told_why(stage: Stage) -> None:
    assert "account" in str(stage.condition("refused")["message"])


@pytest.mark.soak
def test_a_node_whose_driver_is_dead_is_in_nobodys_way(stage: Stage) -> None:
    """What waits for one node's driver keeps no pod of another node from starting or ending."""
    stage.cluster.pod("first", mig(profile="1g.10gb"))
    stage.cluster.running("first")
    node = stage.hold_of("first").node
    elsewhere = {"kubernetes.io/hostname": next(n for n in stage.lab.nodes if n != node)}
    with stage.cluster.killed_driver(node):
        stage.let_go("first")
        stage.cluster.running(stage.cluster.pod("second", mig(profile="7g.80gb"), nodeSelector=elsewhere))
    stage.gone("first")
    until(lambda: each_has_one_hold(stage, ["second"]), within=PATIENCE)
