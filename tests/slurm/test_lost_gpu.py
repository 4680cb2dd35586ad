"""A GPU falls off the bus: Slurm gives it to nobody, says why, and has it again when it is back (case C-71)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dynamig.bridge.drain_memory import OVERRULED
from dynamig.driver.service import RESCAN
from dynamig.protocol import names
from lab.components import WATCH_S
from lab.lab import Lab
from tests.e2e.cluster import Cluster, mig, until
from tests.slurm.stage import SLEEPS
from tests.slurm.test_main_job import native_state

pytestmark = pytest.mark.timeout(420)

NODE = "n1"
A_MINUTE = 60.0
OVER = A_MINUTE + WATCH_S
"""Until a GPU that answers again is in use again."""


@pytest.fixture(autouse=True)
def nothing_is_out(lab: Lab, cluster: Cluster) -> Iterator[None]:
    """One test's outage is over before the next begins, or the next one's would be no new one. Before `cluster` resumes
    the node, which would be an administrator's word on it."""
    yield
    until(lambda: _no_outage(lab), within=OVER)


def _no_outage(lab: Lab) -> None:
    assert outages(lab) == {}


@contextmanager
def lost(cluster: Cluster, index: int) -> Iterator[None]:
    cluster.emulator(NODE).lose(index)
    try:
        yield
    finally:
        cluster.emulator(NODE).lose(index, lost=False)


def slurm_node(lab: Lab) -> dict[str, Any]:
    (node,) = [n for n in lab.slurm_json("scontrol", "show", "nodes")["nodes"] if n["name"] == NODE]
    return dict(node)


def reason(lab: Lab) -> str:
    """Why Slurm starts nothing on the node, as `sinfo -R` has it; empty if it does."""
    node = slurm_node(lab)
    return str(node["reason"]) if "DRAIN" in node["state"] else ""


def is_drained_by_us(lab: Lab) -> None:
    assert reason(lab).startswith(names.DRAINED)


def is_not_drained(lab: Lab) -> None:
    assert reason(lab) == ""


def offered(lab: Lab, gpu: str) -> bool:
    """Whether anything of the GPU may be had, as far as its devices' taints say."""
    slices = lab.kubectl_json("get", "resourceslices")["items"]
    devices = [d for s in slices for d in s["spec"].get("devices", ()) if {"string": gpu} in d["attributes"].values()]
    assert devices
    return any({t["key"] for t in d.get("taints", ())} <= {names.MANAGED_TAINT} for d in devices)


def outages(lab: Lab) -> dict[str, Any]:
    """By GPU, as the node's driver last reported."""
    lease = lab.kubectl_json("-n", names.NAMESPACE, "get", "lease", names.lease_name(NODE))
    return dict(json.loads(lease["metadata"]["annotations"][names.REPORT]).get("outages", {}))


def test_slurm_gives_out_no_lost_gpu_and_has_it_again_when_it_is_back(lab: Lab, cluster: Cluster) -> None:
    gpus = cluster.gpus(NODE)
    cluster.pod("lives", mig(profile="1g.10gb"), nodeSelector={"kubernetes.io/hostname": NODE})
    cluster.running("lives")
    index = next(i for i, gpu in enumerate(gpus) if gpu not in {i.gpu for i in cluster.instances()})

    def is_out() -> None:
        assert reason(lab).startswith(f"{names.DRAINED}GPU {index}: GPU_LOST ({gpus[index]}")
        assert not offered(lab, gpus[index])

    def is_back() -> None:
        assert reason(lab) == ""
        assert offered(lab, gpus[index])

    with lost(cluster, index):
        until(is_out, within=A_MINUTE)
        waits = lab.submit(SLEEPS, f"--nodelist={NODE}", "--gres=gpu:1")
        cluster.pod("elsewhere", mig(profile="1g.10gb"))
        cluster.running("elsewhere")
        assert {i.node for i in cluster.instances()} == {*lab.nodes}, "what ran stays, what is new is elsewhere"
        assert native_state(lab, waits) == "PENDING"
        assert cluster.phase("lives") == "Running"
    until(is_back, within=OVER)

    def runs() -> None:
        assert native_state(lab, waits) == "RUNNING"

    until(runs)


def test_a_gpu_that_comes_and_goes_keeps_its_node_drained(lab: Lab, cluster: Cluster) -> None:
    """A second of its own for each state would be enough for Slurm to start a job there."""
    emulator, seen = cluster.emulator(NODE), set[str]()
    emulator.lose(0)
    until(lambda: is_drained_by_us(lab), within=A_MINUTE)
    for flap in range(6):
        emulator.lose(0, lost=bool(flap % 2))
        ends = time.monotonic() + 2 * RESCAN / 3
        while time.monotonic() < ends:
            is_drained_by_us(lab)
            seen |= {word for word in ("does not answer", "answers again") if word in reason(lab)}
    emulator.lose(0, lost=False)
    until(lambda: is_not_drained(lab), within=OVER)
    assert seen == {"does not answer", "answers again"}, "it did come and go"


