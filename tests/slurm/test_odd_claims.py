"""Claims as few people use them: of another pod, left behind by their pod, with a configuration, asking for nothing."""

from __future__ import annotations

import json
from typing import Any

from dynamig.bridge.decide import LONGEST_PREPARE
from dynamig.protocol import names
from lab.lab import Lab
from tests.e2e.cluster import NAMESPACE, Cluster, mig, until
from tests.slurm.stage import PATIENCE
from tests.slurm.test_main_job import hold_of, holds
from tests.slurm.test_rights import events, told


def test_a_pod_gets_no_claim_that_was_made_for_another_pod(lab: Lab, cluster: Cluster) -> None:
    """It would go on when that pod, and with it the job that pays for its claim, is over."""
    cluster.pod("owner", mig(profile="1g.10gb"))
    cluster.running("owner")
    made = cluster.claim_of("owner")["metadata"]["name"]
    cluster.pod_of_claim("guest", made)
    assert f"ResourceClaim {made} was made for another pod" in told(cluster, "guest", "WaitingForClaims")["message"]
    cluster.pod("later", mig(profile="1g.10gb"))
    cluster.running("later")  # so the bridge has decided on all of them since
    assert cluster.get("pod", "guest")["spec"].get("nodeName") is None
    paying = {hold_of(lab, cluster, pod)["job_id"] for pod in ("owner", "later")}
    assert {job["job_id"] for job in holds(lab)} == paying


def test_a_claim_that_its_pod_leaves_behind_is_let_go(lab: Lab, cluster: Cluster) -> None:
    cluster.pod("leaves", mig(profile="1g.10gb"))
    cluster.running("leaves")
    claim = cluster.claim_of("leaves")["metadata"]["name"]
    lab.kubectl("-n", NAMESPACE, "delete", "pod", "leaves", "--cascade=orphan", "--grace-period=1", "--timeout=60s")
    until(lambda: _equal(holds(lab), []), within=PATIENCE)
    left = cluster.get("resourceclaim", claim)["metadata"]
    assert names.HELD not in left.get("finalizers", [])
    assert cluster.instances() == []


def test_a_claim_that_asks_for_nothing_can_be_changed_and_is_named(lab: Lab, cluster: Cluster) -> None:
    """Its requests are null in the API server's eyes, and policies look at them."""
    cluster.apply(_claim("nothing"))
    lab.kubectl("-n", NAMESPACE, "annotate", "resourceclaim", "nothing", "example.com/a=b")
    cluster.pod_of_claim("idle", "nothing")
    assert "asks for no device" in told(cluster, "idle", "NoLegalPlacement")["message"]
    assert holds(lab) == []


def test_a_configuration_that_the_driver_does_not_do_ends_its_pod_with_the_reason(lab: Lab, cluster: Cluster) -> None:
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "MigDeviceConfig",
        "sharing": {"strategy": "MPS"},
    }
    opaque = {"driver": names.DRIVER_NAME, "parameters": parameters}
    body = _claim("shares", mig(profile="1g.10gb"))
    body["spec"]["devices"]["config"] = [{"opaque": opaque}]
    cluster.apply(body)
    cluster.pod_of_claim("wants-more", "shares")
    why = "MigDeviceConfig sets sharing, which this driver does not do"
    until(lambda: _in(why, json.dumps(events(cluster, "wants-more", "PrepareFailed"))), within=PATIENCE)
    assert cluster.instances() == []
    until(lambda: _equal(holds(lab), []), within=PATIENCE + LONGEST_PREPARE)  # its driver never took note of it


def _claim(name: str, *requests: dict[str, Any]) -> dict[str, Any]:
    spec = {"devices": {"requests": list(requests)}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def _equal(seen: object, wanted: object) -> None:
    assert seen == wanted


def _in(thing: str, text: str) -> None:
    assert thing in text
