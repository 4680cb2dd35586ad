"""Pods with scheduling gates of others, and pods that are narrowed as long as any gate allows it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from dynamig.protocol import names
from lab.lab import Lab
from tests.e2e.cluster import NAMESPACE, Cluster, mig, until
from tests.slurm.stage import PATIENCE, Stage, staged
from tests.slurm.writes import KUBERNETES

pytestmark = pytest.mark.timeout(420)

QUOTA = "example.com/quota"


@pytest.fixture
def stage(lab: Lab, cluster: Cluster) -> Iterator[Stage]:
    with staged(lab, cluster) as made:
        yield made


def narrow(stage: Stage, pod: str, node: str, **spec: object) -> None:
    patch = {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}, **spec}}
    stage.lab.kubectl("-n", NAMESPACE, "patch", "pod", pod, "--type=merge", "-p", json.dumps(patch))


def test_slurm_is_asked_when_ours_is_the_last_gate(stage: Stage) -> None:
    pod = stage.cluster.pod("gated", mig(profile="2g.20gb"), schedulingGates=[{"name": QUOTA}])
    until(lambda: tells(stage, pod, names.OTHER_GATES, QUOTA), within=PATIENCE)
    time.sleep(3)
    assert stage.holds() == []
    assert names.HELD not in stage.cluster.claim_of(pod)["metadata"].get("finalizers", [])
    narrow(stage, pod, "n2", schedulingGates=[{"name": names.GATE}])
    stage.cluster.running(pod)
    assert stage.hold_of(pod).node == "n2"


def tells(stage: Stage, pod: str, reason: str, word: str) -> None:
    condition = stage.condition(pod)
    assert condition["reason"] == reason
    assert word in condition["message"]


def test_a_pod_that_is_narrowed_after_its_devices_were_chosen_goes_where_it_may(stage: Stage) -> None:
    with stage.proxies.api.gate(KUBERNETES["ungate"]) as ungate:
        pod = stage.cluster.pod("narrowed", mig(profile="2g.20gb"))
        ungate.wait_reached()
        first = stage.hold_of(pod)
        (other,) = set(stage.lab.nodes) - {first.node}
        narrow(stage, pod, other)
    stage.cluster.running(pod)
    second = stage.hold_of(pod)
    assert (second.node, second.job_id != first.job_id) == (other, True)
