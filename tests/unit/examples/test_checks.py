"""The demo's checks: all pass where all is well, and each thing that can be wrong fails the check that is about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dynamig.cli.holdings import HoldingState
from examples.demo import cast
from examples.demo.checks import Evidence, all_checks, overlaps, room_for
from examples.demo.seen import GpuSeen, Instance, MigSeen, Moment, Visible
from tests.unit.cli.cluster import mig_uuid
from tests.unit.examples.world import POOLS, evidence, on

GPU_A, GPU_B, GPU_T = (str(POOLS[name].gpu.uuid) for name in ("n1/gpu-0", "n1/gpu-1", "n2/gpu-0"))
NOTEBOOK_UUID = mig_uuid(*on("n1/gpu-0", "1g10gb-19-6")[0])


def failed(e: Evidence) -> set[str]:
    return {check.claims.split()[0] for check in all_checks(e) if not check.passed}


def with_gpu(moment: Moment, gpu: str, seen: GpuSeen) -> Moment:
    nodes = {
        name: replace(node, gpus={**node.gpus, gpu: seen}) if gpu in node.gpus else node
        for name, node in moment.nodes.items()
    }
    return replace(moment, nodes=nodes)


def with_inside(moment: Moment, pod: str, seen: Visible, container: str = "main") -> Moment:
    return replace(moment, inside={**moment.inside, (pod, container): seen})


def without_instance(moment: Moment, gpu: str, uuid: str) -> Moment:
    there = moment.gpus[gpu]
    return with_gpu(moment, gpu, replace(there, instances=tuple(i for i in there.instances if uuid not in i.uuids)))


def test_all_pass_where_all_is_well() -> None:
    found = all_checks(evidence())
    assert [c.claims for c in found if not c.passed] == []
    assert all(c.seen for c in found)


def two_devices(e: Evidence) -> Evidence:
    seen = e.full.inside["notebook", "main"]
    more = {**seen.mig, "MIG-other": MigSeen(GPU_A, "NVIDIA H100 80GB HBM3 MIG 2g.20gb", 20096)}
    return replace(e, full=with_inside(e.full, "notebook", replace(seen, mig=more)))


def other_uuid(e: Evidence) -> Evidence:
    seen = Visible({GPU_A: True}, {"MIG-other": MigSeen(GPU_A, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984)})
    return replace(e, full=with_inside(e.full, "notebook", seen))


def other_profile(e: Evidence) -> Evidence:
    seen = Visible({GPU_A: True}, {NOTEBOOK_UUID: MigSeen(GPU_A, "NVIDIA H100 80GB HBM3 MIG 1g.20gb", 20096)})
    return replace(e, full=with_inside(e.full, "notebook", seen))


def second_gpu(e: Evidence) -> Evidence:
    seen = e.full.inside["notebook", "main"]
    return replace(e, full=with_inside(e.full, "notebook", replace(seen, gpus={**seen.gpus, GPU_B: True})))


def silent(e: Evidence) -> Evidence:
    rest = {key: value for key, value in e.full.inside.items() if key != ("notebook", "main")}
    return replace(e, full=replace(e.full, inside=rest))


def elsewhere_on_the_hardware(e: Evidence) -> Evidence:
    moved = with_gpu(without_instance(e.full, GPU_A, NOTEBOOK_UUID), GPU_A, GpuSeen(True, (
        *(i for i in e.full.gpus[GPU_A].instances if NOTEBOOK_UUID not in i.uuids), Instance(5, 1, (NOTEBOOK_UUID,)),
    )))  # fmt: skip
    return replace(e, full=moved)


def not_on_the_hardware(e: Evidence) -> Evidence:
    return replace(e, full=without_instance(e.full, GPU_A, NOTEBOOK_UUID))


def mig_on_under_training(e: Evidence) -> Evidence:
    return replace(e, full=with_gpu(e.full, GPU_T, GpuSeen(mig_on=True, instances=())))


def larger_than_needed(e: Evidence) -> Evidence:
    seen = e.full.inside["inference", "main"]
    grown = {uuid: replace(device, memory_mib=81152) for uuid, device in seen.mig.items()}
    return replace(e, full=with_inside(e.full, "inference", replace(seen, mig=grown)))


def bob_sees_batch(e: Evidence) -> Evidence:
    return replace(e, full=with_inside(e.full, "team-bob", e.full.inside["batch", "main"]))


def foreign_instance(e: Evidence) -> Evidence:
    there = e.full.gpus[GPU_A]
    more = (*there.instances, Instance(4, 1, ("MIG-foreign",)))
    return replace(e, full=with_gpu(e.full, GPU_A, replace(there, instances=more)))


def overlap(e: Evidence) -> Evidence:
    there = e.full.gpus[GPU_A]
    more = (*there.instances, Instance(3, 1, ()))
    return replace(e, full=with_gpu(e.full, GPU_A, replace(there, instances=more)))


def cdi_file_too_many(e: Evidence) -> Evidence:
    nodes = {**e.full.nodes, "n1": replace(e.full.nodes["n1"], cdi=e.full.nodes["n1"].cdi | {"uid-old"})}
    return replace(e, full=replace(e.full, nodes=nodes))


def journal_record_missing(e: Evidence) -> Evidence:
    nodes = {**e.full.nodes, "n2": replace(e.full.nodes["n2"], journal=frozenset())}
    return replace(e, full=replace(e.full, nodes=nodes))


def latecomer_did_not_wait(e: Evidence) -> Evidence:
    return replace(e, full=replace(e.later, api=replace(e.full.api, pods=e.later.api.pods)))


def waited_for_nothing(e: Evidence) -> Evidence:
    return replace(e, full=with_gpu(e.full, GPU_B, GpuSeen(True, ())))


def ran_elsewhere(e: Evidence) -> Evidence:
    gpus = tuple(
        replace(g, holdings=tuple(replace(h, gpu=GPU_B) if "training" in h.pods else h for h in g.holdings))
        for g in e.full.api.gpus
    )
    return replace(e, full=replace(e.full, api=replace(e.full.api, gpus=gpus)))


def instance_left(e: Evidence) -> Evidence:
    return replace(e, end=with_gpu(e.end, GPU_A, GpuSeen(True, (Instance(6, 1, ("MIG-left",)),))))


def record_left(e: Evidence) -> Evidence:
    nodes = {**e.end.nodes, "n1": replace(e.end.nodes["n1"], journal=frozenset({"uid-left"}))}
    return replace(e, end=replace(e.end, nodes=nodes))


def claim_left(e: Evidence) -> Evidence:
    api = replace(e.end.api, claims={"uid": f"{cast.NAMESPACE}/team"})
    return replace(e, end=replace(e.end, api=api))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (two_devices, "notebook"),
        (other_uuid, "notebook"),
        (other_profile, "notebook"),
        (second_gpu, "notebook"),
        (silent, "notebook"),
        (elsewhere_on_the_hardware, "notebook"),
        (not_on_the_hardware, "hardware"),
        (mig_on_under_training, "training"),
        (larger_than_needed, "inference"),
        (bob_sees_batch, "two"),
        (foreign_instance, "hardware"),
        (overlap, "several"),
        (cdi_file_too_many, "one"),
        (journal_record_missing, "one"),
        (latecomer_did_not_wait, "latecomer"),
        (waited_for_nothing, "latecomer"),
        (ran_elsewhere, "latecomer"),
        (instance_left, "all"),
        (record_left, "nothing"),
        (claim_left, "nothing"),
    ],
)
def test_what_is_wrong_fails_the_check_about_it(wrong: Callable[[Evidence], Evidence], told: str) -> None:
    assert told in failed(wrong(evidence()))


def test_room_is_where_the_hardware_has_nothing_and_mig_is_on() -> None:
    full = evidence().full
    assert room_for(full, "3g.40gb") == []
    assert room_for(full, "1g.10gb") == ["gpu-0-mig-1g10gb-19-4", "gpu-0-mig-1g10gb-19-5"]


def test_instances_of_different_gpus_do_not_overlap() -> None:
    one = GpuSeen(True, (Instance(0, 4, ()),))
    assert overlaps([one, one]) == 0
    assert overlaps([GpuSeen(True, (Instance(0, 4, ()), Instance(3, 1, ())))]) == 1


def test_the_worlds_holdings_are_ready() -> None:
    assert {h.state for h in evidence().full.api.holdings} == {HoldingState.READY}