def test_who_resumes_the_node_of_a_lost_gpu_is_not_contradicted(lab: Lab, cluster: Cluster) -> None:
    """By no later look, by no bridge that starts, and not because slurmctld was started anew meanwhile."""
    with lost(cluster, 0):
        until(lambda: is_drained_by_us(lab), within=A_MINUTE)
        _looked_again(cluster, "first")
        lab.slurm("scontrol", "update", f"nodename={NODE}", "state=resume")
        _looked_again(cluster, "second")
        is_not_drained(lab)
        for daemon in ("slurmctld", "bridge"):
            lab.stop(daemon)
            lab.start(daemon)
        _looked_again(cluster, "third")
        is_not_drained(lab)
    until(lambda: _remembers_nothing(lab), within=OVER)
    with lost(cluster, 0):
        until(lambda: is_drained_by_us(lab), within=A_MINUTE)


def _remembers_nothing(lab: Lab) -> None:
    assert OVERRULED not in slurm_node(lab)["extra"]


def test_an_administrators_down_over_our_drain_is_his_until_he_ends_it(lab: Lab, cluster: Cluster) -> None:
    def is_his() -> None:
        node = slurm_node(lab)
        assert ("DOWN" in node["state"], node["reason"]) == (True, "bad PSU")

    with lost(cluster, 0):
        until(lambda: is_drained_by_us(lab), within=A_MINUTE)
        _looked_again(cluster, "first")
        lab.slurm("scontrol", "update", f"nodename={NODE}", "state=down", "reason=bad PSU")
        _looked_again(cluster, "second")
        is_his()
    until(lambda: _no_outage(lab), within=OVER)
    _looked_again(cluster, "third")
    is_his()
    lab.slurm("scontrol", "update", f"nodename={NODE}", "state=resume")
    until(lambda: _is_idle(lab))


def _is_idle(lab: Lab) -> None:
    assert slurm_node(lab)["state"] == ["IDLE"]


def test_a_pod_whose_gpu_comes_back_without_its_instance_is_told_and_ended(lab: Lab, cluster: Cluster) -> None:
    """As after `nvidia-smi -r`: the GPU answers, what was made on it is gone. The pod takes its time to end."""
    emulator, told = cluster.emulator(NODE), "InstanceLost"
    here = {"kubernetes.io/hostname": NODE}
    slow = "nvml-list && trap : TERM && while :; do sleep 1; done"
    cluster.pod("loses", mig(profile="1g.10gb"), command=slow, nodeSelector=here, terminationGracePeriodSeconds=600)
    cluster.running("loses")
    index = cluster.gpus(NODE).index(next(i.gpu for i in cluster.instances() if i.node == NODE))
    with lost(cluster, index):
        until(lambda: is_drained_by_us(lab), within=A_MINUTE)
        assert cluster.phase("loses") == "Running"
    emulator.reset(index)

    def is_told() -> None:
        assert told in {event["reason"] for event in cluster.events("loses")}
        (device,) = cluster.claim_of("loses")["status"]["devices"]
        (condition,) = device["conditions"]
        assert (condition["status"], condition["reason"]) == ("False", told)

    until(is_told, within=A_MINUTE)
    until(lambda: is_not_drained(lab), within=OVER)


def test_a_driver_that_starts_without_map_while_a_gpu_is_lost_guesses_no_index(lab: Lab, cluster: Cluster) -> None:
    """Its first start, or its state is gone: what answers would be taken for Slurm's GPU 0, which is the lost one."""
    kept = Path(lab.node(NODE).dir) / "dynamig/slurm-devices.json"
    before = json.loads(kept.read_bytes())
    lab.stop(f"driver-{NODE}")
    with lost(cluster, 0):
        kept.unlink()
        lab.start(f"driver-{NODE}")

        def is_out() -> None:
            assert reason(lab) == f"{names.DRAINED}a GPU of unknown index: GPU_LOST (NVML index 0 does not answer)"

        until(is_out, within=A_MINUTE)
        assert not kept.exists()
        waits = lab.submit(SLEEPS, f"--nodelist={NODE}", "--gres=gpu:2")
        assert native_state(lab, waits) == "PENDING"

    def runs() -> None:
        assert native_state(lab, waits) == "RUNNING"

    until(runs, within=OVER)
    assert json.loads(kept.read_bytes()) == before
    is_not_drained(lab)


def test_an_administrators_drain_outlives_a_lost_gpu(lab: Lab, cluster: Cluster) -> None:
    gpu = cluster.gpus(NODE)[0]
    lab.slurm("scontrol", "update", f"nodename={NODE}", "state=drain", "reason=maintenance")

    def seen(by_driver: list[str]) -> None:
        assert list(outages(lab)) == by_driver

    with lost(cluster, 0):
        until(lambda: seen([gpu]), within=A_MINUTE)
        _looked_again(cluster, "first")
        assert reason(lab) == "maintenance"
    until(lambda: seen([]), within=OVER)
    _looked_again(cluster, "second")
    assert reason(lab) == "maintenance"


def _looked_again(cluster: Cluster, pod: str) -> None:
    """The bridge has looked since: it runs a new pod."""
    cluster.pod(pod, mig(profile="1g.10gb"))
    cluster.running(pod)
