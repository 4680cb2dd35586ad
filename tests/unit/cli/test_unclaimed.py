"""Pods that wait for a device and have no claim: each says what is missing, or what the scheduler said."""

from __future__ import annotations

from typing import Any

import pytest

from dynamig.cli import table
from dynamig.cli.asked import Asked
from dynamig.cli.holdings import Holding, HoldingState
from dynamig.cli.output import Page
from dynamig.cli.unclaimed import unclaimed
from dynamig.protocol import names
from tests.unit.cli.cluster import DRIVER, Object, claim
from tests.unit.cli.test_waiting import CLASSES, WHY

GPU_CLASS = {
    "metadata": {"name": "gpu.nvidia.com"},
    "spec": {
        "extendedResourceName": "nvidia.com/gpu",
        "selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}],
    },
}
NIC_CLASS = {
    "metadata": {"name": "fast-nic"},
    "spec": {
        "extendedResourceName": "example.com/nic",
        "selectors": [{"cel": {"expression": "device.driver == 'net.example.com'"}}],
    },
}
ALL = [*CLASSES, GPU_CLASS, NIC_CLASS]


def pod(*, claims: tuple[Object, ...] = (), resources: tuple[str, ...] = (), **changes: Any) -> Object:
    limits = {"cpu": "1"} | dict.fromkeys(resources, "1")
    spec = {"resourceClaims": list(claims), "containers": [{"name": "c", "resources": {"limits": limits}}]}
    meta = {"namespace": "ml", "name": "p"} | changes.pop("metadata", {})
    return {"metadata": meta, "spec": spec | changes.pop("spec", {}), "status": {"phase": "Pending"} | changes}


def told(by_scheduler: str = WHY) -> Object:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "message": by_scheduler}]}


def template(name: str = "t", device_class: str = "mig.nvidia.com") -> Object:
    requests = [{"name": "r", "exactly": {"deviceClassName": device_class}}]
    return {"metadata": {"namespace": "ml", "name": name}, "spec": {"spec": {"devices": {"requests": requests}}}}


FROM_TEMPLATE = {"name": "x", "resourceClaimTemplateName": "t"}


def found(
    one: Object,
    *,
    claims: tuple[Object, ...] = (),
    templates: list[Object] | None = None,
    classes: list[Object] | None = ALL,
    driver: str = DRIVER,
) -> list[Holding]:
    return unclaimed([one], claims, templates, Asked(driver, classes))


def test_a_pod_whose_template_is_not_there_says_so() -> None:
    (row,) = found(pod(claims=(FROM_TEMPLATE,)), templates=[template("other")])
    assert (row.namespace, row.claim, row.pods, row.state) == ("ml", "", ("p",), HoldingState.WAITING)
    assert row.reason == "there is no ResourceClaimTemplate t in its namespace"


def test_whoever_may_not_read_templates_is_told_the_usual_cause_unless_somebody_spoke() -> None:
    (row,) = found(pod(claims=(FROM_TEMPLATE,)))
    assert row.reason == "its claim is not made: is there a ResourceClaimTemplate t?"
    (row,) = found(pod(claims=(FROM_TEMPLATE,), **told("no claim yet")))
    assert row.reason == "no claim yet"


def test_a_template_tells_whose_devices_the_pod_waits_for() -> None:
    assert [h.reason for h in found(pod(claims=(FROM_TEMPLATE,)), templates=[template()])] == [
        "its claim is not made yet"
    ]
    assert found(pod(claims=(FROM_TEMPLATE,)), templates=[template(device_class="nic")]) == []


def test_a_named_claim_that_is_not_there_is_named() -> None:
    one = pod(claims=({"name": "x", "resourceClaimName": "c"},))
    (row,) = found(one)
    assert (row.claim, row.reason) == ("c", "there is no ResourceClaim c in its namespace")
    assert found(one, claims=(claim("c", []),)) == [], "the claim is a row of its own"
    assert len(found(one, claims=(claim("c", [], namespace="other"),))) == 1


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "deviceclass.resource.kubernetes.io/mig.nvidia.com"])
def test_an_extended_resource_waits_with_the_schedulers_reason(resource: str) -> None:
    (row,) = found(pod(resources=(resource,), **told()))
    assert row.reason == "0/2 nodes are available: 2 cannot allocate all claims."
    assert (row.claim, row.pods) == ("", ("p",))


def test_a_resource_of_which_no_class_makes_a_claim_is_named() -> None:
    one = pod(resources=("nvidia.com/mig-1g.10gb",), **told())
    assert found(one)[0].reason == "no DeviceClass makes a claim of the resource nvidia.com/mig-1g.10gb"
    assert found(one, classes=None)[0].reason == "0/2 nodes are available: 2 cannot allocate all claims."


def test_resources_of_init_containers_and_requests_count() -> None:
    needs = {"requests": {"nvidia.com/gpu": "1"}}
    assert len(found(pod(spec={"initContainers": [{"name": "i", "resources": needs}]}))) == 1


@pytest.mark.parametrize(
    "other",
    [
        pod(),
        pod(resources=("example.com/nic",)),
        pod(resources=("nvidia.com/gpu",), phase="Succeeded"),
        pod(resources=("nvidia.com/gpu",), spec={"nodeName": "n1"}),
        pod(resources=("nvidia.com/gpu",), metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        pod(claims=(FROM_TEMPLATE,), resourceClaimStatuses=[{"name": "x", "resourceClaimName": "c"}]),
    ],
    ids=["no devices", "of another driver", "over", "placed", "deleted", "made"],
)
def test_others_do_not_wait_here(other: Object) -> None:
    assert found(other) == []


def test_another_drivers_pods_are_its_own() -> None:
    nic = pod(resources=("example.com/nic",))
    assert len(found(nic, driver="net.example.com")) == 1
    for ours in (pod(resources=("nvidia.com/gpu",)), pod(claims=(FROM_TEMPLATE,))):
        assert found(ours, driver="net.example.com") == []


def test_slurms_pods_are_told_by_the_bridge_first() -> None:
    conditions = [{"type": names.CONDITION, "status": "False", "message": "claims are being made"}]
    (row,) = found(pod(claims=(FROM_TEMPLATE,), conditions=conditions))
    assert row.reason == "claims are being made"


def test_it_is_a_line_with_all_columns() -> None:
    waits = found(pod(claims=(FROM_TEMPLATE,)), templates=[])
    head, row = (line.split() for line in table.holdings([], waits, Page(None, False)).plain.splitlines())
    assert len(head) == len(row)
    assert (row[head.index("CLAIM")], row[head.index("POD")]) == ("-", "p")
