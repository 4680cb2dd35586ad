"""Claims that somebody made by hand, shared by pods: held first, for their GPU only; each pod pays for itself."""

from __future__ import annotations

import pytest

from dynamig.bridge.committed import PATIENCE_UNSCHEDULABLE, SEEN_TWICE, SLURM_SETTLES
from dynamig.bridge.decide import LONGEST_PREPARE
from dynamig.bridge.fits import NodeMarks
from dynamig.bridge.sets import CLAIMS_ARE_MADE
from dynamig.protocol import names
from dynamig.protocol.slurm_jobs import Ending, JobState
from dynamig.protocol.times import to_rfc3339
from tests.unit.bridge.stage import NODES, Stage, wants


def sharing() -> Stage:
    stage = Stage()
    stage.sets.create_claim("shared", wants("3g.40gb"))
    stage.sets.create_pod("a", uses=["shared"], cpu="2")
    stage.sets.create_pod("b", wants("1g.10gb"), uses=["shared"], cpu="3")
    stage.settle()
    return stage


def test_each_pod_runs_where_the_claim_is_and_pays_for_itself() -> None:
    stage = sharing()
    nodes = {stage.sets.pods[p]["spec"]["nodeName"] for p in "ab"}
    jobs = {j.identity.set_uid: j for j in stage.slurm.jobs.values() if j.state is JobState.RUNNING}
    assert jobs.keys() == {"claim-shared", "pod-a", "pod-b"}
    assert {j.node for j in jobs.values()} == nodes
    paid = {uid: stage.slurm.requests[j.key.job_id] for uid, j in jobs.items()}
    assert [(paid[u].purpose.cpus, paid[u].purpose.shards) for u in ("claim-shared", "pod-a", "pod-b")] == [
        (1, 3),
        (2, 0),
        (3, 1),
    ]
    assert paid["claim-shared"].purpose.claims == {"claim-shared"}


def test_a_claim_that_nobody_uses_is_not_paid_for() -> None:
    stage = Stage()
    stage.sets.create_claim("idle", wants("3g.40gb"))
    stage.settle()
    assert stage.slurm.jobs == {}


def test_the_last_pod_that_leaves_releases_the_claim() -> None:
    stage = sharing()
    stage.sets.finish_pod("a")
    stage.settle()
    states = {j.identity.set_uid: j.state for j in stage.slurm.jobs.values()}
    assert states == {"claim-shared": JobState.RUNNING, "pod-a": JobState.ENDED, "pod-b": JobState.RUNNING}
    stage.sets.finish_pod("b")
    stage.settle()
    assert names.RELEASE in stage.sets.claims["shared"]["metadata"]["annotations"]
    assert stage.states()["claim-shared"] is JobState.RUNNING, "its hardware is not known to be gone"
    stage.sets.driver_lets_go("b")
    for node in stage.driver_claims.values():
        node.clear()
    stage.settle()
    assert set(stage.states().values()) == {JobState.ENDED}


def test_a_claim_that_is_used_again_is_held_anew() -> None:
    stage = sharing()
    for pod in "ab":
        stage.sets.finish_pod(pod)
    stage.settle()
    stage.sets.create_pod("c", uses=["shared"])
    stage.settle()
    assert stage.sets.told["c"][-1][0] == "WaitingForClaims", "what it had before is not gone yet"
    stage.sets.driver_lets_go("b")
    for node in stage.driver_claims.values():
        node.clear()
    stage.settle()
    assert stage.sets.pods["c"]["spec"].get("nodeName")
    assert len(stage.devices("c")) == 1


def test_a_claim_whose_hold_was_lost_before_a_pod_was_bound_is_held_anew() -> None:
    """No driver ever heard of it, so none lets go of it; its node says so in time."""
    stage = Stage()
    stage.sets.create_claim("shared", wants("3g.40gb"))
    stage.sets.create_pod("a", uses=["shared"])
    while not stage.sets.claims["shared"]["status"].get("allocation"):
        stage.look()
    assert stage.sets.pods["a"]["spec"].get("nodeName") is None
    for job in list(stage.slurm.jobs.values()):
        stage.slurm.forget(job.key.job_id)
    stage.look_for(SLURM_SETTLES + SEEN_TWICE)
    assert stage.sets.told["a"][-1][0] == "WaitingForClaims", "a prepare of it may have begun"
    stage.look_for(2 * LONGEST_PREPARE)
    stage.settle()
    assert stage.sets.pods["a"]["spec"].get("nodeName")
    assert len(stage.devices("a")) == 1


def test_a_pod_without_claims_of_its_own_that_cannot_be_scheduled_keeps_nobody_busy() -> None:
    stage = Stage()
    stage.sets.create_claim("shared", wants("1g.10gb"))
    stage.sets.create_pod("a", uses=["shared"])
    while stage.sets.pods["a"]["spec"].get("schedulingGates"):
        stage.look()
    since = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    stage.sets.pods["a"]["status"]["conditions"] = [{**since, "lastTransitionTime": to_rfc3339(stage.now)}]
    stage.look_for(2 * PATIENCE_UNSCHEDULABLE)
    assert stage.look() == 0


