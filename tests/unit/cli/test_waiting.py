"""Claims without a device: who waits, why, and whose driver they concern."""

from __future__ import annotations

from typing import Any

import pytest

from dynamig.cli import table
from dynamig.cli.asked import Asked
from dynamig.cli.holdings import Holding, HoldingState
from dynamig.cli.output import Page
from dynamig.cli.view import gpu_views
from dynamig.cli.waiting import NOT_LOOKED_AT, waiting, with_users
from dynamig.protocol import names
from tests.unit.cli.cluster import DRIVER, Object, claim, device, pool, slices

GPU = pool()
CLASSES = [
    {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": f"device.driver == {text}"}}]}}
    for name, text in (("mig.nvidia.com", f"'{DRIVER}'"), ("nic", '"net.example.com"'))
]
ASKED = Asked(DRIVER, CLASSES)
WHY = "0/2 nodes are available: 2 cannot allocate all claims. preemption: 0/2 nodes are available."


def asking(name: str = "c", device_class: str = "mig.nvidia.com", **meta: Any) -> Object:
    request = {"name": "r", "exactly": {"deviceClassName": device_class}}
    return claim(name, [], **meta) | {"spec": {"devices": {"requests": [request]}}}


def pod(name: str = "p", named: str | None = "c", made: str | None = None, **status: Any) -> Object:
    condition = {"type": "PodScheduled", "status": "False", "message": WHY}
    return {
        "metadata": {"namespace": "ml", "name": name},
        "spec": {"resourceClaims": [{"name": "x"} | ({"resourceClaimName": named} if named else {})]},
        "status": {
            "phase": "Pending",
            "conditions": [condition],
            "resourceClaimStatuses": [{"name": "x", "resourceClaimName": made}] if made else [],
        }
        | status,
    }


def waits(claims: list[Object], pods: list[Object] | None, driver: str = DRIVER) -> list[Holding]:
    return waiting(claims, pods, Asked(driver, CLASSES))


@pytest.mark.parametrize("one", [pod(), pod(named=None, made="c")])
def test_a_pod_waits_with_the_schedulers_reason(one: Object) -> None:
    (found,) = waits([asking()], [one])
    assert (found.claim, found.pods, found.state, found.device) == ("c", ("p",), HoldingState.WAITING, "")
    assert found.reason == "0/2 nodes are available: 2 cannot allocate all claims."


def test_the_bridges_reason_comes_first() -> None:
    told = {"type": names.CONDITION, "status": "False", "message": "job 7 is pending: Resources"}
    gated = {"type": "PodScheduled", "status": "False", "message": "Scheduling is blocked"}
    (found,) = waits([asking()], [pod(conditions=[gated, told])])
    assert found.reason == "job 7 is pending: Resources"


def test_a_gated_pod_of_which_nobody_has_spoken_says_so() -> None:
    gated = pod()
    gated["spec"]["schedulingGates"] = [{"name": names.GATE}]
    (found,) = waits([asking()], [gated])
    assert "dynamig-bridge" in found.reason


def test_a_pod_that_slurm_does_not_know_is_told_whose_the_devices_are() -> None:
    (found,) = waiting([asking()], [pod()], ASKED, slurm=True)
    assert found.reason.startswith("0/2 nodes are available")
    assert "dynamig.io/scheduler=slurm" in found.reason
    ours = {"type": names.CONDITION, "status": "True", "reason": names.PAID}
    known = pod(conditions=[ours, *pod()["status"]["conditions"]])
    (found,) = waiting([asking()], [known], ASKED, slurm=True)
    assert "label" not in found.reason


def test_a_device_whose_pods_all_end_leaves() -> None:
    held = claim("c", [(GPU, device("1g10gb-19-6", GPU))], pods=["a", "b"])

    def state(*ending: str) -> HoldingState:
        (view,) = gpu_views(slices(GPU), [held], ending={("ml", pod) for pod in ending})
        return view.holdings[0].state

    assert state() is state("a") is HoldingState.ALLOCATED
    assert state("a", "b") is HoldingState.LEAVING


def test_a_device_that_no_pod_has_yet_names_the_pods_that_are_to_have_it_and_why_they_wait() -> None:
    """As one that is paid for, and that kube-scheduler finds no processors for."""
    paid = {"type": names.CONDITION, "status": "True", "message": "Slurm job 7 pays for it"}
    lacking = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available: 2 Insufficient cpu."}
    views = gpu_views(slices(GPU), [claim("c", [(GPU, device("1g10gb-19-6", GPU))])])
    ((found,),) = (v.holdings for v in with_users(views, [pod(conditions=[paid, lacking])]))
    assert (found.pods, found.state, found.reason) == (("p",), HoldingState.ALLOCATED, lacking["message"])


def test_a_pod_that_nothing_gates_any_more_is_not_said_to_be_gated() -> None:
    """Its condition says so until kube-scheduler looks at it."""
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked"}
    views = gpu_views(slices(GPU), [claim("c", [(GPU, device("1g10gb-19-6", GPU))])])
    ((found,),) = (v.holdings for v in with_users(views, [pod(conditions=[gated])]))
    assert found.reason == NOT_LOOKED_AT


def test_without_the_right_to_read_pods_a_made_claim_still_names_its_pod() -> None:
    made = asking(ownerReferences=[{"kind": "Pod", "name": "p", "controller": True}])
    (found,) = waits([made, asking("by-hand")], None)
    assert (found.pods, found.reason) == (("p",), "")


@pytest.mark.parametrize(
    "other",
    [
        claim("c", [(GPU, device("1g10gb-19-6", GPU))]),
        asking(deletionTimestamp="2026-01-01T00:00:00Z"),
        asking(finalizers=[names.HELD], annotations={names.NODE: "n1"}),
        asking(device_class="nic"),
    ],
    ids=["allocated", "deleted", "leaving", "of another driver"],
)
def test_what_has_devices_or_is_of_others_does_not_wait_here(other: Object) -> None:
    assert waits([other], [pod()]) == []


def test_a_pod_that_names_a_claim_of_which_another_has_the_devices_waits() -> None:
    """As it is told; one that may have it, and that nothing is said of, is on its way."""
    used = claim("c", [(GPU, device("1g10gb-19-6", GPU))], pods=["first"]) | {"spec": asking()["spec"]}
    told = {"type": names.CONDITION, "status": "False", "message": "ResourceClaim c was made for another pod"}
    (found,) = waits([used], [pod("first"), pod("second", conditions=[told]), pod("third", conditions=[])])
    assert (found.pods, found.claim, found.reason) == (("second",), "c", told["message"])


def test_a_claim_that_the_bridge_noted_and_nobody_placed_waits() -> None:
    noted = asking(finalizers=[names.HELD], annotations={names.HOLD: '{"set": "u", "attempt": 1, "devices": []}'})
    assert [h.claim for h in waits([noted], [pod()])] == ["c"]
    assert [h for v in gpu_views(slices(GPU), [noted]) for h in v.holdings] == []


def test_a_pod_that_is_over_waits_for_nothing() -> None:
    assert waits([asking()], [pod(phase="Failed")]) == []


def test_another_drivers_claims_are_its_own() -> None:
    claims = [asking(), asking("d", "nic")]
    assert [h.claim for h in waits(claims, [pod(), pod("q", "d")], "net.example.com")] == ["d"]


def test_a_misspelt_class_is_not_hidden() -> None:
    assert [h.claim for h in waits([asking(device_class="gmi.nvidia.com")], [pod()])] == ["c"]


def test_a_waiting_claim_is_a_line_with_all_columns() -> None:
    lines = table.holdings([], waits([asking()], [pod()]), Page(None, False)).plain.splitlines()
    head, row = (line.split() for line in lines)
    assert len(head) == len(row)
    assert dict(zip(head, row, strict=True)) | {"REASON": ""} == {
        "NAMESPACE": "ml", "POD": "p", "CLAIM": "c", "GPU": "-", "PROFILE": "-", "SLICES": "-", "STATE": "waiting",
        "UUID": "-", "DEVICE": "-", "SLURM-JOB": "-", "REASON": "",
    }  # fmt: skip
