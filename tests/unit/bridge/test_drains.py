"""A GPU that does not answer keeps Slurm from its node, until it answers again (case C-71)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dynamig.bridge.actions import Undrain
from dynamig.bridge.drain_memory import DrainMemory, next_memory
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.outages import Outage
from dynamig.protocol.slurm_jobs import SlurmNode, SlurmNodeName
from tests.unit.bridge.stage import Stage, gpu, silent, wants

N1, N2 = SlurmNodeName("n1"), SlurmNodeName("n2")
LOST = gpu("n1", 1)
WATCHED = Outage("GPU_LOST", silent().since, until=1200)
OURS = f"dynamig: GPU 1: GPU_LOST ({LOST} does not answer)"


@pytest.fixture
def stage() -> Stage:
    return Stage(outages={LOST: silent()})


def test_a_node_is_drained_with_the_reason_and_comes_back_with_its_gpu(stage: Stage) -> None:
    stage.settle()
    assert stage.slurm.drained == {N1: OURS}
    stage.outages = {}
    stage.settle()
    assert stage.slurm.drained == {}


def test_what_runs_there_stays_and_what_is_new_goes_elsewhere() -> None:
    stage = Stage()
    stage.sets.create_pod("before", wants("1g.10gb"))
    stage.settle()
    home = stage.sets.pods["before"]["spec"]["nodeName"]
    stage.outages = {gpu(home, 0): silent()}
    stage.settle()
    assert stage.sets.told["before"][-1][0] == names.GPU_UNHEALTHY
    stage.sets.create_pod("after", wants("1g.10gb"))
    stage.settle()
    assert stage.sets.pods["before"]["spec"]["nodeName"] == home
    assert stage.sets.pods["before"]["status"]["phase"] == "Running"
    assert stage.sets.pods["after"]["spec"]["nodeName"] != home
    stage.outages = {}
    stage.settle()
    assert stage.sets.told["before"][-1][0] == names.PAID


def test_only_a_report_from_after_the_drain_ends_it(stage: Stage) -> None:
    """A driver that has just died has reported a moment ago, and its report counts for a while (`FRESH_SECONDS`)."""
    stage.outages = {}
    stage.slurm.drained = {N1: f"{names.DRAINED}no driver answers"}
    stage.slurm.reason_since = int(stage.now) + 1
    stage.look()
    assert stage.slurm.drained == {N1: f"{names.DRAINED}no driver answers"}
    stage.now += 2
    stage.look()
    assert stage.slurm.drained == {}


def test_the_reason_follows_what_is_wrong(stage: Stage) -> None:
    stage.settle()
    first = gpu("n1", 0)
    stage.outages[first] = silent("NVML_TIMEOUT")
    stage.settle()
    alone = f"dynamig: GPU 0: NVML_TIMEOUT ({first} does not answer)"
    assert stage.slurm.drained == {N1: f"{alone} and " + OURS.removeprefix("dynamig: ")}
    del stage.outages[LOST]
    stage.settle()
    assert stage.slurm.drained == {N1: alone}


def test_what_slurmctld_adds_to_our_reason_is_left_there(stage: Stage) -> None:
    """Seen when slurmd of a drained node was away for SlurmdTimeout (26.05.5)."""
    stage.settle()
    stage.slurm.drained[N1] += " : Not responding"
    stage.settle()
    assert stage.slurm.drained == {N1: f"{OURS} : Not responding"}
    stage.outages = {}
    stage.settle()
    assert stage.slurm.drained == {}


def test_a_drain_by_a_prolog_without_a_driver_ends_with_its_report(stage: Stage) -> None:
    """`deploy/slurm/prolog.d/50-dynamig` sets it on the node itself."""
    stage.outages, stage.not_ready = {}, {"n2"}
    stage.slurm.drained = {N1: f"{names.DRAINED}no driver answers", N2: f"{names.DRAINED}no driver answers"}
    stage.settle()
    assert stage.slurm.drained == {N2: f"{names.DRAINED}no driver answers"}


def test_a_gpu_that_answers_again_keeps_its_node_drained_as_long_as_it_is_watched(stage: Stage) -> None:
    stage.settle()
    stage.outages = {LOST: WATCHED}
    stage.settle()
    watched = f"GPU_LOST ({LOST} answers again and is watched until 00:20:00 UTC)"
    assert stage.slurm.drained == {N1: f"dynamig: GPU 1: {watched}"}
    stage.outages = {LOST: silent()}
    stage.settle()
    assert stage.slurm.drained == {N1: OURS}
    assert [type(action) for action, _ in stage.done if isinstance(action, Undrain)] == []


def test_pods_of_a_gpu_that_answers_again_are_told_of_no_silence(stage: Stage) -> None:
    stage.outages = {}
    stage.sets.create_pod("before", wants("1g.10gb"))
    stage.settle()
    home = gpu(stage.sets.pods["before"]["spec"]["nodeName"], 0)
    for outage, told in ((silent(), names.GPU_UNHEALTHY), (WATCHED, names.PAID)):
        stage.outages = {home: outage}
        stage.settle()
        assert stage.sets.told["before"][-1][0] == told


@pytest.mark.parametrize("reason", ["maintenance", "Prolog error"])
def test_somebody_elses_drain_stays_as_it_is(stage: Stage, reason: str) -> None:
    stage.slurm.drained[N1] = reason
    stage.settle()
    stage.outages = {}
    stage.settle()
    assert stage.slurm.drained == {N1: reason}


def test_a_node_that_is_down_keeps_its_reason(stage: Stage) -> None:
    stage.slurm.down.add(N1)
    stage.settle()
    assert stage.slurm.drained == {}


def test_an_old_report_ends_no_drain_and_begins_none(stage: Stage) -> None:
    stage.settle()
    stage.not_ready, stage.outages = {"n1", "n2"}, {gpu("n2", 0): silent()}
    stage.settle()
    assert stage.slurm.drained == {N1: OURS}


def test_two_that_say_they_are_one_node_are_both_heard(stage: Stage) -> None:
    """The second lacks nothing: that does not undo what the first says, look for look."""
    stage.slurm_names = {"n2": N1}
    stage.settle()
    assert stage.slurm.drained == {N1: OURS}


def test_of_two_that_say_they_are_one_node_one_old_report_is_enough_to_conclude_nothing(stage: Stage) -> None:
    """In either direction: what the silent one would say may be the opposite."""
    stage.slurm_names, stage.not_ready = {"n2": N1}, {"n2"}
    stage.settle()
    assert stage.slurm.drained == {}
    stage.slurm.drained, stage.outages = {N1: OURS}, {}
    stage.settle()
    assert stage.slurm.drained == {N1: OURS}


def test_a_gpu_that_was_never_read_drains_a_node_that_has_no_map_of_it(stage: Stage) -> None:
    """Nobody knows which index it has: the reason says what NVML calls it."""
    stage.outages = {GpuUuid("NVML index 0"): silent()}
    stage.maps["n1"] = {}
    stage.settle()
    unknown = "a GPU of unknown index: GPU_LOST (NVML index 0 does not answer)"
    assert stage.slurm.drained == {N1: f"dynamig: {unknown}"}, "n2 has a map, and this GPU is not in it"
    stage.maps["n1"] = {0: gpu("n1", 0), 1: gpu("n1", 1)}
    stage.settle()
    assert stage.slurm.drained == {}


@pytest.mark.parametrize("known", [1, 2])
def test_a_gpu_that_slurm_does_not_give_out_is_no_reason(stage: Stage, known: int) -> None:
    """Taken out of gres.conf, and of the map too or not yet."""
    stage.maps["n1"] = {i: gpu("n1", i) for i in range(known)}
    stage.slurm.shards = {**stage.slurm.shards, N1: stage.slurm.shards[N1][:1]}
    stage.settle()
    assert stage.slurm.drained == {}


def test_an_index_of_slurm_that_the_drivers_map_lacks_drains_the_node(stage: Stage) -> None:
    """NVML did not even list the GPU when the map was made: a job that Slurm gives it would come back for ever."""
    stage.outages = {}
    known = stage.maps["n1"] = {0: gpu("n1", 0)}
    stage.settle()
    assert stage.slurm.drained == {N1: "dynamig: GPU 1: its driver knows no GPU of this index"}
    stage.slurm.resume(N1)
    stage.settle()
    assert stage.slurm.drained == {}, "he has been told"
    known[1] = gpu("n1", 1)
    stage.settle()
    assert stage.slurm.extra[N1] == {}


def test_a_node_whose_driver_has_no_map_yet_is_left_alone(stage: Stage) -> None:
    stage.outages = {}
    stage.maps["n1"] = {}
    stage.settle()
    assert stage.slurm.drained == {}


# -- an administrator's word -------------------------------------------------------------------------------------------


def resumed(stage: Stage) -> None:
    """Our drain stood there, and an administrator has ended it."""
    stage.settle()
    assert stage.slurm.drained == {N1: OURS}
    stage.slurm.resume(N1)
    stage.settle()


def test_who_resumes_a_node_that_we_drained_is_not_contradicted(stage: Stage) -> None:
    resumed(stage)
    assert stage.slurm.drained == {}
    stage.outages = {LOST: WATCHED}
    stage.settle()
    stage.outages = {LOST: silent("NVML_TIMEOUT")}
    stage.settle()
    assert stage.slurm.drained == {}, "it comes and goes: still the same outage"


def test_the_next_outage_drains_the_node_again(stage: Stage) -> None:
    resumed(stage)
    stage.outages = {}
    stage.settle()
    assert stage.slurm.extra[N1] == {}, "nothing is remembered of what is over"
    stage.outages = {LOST: silent(since=990)}
    stage.settle()
    assert stage.slurm.drained == {N1: OURS}


def test_a_next_outage_is_known_as_such_by_a_bridge_that_slept_through_the_end_of_the_last(stage: Stage) -> None:
    resumed(stage)
    stage.outages = {LOST: silent(since=990)}
    stage.settle()
    assert stage.slurm.drained == {N1: OURS}


def test_another_gpu_drains_a_node_that_was_resumed_and_only_for_as_long_as_it_is_out(stage: Stage) -> None:
    resumed(stage)
    other = gpu("n1", 0)
    stage.outages = {LOST: silent(), other: silent()}
    stage.settle()
    assert stage.slurm.drained == {N1: f"dynamig: GPU 0: GPU_LOST ({other} does not answer)"}
    stage.outages = {LOST: silent()}
    stage.settle()
    assert stage.slurm.drained == {}


def test_what_was_resumed_is_remembered_while_the_driver_does_not_report(stage: Stage) -> None:
    resumed(stage)
    stage.not_ready, stage.outages = {"n1"}, {}
    stage.settle()
    stage.not_ready, stage.outages = set(), {LOST: silent()}
    stage.settle()
    assert stage.slurm.drained == {}


def test_a_drain_that_slurmctld_lost_with_its_state_is_set_again(stage: Stage) -> None:
    stage.settle()
    stage.slurm.drained, stage.slurm.extra = {}, {}
    stage.settle()
    assert stage.slurm.drained == {N1: OURS}


@pytest.mark.parametrize("there", [None, {"dynamig": "odd"}, {"dynamig": {"overruled": {LOST: 7, "GPU": "never"}}}])
def test_what_others_wrote_into_extra_is_no_word_on_drains(there: Any) -> None:
    now = frozenset({(LOST, silent().since)})
    node = SlurmNode(N1, True, (), 1, 1, extra=there)
    assert next_memory(node, now) == DrainMemory()
    assert next_memory(replace(node, drained=True, reason=OURS), now) == DrainMemory(drained=now)


def test_his_down_over_our_drain_is_his_with_all_that_is_beneath_it(stage: Stage) -> None:
    """UNDRAIN would have slurmd register, and a site with ReturnToService=2 would have the node up again."""
    stage.settle()
    stage.slurm.downed[N1] = "bad PSU"
    for stage.outages in ({LOST: silent()}, {}):
        stage.settle()
        assert (stage.slurm.drained, stage.slurm.downed) == ({N1: OURS}, {N1: "bad PSU"})


def test_his_down_over_our_drain_and_then_his_resume_is_his_word_on_both(stage: Stage) -> None:
    stage.settle()
    stage.slurm.downed[N1] = "bad PSU"
    stage.settle()
    stage.slurm.resume(N1)
    stage.settle()
    assert stage.slurm.drained == {}


def test_his_down_before_our_drain_is_not_written_over_and_ours_comes_after_it(stage: Stage) -> None:
    stage.slurm.downed[N1] = "bad PSU"
    stage.settle()
    assert (stage.slurm.drained, stage.slurm.downed) == ({}, {N1: "bad PSU"})
    stage.slurm.resume(N1)
    stage.settle()
    assert stage.slurm.drained == {N1: OURS}, "he has not seen ours yet"


def test_our_drain_with_his_reason_is_his_drain(stage: Stage) -> None:
    stage.settle()
    stage.slurm.drained[N1] = "ticket 4711"
    stage.settle()
    stage.outages = {}
    stage.settle()
    assert stage.slurm.drained == {N1: "ticket 4711"}


def test_who_made_our_drain_his_own_and_ends_it_is_not_contradicted(stage: Stage) -> None:
    stage.settle()
    stage.slurm.drained[N1] = "ticket 4711"
    stage.settle()
    stage.slurm.resume(N1)
    stage.settle()
    assert stage.slurm.drained == {}