def test_scancel_of_the_shared_hold_ends_all_its_pods() -> None:
    stage = sharing()
    shared = next(j for j in stage.slurm.jobs.values() if j.identity.set_uid == "claim-shared")
    stage.slurm.end(shared.key.job_id, Ending.CANCELLED)
    stage.look()
    assert all(stage.sets.pods[p]["metadata"].get("deletionTimestamp") for p in "ab")


def test_scancel_of_a_job_that_pays_for_processors_only_ends_that_pod() -> None:
    stage = sharing()
    own = next(j for j in stage.slurm.jobs.values() if j.identity.set_uid == "pod-a")
    stage.slurm.end(own.key.job_id, Ending.CANCELLED)
    stage.look()
    assert stage.sets.pods["a"]["metadata"].get("deletionTimestamp")
    assert not stage.sets.pods["b"]["metadata"].get("deletionTimestamp")


def test_a_template_that_is_not_there_is_named_after_a_while() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"), unmade="a-slise")
    stage.look_for(3)
    assert stage.sets.told["a"] == [("WaitingForClaims", "its resource claims are being made")]
    stage.look_for(CLAIMS_ARE_MADE)
    reason, message = stage.sets.told["a"][-1]
    assert reason == "WaitingForClaims"
    assert "has not made its claim from ResourceClaimTemplate a-slise: usually there is none" in message
    assert "kubectl -n ns get resourceclaimtemplates" in message
    assert len(stage.sets.told["a"]) == 2, "told once"
    assert stage.slurm.jobs == {}


def test_a_hand_made_claim_that_is_not_there_is_named_and_may_come_later() -> None:
    stage = Stage()
    stage.sets.create_pod("a", uses=["shared"])
    stage.look_for(CLAIMS_ARE_MADE + 3)
    assert stage.sets.told["a"][-1][1] == "there is no ResourceClaim shared in namespace ns"
    stage.sets.create_claim("shared", wants("1g.10gb"))
    stage.settle()
    assert stage.sets.pods["a"]["spec"].get("nodeName")


def test_a_pod_whose_claims_are_on_different_nodes_is_told_so() -> None:
    stage = Stage()
    for claim, node in (("a", "n1"), ("b", "n2")):
        stage.sets.create_claim(claim, wants("7g.80gb"))
        stage.sets.create_pod(f"only-{claim}", uses=[claim])["spec"]["nodeSelector"] = {"zone": node}
    stage.marks = {node: NodeMarks({"zone": node}) for node in NODES}
    stage.settle()
    stage.sets.create_pod("both", uses=["a", "b"])
    stage.settle()
    assert stage.sets.told["both"][-1][0] == "NoLegalPlacement"
    assert "different nodes (a on n1, b on n2)" in stage.sets.told["both"][-1][1]


# -- whose a claim is --------------------------------------------------------------------------------------------------


def test_a_pod_gets_no_claim_that_was_made_for_another_pod() -> None:
    """It would go on when that pod and the job that pays for its claim are over."""
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    stage.sets.create_pod("b", wants("1g.10gb"), uses=["a-0"])
    stage.settle()
    assert stage.sets.pods["b"]["spec"].get("nodeName") is None
    assert stage.states().keys() == {"pod-a"}
    reason, message = stage.sets.told["b"][-1]
    assert reason == "WaitingForClaims"
    assert "ResourceClaim a-0 was made for another pod" in message


def test_a_claim_stays_in_the_set_that_it_is_held_for_whatever_its_owners_become() -> None:
    stage = sharing()
    other = stage.sets.create_pod("c", wants("1g.10gb"))
    stage.settle()
    shared, own = stage.sets.claims["shared"]["metadata"], stage.sets.claims["c-0"]["metadata"]
    shared["ownerReferences"] = [{"kind": "Pod", "name": "c", "uid": other["metadata"]["uid"], "controller": True}]
    own["ownerReferences"] = []
    assert stage.look() == 0
    paying = next(j for j in stage.slurm.jobs.values() if j.identity.set_uid == "claim-shared")
    stage.slurm.end(paying.key.job_id, Ending.CANCELLED)
    stage.look()
    ended = {name for name, pod in stage.sets.pods.items() if pod["metadata"].get("deletionTimestamp")}
    assert ended == {"a", "b"}


@pytest.mark.parametrize("deallocated", [True, False])
def test_a_claim_that_its_pod_left_behind_is_let_go(deallocated: bool) -> None:
    """kubectl delete pod --cascade=orphan. Kubernetes does not deallocate it where somebody took its finalizer away."""
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    claim = stage.sets.claims["a-0"]
    claim["metadata"]["ownerReferences"] = []
    allocation = claim["status"]["allocation"]
    stage.sets.force_delete_pod("a")
    if not deallocated:
        claim["status"] = {"allocation": allocation}
        claim["metadata"]["finalizers"] = [names.HELD]
    stage.settle()
    assert stage.states()["pod-a"] is JobState.RUNNING, "its hardware is not known to be gone"
    stage.sets.drivers_let_go(NODES)
    for node in stage.driver_claims.values():
        node.clear()
    stage.settle()
    assert stage.states()["pod-a"] is JobState.ENDED
    assert names.HELD not in stage.sets.claims["a-0"]["metadata"]["finalizers"]
