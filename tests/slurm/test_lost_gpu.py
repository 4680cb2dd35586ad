"""A GPU falls off the bus: Slurm gives it to nobody, says why, and has it again when it is back (case C-71)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from dynamig.protocol import names
from lab.lab import Lab
from tests.e2e.cluster import Cluster, mig, until
from tests.slurm.stage import SLEEPS
from tests.slurm.test_main_job import native_state

NODE = "n1"
A_MINUTE = 60.0


@contextmanager
def lost(cluster: Cluster, index: int) -> Iterator[None]:
    cluster.emulator(NODE).lose(index)
    try:
        yield
    finally:
        cluster.emulator(NODE).lose(index, lost=False)


def reason(lab: Lab) -> str:
    """Why Slurm starts nothing on the node, as `sinfo -R` has it; empty if it does."""
    (node,) = [n for n in lab.slurm_json("scontrol", "show", "nodes")["nodes"] if n["name"] == NODE]
    return str(node["reason"]) if "DRAIN" in node["state"] else ""


def offered(lab: Lab, gpu: str) -> bool:
    """Whether anything of the GPU may be had, as far as its devices' taints say."""
    slices = lab.kubectl_json("get", "resourceslices")["items"]
    devices = [d for s in slices for d in s["spec"].get("devices", ()) if {"string": gpu} in d["attributes"].values()]
    assert devices
    return any({t["key"] for t in d.get("taints", ())} <= {names.MANAGED_TAINT} for d in devices)


def reported(lab: Lab) -> list[str]:
    """GPUs that do not answer, as the node's driver last said."""
    lease = lab.kubectl_json("-n", names.NAMESPACE, "get", "lease", names.lease_name(NODE))
    return list(json.loads(lease["metadata"]["annotations"][names.REPORT]).get("unhealthy", ()))


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
    until(is_back, within=A_MINUTE)

    def runs() -> None:
        assert native_state(lab, waits) == "RUNNING"

    until(runs)


def test_an_administrators_drain_outlives_a_lost_gpu(lab: Lab, cluster: Cluster) -> None:
    gpu = cluster.gpus(NODE)[0]
    lab.slurm("scontrol", "update", f"nodename={NODE}", "state=drain", "reason=maintenance")

    def seen(by_driver: list[str]) -> None:
        assert reported(lab) == by_driver

    with lost(cluster, 0):
        until(lambda: seen([gpu]), within=A_MINUTE)
        _looked_again(cluster, "first")
        assert reason(lab) == "maintenance"
    until(lambda: seen([]), within=A_MINUTE)
    _looked_again(cluster, "second")
    assert reason(lab) == "maintenance"


def _looked_again(cluster: Cluster, pod: str) -> None:
    """The bridge has looked since: it runs a new pod."""
    cluster.pod(pod, mig(profile="1g.10gb"))
    cluster.running(pod)
