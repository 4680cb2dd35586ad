"""What shows an instance to be ours, and what does not: other boots, other UUIDs, places that were only wanted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dynamig.driver import recovery
from dynamig.driver.catalog import build
from dynamig.driver.config import GpuPolicies, GpuPolicy, Policy
from dynamig.driver.hardware import destroy_all_of, in_the_way
from dynamig.errors import Conflict, DynamigError, Refused, Unavailable
from dynamig.mig import CiId, GiId, GpuUuid, MigUuid, Partition, Placement
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.gpus import ComputeInstance, LiveInstance, MigMode
from dynamig.protocol.invariants import i4_ours
from dynamig.protocol.lifecycle import State
from dynamig.protocol.records import ClaimRecord, LiveIds
from dynamig.protocol.seen import Found
from tests.unit.driver.bench_node import NODE, BenchNode
from tests.unit.driver.test_recovery import DiesAt, repair, until_killed

ONE = "1g.10gb"


def partition_of(node: BenchNode, device: tuple[str, str]) -> Partition:
    found = node.catalog().find(*device)[1].partition
    assert found is not None
    return found


def uuid_of(node: BenchNode, gpu: int = 0) -> GpuUuid:
    return node.gpus.readings()[gpu].uuid


def planned(node: BenchNode) -> tuple[recovery.Action, ...]:
    live = {uuid_of(node): node.live()}
    return recovery.plan_recovery(node.journal.records(), live, node.nodes.boot, node.cdi.claims()).actions


# -- whose is it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [0, 1], ids=["same-gpu", "another-gpu-where-it-gets-the-same-id"])
def test_undoing_a_claim_of_several_devices_leaves_what_somebody_put_at_a_place_not_yet_taken(other: int) -> None:
    node = BenchNode.with_gpus(2)
    first, second = node.device(ONE, 0), node.device(ONE, 3, other)
    create = node.gpus.create_gpu_instance
    foreign: list[GiId] = []

    def crowded(gpu: GpuUuid, partition: Partition) -> GiId:
        node.gpus.create_gpu_instance = create  # type: ignore[method-assign]
        made = create(gpu, partition)
        foreign.append(node.gpus.foreign(uuid_of(node, other), partition_of(node, second)))
        return made

    node.gpus.create_gpu_instance = crowded  # type: ignore[method-assign]
    with pytest.raises(DynamigError, match="not made by dynamig"):
        node.prepare(node.allocated("a", first, second))
    assert [i.gi_id for i in node.live(other)] == foreign
    assert node.live(1 - other) == []


def test_what_nvml_made_without_answering_is_undone() -> None:
    node = BenchNode.with_gpus()
    create = node.gpus.create_gpu_instance

    def silently(gpu: GpuUuid, partition: Partition) -> GiId:
        create(gpu, partition)
        raise Unavailable("NVML_TIMEOUT", "no answer in time")

    node.gpus.create_gpu_instance = silently  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        node.prepare(node.allocated("a", node.device(ONE, 0)))
    assert node.live() == []


def test_what_somebody_made_before_nvml_refused_ours_is_theirs() -> None:
    node = BenchNode.with_gpus()
    create = node.gpus.create_gpu_instance

    def too_late(gpu: GpuUuid, partition: Partition) -> GiId:
        node.gpus.create_gpu_instance = create  # type: ignore[method-assign]
        node.gpus.foreign(gpu, partition)
        return create(gpu, partition)

    node.gpus.create_gpu_instance = too_late  # type: ignore[method-assign]
    with pytest.raises(Refused) as told:
        node.prepare(node.allocated("a", node.device(ONE, 0)))
    assert told.value.code == "NO_ROOM"
    assert len(node.live()) == 1


def test_what_an_earlier_boot_left_in_the_journal_is_in_nobodys_way() -> None:
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device(ONE, 0)))
    record = node.journal.records()["a"]
    table, place = node.catalog().of_gpu(uuid_of(node)).table, record.devices[0].partition
    assert in_the_way(uuid_of(node), table, [place], [], [record], record.boot_id)
    assert not in_the_way(uuid_of(node), table, [place], [], [record], "boot-2")


def test_an_intent_of_another_boot_proves_nothing() -> None:
    node = BenchNode.with_gpus()
    device = node.device(ONE, 0)
    ref = node.allocated("a", device)
    assert until_killed(node, DiesAt(3, after=False), lambda: node.prepare(ref)), "dies before the instance is made"
    assert node.journal.records()["a"].state is State.INTENDED
    node.gpus.reboot()
    node.nodes.boot = "boot-2"
    foreign = node.gpus.foreign(uuid_of(node), partition_of(node, device))
    node.restart()
    repair(node)
    assert [i.gi_id for i in node.live()] == [foreign]


def test_a_prepared_record_of_another_boot_is_retired_although_the_ids_agree() -> None:
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device(ONE, 0)))
    there = node.live()
    record = dataclasses.replace(node.journal.records()["a"], boot_id="boot-0")
    node.journal.write(record)
    assert node.service.endings.retire(record)
    assert node.journal.records()["a"].state is State.HELD
    assert node.live() == there, "made since, by whomever"


def test_what_two_records_prove_to_be_theirs_is_neithers_to_destroy() -> None:
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device(ONE, 0)))
    record = node.journal.records()["a"]
    rival = dataclasses.replace(record, ref=ClaimRef("ns", "claim-b", "b"))
    there = node.live()
    destroy_all_of(node.gpus, record, [rival], node.nodes.boot)
    assert node.live() == there
    destroy_all_of(node.gpus, record, [], node.nodes.boot)
    assert node.live() == []


def test_what_nvml_made_elsewhere_for_a_claim_is_that_claims_wherever_it_is_in_the_way() -> None:
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device(ONE, 0)))
    (stray,) = node.live()
    record = node.journal.records()["a"]
    asked = partition_of(node, node.device(ONE, 5))
    device = dataclasses.replace(record.devices[0], partition=asked, live=LiveIds(stray.gi_id))
    stray = dataclasses.replace(stray, compute=())
    retiring = dataclasses.replace(record, state=State.RETIRING, devices=(device,))
    table = node.catalog().of_gpu(uuid_of(node)).table
    found = in_the_way(uuid_of(node), table, [stray.partition], [stray], [retiring], node.nodes.boot)
    assert (found.claims, found.foreign) == ((retiring,), ())


def test_place_id_and_uuid_must_agree() -> None:
    """Ids are given out again, and nothing says that a UUID is not."""
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device(ONE, 0)))
    (there,), records, boot = node.live(), node.journal.records(), node.nodes.boot
    assert i4_ours(uuid_of(node), there, records.values(), boot) == (records["a"],)
    for other in (
        dataclasses.replace(there, placement=Placement(3, 1)),
        dataclasses.replace(there, gi_id=GiId(there.gi_id + 1)),
        dataclasses.replace(there, compute=(ComputeInstance(CiId(0), MigUuid("MIG-other"), fills=True),)),
    ):
        assert i4_ours(uuid_of(node), other, records.values(), boot) == ()


def test_a_gpu_instance_without_compute_instance_is_not_a_prepared_claims() -> None:
    node = BenchNode.with_gpus()
    device = node.device(ONE, 0)
    node.prepare(node.allocated("a", device))
    node.gpus.reboot()
    node.gpus.create_gpu_instance(uuid_of(node), partition_of(node, device))  # the same id, made by hand
    node.service.endings.unprepare("a")
    assert len(node.live()) == 1


@pytest.mark.parametrize("remade", [True, False], ids=["remade-by-hand", "compute-instance-gone"])
def test_a_prepared_claim_whose_device_is_not_what_was_prepared_is_noticed(remade: bool) -> None:
    node = BenchNode.with_gpus()
    device = node.device(ONE, 0)
    node.prepare(node.allocated("a", device))
    if remade:
        node.gpus.reboot()
        node.gpus.foreign(uuid_of(node), partition_of(node, device))
    else:
        (instance,) = node.live()
        node.gpus.destroy_compute_instance(uuid_of(node), instance.gi_id, instance.compute[0].ci_id)
    assert [type(a).__name__ for a in planned(node)] == ["Retire"]


def test_a_retirement_that_was_planned_on_a_wrong_answer_is_not_run() -> None:
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device(ONE, 0)))
    running = node.live()
    (action,) = recovery.plan_recovery(node.journal.records(), {uuid_of(node): []}, node.nodes.boot, ["a"]).actions
    assert isinstance(action, recovery.Retire)
    assert not node.service.endings.retire(action.record), "the instance is there at a second look"
    assert node.live() == running


# -- when the hardware cannot be asked ----------------------------------------------------------------------------


def test_a_gpu_that_was_replaced_while_the_node_was_off_keeps_no_claim() -> None:
    node = BenchNode.with_gpus(2)
    ref = node.allocated("a", node.device(ONE, 0, gpu=1))
    node.prepare(ref)
    gone = uuid_of(node, 1)
    node.gpus.reboot()
    node.nodes.boot = "boot-2"
    del node.gpus._readings[gone]
    instances = node.gpus.instances

    def absent(gpu: GpuUuid) -> object:
        if gpu == gone:
            raise Unavailable("NOT_FOUND", "no such GPU")
        return instances(gpu)

    node.gpus.instances = absent  # type: ignore[method-assign,assignment]
    node.restart()
    node.service.endings.unprepare("a")
    node.claims.deallocate(ref, delete=True)
    assert node.service.endings.settle("a")


def test_a_full_disk_does_not_stop_an_unprepare() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device(ONE, 0))
    node.prepare(ref)
    write = node.journal.write

    def full(record: ClaimRecord) -> None:
        raise Unavailable("JOURNAL_UNWRITABLE", "no space left on device")

    node.journal.write = full  # type: ignore[method-assign]
    node.service.endings.unprepare("a")
    assert node.live() == []
    assert node.journal.records() == {}, "removing a file frees space; the claim's finalizer tells of it"
    node.journal.write = write  # type: ignore[method-assign]
    node.claims.deallocate(ref, delete=True)
    node.restart()
    repair(node)
    assert not isinstance(node.claims.get(ref), Found)


def test_an_instance_that_somebody_made_after_ours_was_seen_gone_keeps_no_finalizer() -> None:
    node = BenchNode.with_gpus()
    device = node.device(ONE, 0)
    ref = node.allocated("a", device)
    node.prepare(ref)
    node.service.endings.unprepare("a")
    node.gpus.foreign(uuid_of(node), partition_of(node, device))
    node.claims.deallocate(ref, delete=True)
    assert node.service.endings.settle("a")


# -- damaged records --------------------------------------------------------------------------------------------


def test_a_damaged_record_is_evidence_and_of_its_claim_nothing_is_concluded(tmp_path: Path) -> None:
    node, _, path = BenchNode.with_damaged_record(tmp_path / "claims", ONE)
    damaged = path.read_bytes()
    repair(node)
    assert path.read_bytes() == damaged
    assert "a" in node.cdi.specs, "its pod may be running"
    assert len(node.live()) == 1


# -- policy and mode change under a claim --------------------------------------------------------------------------


def test_a_claim_is_noted_and_let_go_although_its_device_is_no_longer_offered() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device(ONE, 0))
    assert until_killed(node, DiesAt(1, after=True), lambda: node.prepare(ref)), "dies right after the finalizer"
    node.policies = GpuPolicies(default=GpuPolicy(policy=Policy.WHOLE))
    node.restart()
    node.claims.deallocate(ref, delete=True)
    repair(node)
    assert not isinstance(node.claims.get(ref), Found)


def test_a_prepared_claim_is_answered_whatever_else_has_changed() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device(ONE, 0))
    first = node.prepare(ref)
    node.policies = GpuPolicies(default=GpuPolicy(policy=Policy.WHOLE))
    node.restart()
    assert node.prepare(ref) == first
    node.claims._objects["ns", "claim-a"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert node.prepare(ref) == first


@pytest.mark.parametrize(
    "policy",
    [GpuPolicy(profiles=frozenset({ONE})), GpuPolicy(policy=Policy.WHOLE), GpuPolicy(policy=Policy.IGNORE)],
    ids=["allow-list", "whole", "ignore"],
)
def test_a_held_device_stays_published_after_the_policy_changed(policy: GpuPolicy) -> None:
    node = BenchNode.with_gpus()
    pool, device = node.device("4g.40gb", 0)
    node.prepare(node.allocated("a", (pool, device)))
    node.policies = GpuPolicies(default=policy)
    (held,) = [d for d in node.catalog().offers[pool].pool.devices if d.name == device]
    assert [t.key for t in held.taints] == [names.WITHDRAWN_TAINT]
    assert held.consumes, "and its counters with it"
    node.service.endings.unprepare("a")
    node.journal.forget("a")
    offers = node.catalog().offers
    assert pool not in offers or device not in {d.name for d in offers[pool].pool.devices}


def test_a_held_whole_gpu_stays_published_after_the_mode_was_switched_by_hand() -> None:
    node = BenchNode.with_gpus(mode_switch_needs_reset=True, mode=MigMode.OFF)
    pool, device = node.whole()
    node.prepare(node.allocated("a", (pool, device)))
    node.gpus.set_mig_mode(uuid_of(node), on=True)
    assert device in {d.name for d in node.catalog().offers[pool].pool.devices}


def test_a_foreign_instance_withdraws_what_its_engines_leave_no_room_for() -> None:
    node = BenchNode.with_gpus()
    offer = node.catalog().offers[f"{NODE}/gpu-0"]
    media = [d.partition for d in offer.pool.devices if d.partition and offer.profile_name(d.partition) == "1g.10gb+me"]
    node.gpus.foreign(uuid_of(node), media[-1])
    foreign: dict[GpuUuid, tuple[LiveInstance, ...]] = {uuid_of(node): tuple(node.live())}
    marked = build(NODE, node.gpus.readings(), {uuid_of(node): 0}, GpuPolicies(), foreign)
    (after,) = marked.offers.values()
    assert [d.name for d in after.pool.devices if d.partition in media and not d.taints] == []


# -- what waiting cures -------------------------------------------------------------------------------------------


def test_a_conflict_while_the_finalizer_is_put_is_read_again_and_not_an_error() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device(ONE, 0))
    node.claims.faults.fail("hold", Conflict("CONFLICT", "a second pod reserved the claim"))
    assert node.prepare(ref, patience=30.0)
    assert len(node.live()) == 1


# -- the operator's way out ---------------------------------------------------------------------------------------


def test_a_claim_that_the_kubelet_forgot_is_released_by_hand_once_it_is_over() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device(ONE, 0))
    node.prepare(ref)
    with pytest.raises(DynamigError, match="pod") as told:
        node.service.endings.release("a")
    assert told.value.code == "STILL_ALLOCATED"
    node.claims.deallocate(ref, delete=True)
    node.claims.silent = True
    with pytest.raises(Unavailable):
        node.service.endings.release("a")
    assert len(node.live()) == 1
    node.claims.silent = False
    node.service.endings.release("a")
    assert node.live() == []
    assert node.service.endings.settle("a")
    assert node.is_clean()
    with pytest.raises(DynamigError, match="journal"):
        node.service.endings.release("a")


@pytest.mark.parametrize(
    ("deleted", "reserved", "over"),
    [(False, False, False), (True, True, False), (True, False, True)],
    ids=["allocated", "deleted-while-its-pod-runs", "deleted"],
)
def test_a_claim_is_released_by_hand_only_if_no_pod_has_it_or_can_get_it(
    deleted: bool, reserved: bool, over: bool
) -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device(ONE, 0))
    node.prepare(ref)
    claim = node.claims._objects[ref.namespace, ref.name]
    if deleted:
        claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if not reserved:
        claim["status"]["reservedFor"] = []
    if over:
        node.service.endings.release("a")
    else:
        with pytest.raises(DynamigError) as told:
            node.service.endings.release("a")
        assert told.value.code == "STILL_ALLOCATED"
    assert bool(node.live()) is not over
