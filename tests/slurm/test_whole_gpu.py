"""A pod that has a GPU whole is paid for by all of its shards, beside native jobs and partitions of other GPUs.

Native jobs look during all of it (`native.py`): neither an instance nor a container may be on a GPU that they have.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dynamig.protocol.shards import units_of_geometry
from dynamig.slurm.gres import gpus
from lab.lab import Lab
from tests.e2e.cluster import Cluster, mig, until, whole
from tests.slurm.stage import PATIENCE, Stage, staged
from tests.unit.mig.models import H100

pytestmark = pytest.mark.timeout(420)

ALL = units_of_geometry(H100).count
"""Shards of a GPU."""


@pytest.fixture
def stage(lab: Lab, cluster: Cluster) -> Iterator[Stage]:
    with staged(lab, cluster) as made:
        yield made


def used(stage: Stage, node: str) -> dict[int, tuple[int, bool]]:
    """Slurm's index of each GPU, to the shards in use and whether a native job has it."""
    (found,) = (n for n in stage.lab.slurm_json("scontrol", "show", "nodes")["nodes"] if n["name"] == node)
    return {gpu.index: (gpu.used, gpu.taken) for gpu in gpus(found["gres"], found["gres_used"])}


def gpu_of(stage: Stage, node: str, index: int) -> dict[str, Any]:
    """As `nvml-list` tells of it."""
    found: dict[str, Any] = next(g for g in stage.lab.node(node).nvml_list()["gpus"] if g["minor"] == index)
    return found


def native_on_one(stage: Stage, node: str, output: str) -> int:
    script = "#!/bin/sh\necho GPUS $SLURM_JOB_GPUS\nsleep 1000\n"
    return stage.lab.submit(script, f"--nodelist={node}", "--gres=gpu:1", f"--output={output}", user="root")


def state(stage: Stage, job: int) -> str:
    return stage.lab.slurm("squeue", "--noheader", f"--jobs={job}", "--format=%T").strip()


def test_a_whole_gpu_is_held_seen_and_kept_from_native_jobs(stage: Stage) -> None:
    pod = stage.cluster.pod("whole", whole())
    stage.cluster.running(pod)
    hold = stage.hold_of(pod)
    data = stage.cluster.device_of(pod)["data"]
    index = stage.cluster.gpus(hold.node).index(data["gpuUUID"])
    other = 1 - index
    assert used(stage, hold.node)[index] == (ALL, False)
    assert [g["uuid"] for g in stage.cluster.container_sees(pod)["gpus"]] == [data["gpuUUID"]]

    beside = native_on_one(stage, hold.node, "beside.out")
    kept_off = native_on_one(stage, hold.node, "kept-off.out")
    until(lambda: _equal(state(stage, beside), "RUNNING"), within=PATIENCE)
    until(lambda: _in(f"GPUS {other}", stage.lab.node(hold.node).run("sh", "-c", "cat ~root/beside.out")))
    time.sleep(3)
    assert state(stage, kept_off) == "PENDING"

    stage.let_go(pod)
    until(lambda: _equal(state(stage, kept_off), "RUNNING"), within=PATIENCE)
    stage.no_holds()
    assert stage.cluster.journal(hold.node) == {}
    until(lambda: _in(f"GPUS {index}", stage.lab.node(hold.node).run("sh", "-c", "cat ~root/kept-off.out")))
    stage.lab.slurm("scancel", str(beside), str(kept_off))


def test_the_mig_mode_follows_from_partition_to_whole_to_native_and_back(stage: Stage) -> None:
    """On Hopper it is switched for each; a whole GPU waits as long as anything is on the one it asks for."""
    uuid = stage.cluster.gpus("n1")[0]
    for turn in ("first", "again"):
        part, full = f"part-{turn}", f"full-{turn}"
        stage.cluster.pod(part, mig(profile="3g.40gb", gpu=uuid))
        stage.cluster.running(part)
        assert gpu_of(stage, "n1", 0)["mig_current"] == 1
        stage.cluster.pod(full, whole(gpu=uuid))
        time.sleep(3)
        assert stage.cluster.phase(full) == "Pending"
        stage.let_go(part)
        stage.cluster.running(full)
        gpu = gpu_of(stage, "n1", 0)
        assert (gpu["mig_current"], gpu.get("gpu_instances", [])) == (0, [])
        assert stage.cluster.container_sees(full)["mig_devices"] == []
        assert used(stage, "n1")[0] == (ALL, False)
        stage.let_go(full)
        stage.gone(full)
        stage.no_holds()


def test_a_hold_of_a_whole_gpu_that_is_cancelled_ends_its_pod_before_a_native_job_starts(stage: Stage) -> None:
    pod = stage.cluster.pod("cancelled", whole(), command="trap '' TERM; nvml-list; while :; do sleep 0.2; done")
    stage.cluster.running(pod)
    hold = stage.hold_of(pod)
    waiting = stage.lab.submit("#!/bin/sh\nsleep 5\n", f"--nodelist={hold.node}", "--gres=gpu:2", user="root")
    stage.lab.slurm("scancel", str(hold.job_id))
    stage.gone(pod)
    said = json.dumps([event["message"] for event in stage.cluster.events(pod)])
    assert f"Slurm job {hold.job_id}" in said
    until(lambda: _in(state(stage, waiting), ("RUNNING", "")), within=PATIENCE)


def _in(thing: object, many: Any) -> None:
    assert thing in many


def _equal(seen: object, wanted: object) -> None:
    assert seen == wanted
