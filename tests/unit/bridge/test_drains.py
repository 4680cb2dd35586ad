"""A GPU that does not answer keeps Slurm from its node, until it answers again (case C-71)."""

from __future__ import annotations

import pytest

from dynamig.protocol import names
from dynamig.protocol.slurm_jobs import SlurmNodeName
from tests.unit.bridge.stage import Stage, gpu, wants

N1, N2 = SlurmNodeName("n1"), SlurmNodeName("n2")
LOST = gpu("n1", 1)
OURS = f"dynamig: GPU 1: GPU_LOST ({LOST} does not answer)"


@pytest.fixture
def stage() -> Stage:
    return Stage(unhealthy={LOST: "GPU_LOST"})


def test_a_node_is_drained_with_the_reason_and_comes_back_with_its_gpu(stage: Stage) -> None:
    stage.settle()
    assert stage.slurm.drained == {N1: OURS}
    stage.unhealthy = {}
    stage.settle()
    assert stage.slurm.drained == {}


def test_what_runs_there_stays_and_what_is_new_goes_elsewhere() -> None:
    stage = Stage()
    stage.sets.create_pod("before", wants("1g.10gb"))
    stage.settle()
    home = stage.sets.pods["before"]["spec"]["nodeName"]
    stage.unhealthy = {gpu(home, 0): "GPU_LOST"}
    stage.settle()
    assert stage.sets.told["before"][-1][0] == names.GPU_UNHEALTHY
    stage.sets.create_pod("after", wants("1g.10gb"))
    stage.settle()
    assert stage.sets.pods["before"]["spec"]["nodeName"] == home
    assert stage.sets.pods["before"]["status"]["phase"] == "Running"
    assert stage.sets.pods["after"]["spec"]["nodeName"] != home
    stage.unhealthy = {}
    stage.settle()
    assert stage.sets.told["before"][-1][0] == names.PAID


def test_the_reason_follows_what_is_wrong(stage: Stage) -> None:
    stage.settle()
    stage.unhealthy[gpu("n1", 0)] = "NVML_TIMEOUT"
    stage.settle()
    first = f"dynamig: GPU 0: NVML_TIMEOUT ({gpu('n1', 0)} does not answer) and "
    assert stage.slurm.drained == {N1: first + OURS.removeprefix("dynamig: ")}


def test_a_drain_by_a_prolog_without_a_driver_ends_with_its_report(stage: Stage) -> None:
    """`deploy/slurm/prolog.d/50-dynamig` sets it on the node itself."""
    stage.unhealthy, stage.not_ready = {}, {"n2"}
    stage.slurm.drained = {N1: f"{names.DRAINED}no driver answers", N2: f"{names.DRAINED}no driver answers"}
    stage.settle()
    assert stage.slurm.drained == {N2: f"{names.DRAINED}no driver answers"}


@pytest.mark.parametrize("reason", ["maintenance", "Prolog error"])
def test_somebody_elses_drain_stays_as_it_is(stage: Stage, reason: str) -> None:
    stage.slurm.drained[N1] = reason
    stage.settle()
    stage.unhealthy = {}
    stage.settle()
    assert stage.slurm.drained == {N1: reason}


def test_a_node_that_is_down_keeps_its_reason(stage: Stage) -> None:
    stage.slurm.down.add(N1)
    stage.settle()
    assert stage.slurm.drained == {}


def test_an_old_report_ends_no_drain_and_begins_none(stage: Stage) -> None:
    stage.settle()
    stage.not_ready, stage.unhealthy = {"n1", "n2"}, {gpu("n2", 0): "GPU_LOST"}
    stage.settle()
    assert stage.slurm.drained == {N1: OURS}


def test_two_that_say_they_are_one_node_are_both_heard(stage: Stage) -> None:
    """The second lacks nothing: that does not undo what the first says, look for look."""
    stage.slurm_names = {"n2": N1}
    stage.settle()
    assert stage.slurm.drained == {N1: OURS}


def test_a_gpu_that_slurm_does_not_give_out_is_no_reason(stage: Stage) -> None:
    stage.maps["n1"] = {0: gpu("n1", 0)}
    stage.settle()
    assert stage.slurm.drained == {}
