"""Prepare and unprepare: what is on the hardware, in the journal and in the CDI file after each way it can go."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from dynamig.errors import DynamigError, Refused, Unavailable
from dynamig.mig import GpuUuid, Partition, Placement
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.gpus import LiveInstance, MigMode
from dynamig.protocol.invariants import i1_disjoint
from dynamig.protocol.lifecycle import State
from dynamig.protocol.records import ClaimRecord
from dynamig.protocol.seen import Found
from tests.unit.driver.bench_node import BenchNode, h100, in_thread


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(DynamigError) as caught:
        call()
    return caught.value.code


def test_a_prepared_claim_lives_at_exactly_the_placement_of_its_device() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("3g.40gb", 4))
    (device,) = node.prepare(ref)
    (instance,) = node.live()
    assert instance.placement == Placement(4, 4)
    assert (device.request, device.pool, device.device) == ("r0", *node.device("3g.40gb", 4))
    assert device.cdi_id == f"k8s.gpu.nvidia.com/claim=a-{device.device}"
    record = node.journal.records()["a"]
    assert record.state is State.PREPARED
    assert record.devices[0].live is not None
    assert record.devices[0].live.mig_uuid == instance.compute[0].uuid


def test_the_cdi_file_has_exactly_the_nodes_of_the_instance_and_no_siblings() -> None:
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device("1g.10gb", 0)))
    node.prepare(node.allocated("b", node.device("1g.10gb", 1)))
    record = node.journal.records()["a"]
    live = record.devices[0].live
    assert live is not None
    assert live.ci_id is not None
    spec = node.cdi.specs["a"]
    paths = {n["path"] for d in spec["devices"] for n in d["containerEdits"]["deviceNodes"]}
    caps = {p for p in paths if "nvidia-caps" in p}
    assert caps == {n.path for n in node.nodes.capability_nodes(0, live.gi_id, live.ci_id)}
    assert paths - caps == {"/dev/nvidia0", "/dev/nvidiactl"}
    assert "NVIDIA_VISIBLE_DEVICES=void" in spec["containerEdits"]["env"]


def test_one_claims_edits_do_not_reach_the_next() -> None:
    alone = BenchNode.with_gpus()
    alone.prepare(alone.allocated("b", alone.device("1g.10gb", 1)))
    after = BenchNode.with_gpus()
    after.prepare(after.allocated("a", after.device("1g.10gb", 0)))
    after.service.endings.unprepare("a")
    after.prepare(after.allocated("b", after.device("1g.10gb", 1)))
    assert after.cdi.specs["b"] == alone.cdi.specs["b"]


def test_prepare_twice_unprepare_once() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("2g.20gb", 0))
    first = node.prepare(ref)
    before = node.live(), node.journal.records()
    node.gpus.faults.fail("create_gpu_instance", Unavailable("NVML_UNAVAILABLE", "must not be called"))
    assert node.prepare(ref) == first
    assert (node.live(), node.journal.records()) == before
    node.service.endings.unprepare("a")
    node.claims.deallocate(ref, delete=True)
    assert node.service.endings.settle("a")
    assert node.is_clean()


def test_what_was_prepared_before_a_reboot_is_made_anew() -> None:
    """Also when the kubelet asks before anybody has looked at what the reboot left."""
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("2g.20gb", 0))
    node.prepare(ref)
    node.gpus.reboot()
    node.nodes.boot = "boot-2"
    node.restart()
    node.prepare(ref)
    assert [i.placement for i in node.live()] == [Placement(0, 2)]
    assert node.journal.records()["a"].boot_id == "boot-2"


def test_a_claim_that_was_allocated_anew_is_not_answered_with_what_it_had() -> None:
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device("1g.10gb", 0)))
    ref = node.allocated("a", node.device("1g.10gb", 3))
    assert code_of(lambda: node.prepare(ref)) == "CLAIM_CHANGED"
    assert [i.placement.start for i in node.live()] == [0], "its pod may be running: the kubelet unprepares it first"
    node.service.endings.unprepare("a")
    node.prepare(ref)
    assert [i.placement.start for i in node.live()] == [3]


def test_a_cdi_file_that_was_lost_is_there_again_when_prepare_has_answered() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    node.prepare(ref)
    kept = node.cdi.specs.pop("a")
    node.prepare(ref)
    assert node.cdi.specs == {"a": kept}


@pytest.mark.parametrize("act", ["create_gpu_instance", "destroy_gpu_instance"])
def test_one_act_at_a_time_on_a_gpu(act: str) -> None:
    """MIG mode switched, place looked at and instance made, or destroyed and seen gone, under one lock."""
    node = BenchNode.with_gpus()
    first, second = (node.allocated(uid, node.device("1g.10gb", n)) for n, uid in enumerate("ab"))
    call, waited = getattr(node.gpus, act), list[bool]()

    def slowly(*args: object) -> object:
        setattr(node.gpus, act, call)
        other = in_thread(node.prepare, second)
        other.join(0.3)
        waited.append(other.is_alive())
        return call(*args)

    setattr(node.gpus, act, slowly)
    node.prepare(first)
    node.service.endings.unprepare("a")
    assert waited == [True]


@pytest.mark.parametrize(
    "act",
    [
        lambda node: node.service.endings.unprepare("a"),
        lambda node: node.service.endings.settle("a"),
        lambda node: node.service.endings.retire(node.journal.records()["a"]),
    ],
    ids=["unprepare", "settle", "retire"],
)
def test_what_ends_a_claim_waits_for_its_prepare(act: Callable[[BenchNode], object]) -> None:
    node = BenchNode.with_gpus()
    write, waited = node.cdi.write, list[bool]()

    def slowly(uid: str, spec: Mapping[str, Any]) -> None:
        ending = in_thread(act, node)
        ending.join(0.3)
        waited.append(ending.is_alive())
        write(uid, spec)

    node.cdi.write = slowly  # type: ignore[method-assign]
    node.prepare(node.allocated("a", node.device("1g.10gb", 0)))
    assert waited == [True]


def test_devices_of_a_claim_that_exclude_each_other_are_noticed_before_any_act() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("2g.20gb", 0), node.device("1g.10gb", 1))
    assert code_of(lambda: node.prepare(ref)) == "I2"
    assert node.gpus.most_alive == {node.gpus.readings()[0].uuid: 0}


def test_a_claim_that_a_bug_lets_in_at_the_same_place_is_noticed_before_any_act() -> None:
    """I1 is looked at once more when the claim is written down, whatever was seen before."""
    node = BenchNode.with_gpus()
    device = node.device("1g.10gb", 0)
    node.prepare(node.allocated("rival", device))
    rival = node.journal.records()["rival"]
    node.service.endings.unprepare("rival")
    look = node.gpus.instances

    def meanwhile(gpu: GpuUuid) -> Sequence[LiveInstance]:
        node.journal.write(rival)
        return look(gpu)

    ref = node.allocated("a", device)
    node.gpus.instances = meanwhile  # type: ignore[method-assign]
    assert code_of(lambda: node.prepare(ref)) == "I1"
    node.gpus.instances = look  # type: ignore[method-assign]
    assert node.live() == []


def test_what_waiting_does_not_cure_is_told_at_once() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    node.gpus.faults.fail("create_gpu_instance", Unavailable("NVML_UNAVAILABLE", "injected"))
    assert code_of(lambda: node.prepare(ref, patience=30.0)) == "NVML_UNAVAILABLE"


def test_what_a_failed_prepare_could_not_undo_is_undone_by_the_next() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    node.gpus.faults.fail("create_compute_instance", Unavailable("NVML_UNAVAILABLE", "injected"))
    node.gpus.faults.fail("destroy_gpu_instance", Unavailable("IN_USE", "a monitor holds it"))
    assert code_of(lambda: node.prepare(ref)) == "NVML_UNAVAILABLE"
    assert node.journal.records()["a"].state is State.RETIRING
    (left,) = node.live()
    node.prepare(ref)
    (made,) = node.live()
    assert (left.compute, len(made.compute)) == ((), 1)


def test_compute_instance_fails_after_the_gpu_instance_was_made() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 3))
    node.gpus.faults.fail("create_compute_instance", Unavailable("NVML_UNAVAILABLE", "injected"))
    assert code_of(lambda: node.prepare(ref)) == "NVML_UNAVAILABLE"
    assert node.live() == []
    assert node.cdi.claims() == []
    node.prepare(ref)
    assert [i.placement.start for i in node.live()] == [3]


def test_a_claim_of_several_devices_is_all_or_nothing() -> None:
    node = BenchNode.with_gpus(2)
    other = node.allocated("other", node.device("1g.10gb", 6, gpu=1))
    node.prepare(other)
    ref = node.allocated("a", node.device("1g.10gb", 0), node.device("2g.20gb", 2), node.device("1g.10gb", 0, gpu=1))
    node.gpus.faults.fail("create_gpu_instance", Refused("NO_ROOM", "injected"), nth=3)
    assert code_of(lambda: node.prepare(ref)) == "NO_ROOM"
    assert node.live(0) == []
    assert [i.placement.start for i in node.live(1)] == [6]
    assert len(node.prepare(ref)) == 3


def test_success_means_it_was_seen() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    make = node.gpus.create_gpu_instance

    def elsewhere(gpu: object, partition: Partition) -> object:
        return make(node.gpus.readings()[0].uuid, Partition(partition.profile, Placement(5, 1)))

    node.gpus.create_gpu_instance = elsewhere  # type: ignore[method-assign,assignment]
    assert code_of(lambda: node.prepare(ref)) == "NOT_AS_ASKED"
    assert node.cdi.claims() == []
    assert node.journal.records()["a"].state is State.HELD
    assert node.live() == [], "the id that NVML gave shows the stray instance to be ours"


def test_a_placement_that_is_being_left_is_waited_for() -> None:
    node = BenchNode.with_gpus()
    old = node.allocated("old", node.device("4g.40gb", 0))
    new = node.allocated("new", node.device("1g.10gb", 2))
    node.prepare(old)
    waiting = in_thread(node.prepare, new, patience=30.0)
    waiting.join(0.3)
    assert waiting.is_alive()
    assert [i.placement.size for i in node.live()] == [4]
    node.service.endings.unprepare("old")
    waiting.join(10)
    assert not waiting.is_alive()
    assert [i.placement for i in node.live()] == [Placement(2, 1)]


def test_waiting_ends_with_an_error_that_names_the_holder_and_leaves_the_holder_alone() -> None:
    node = BenchNode.with_gpus()
    old = node.allocated("old", node.device("4g.40gb", 0))
    new = node.allocated("new", node.device("1g.10gb", 2))
    node.prepare(old)
    with pytest.raises(Unavailable, match="claim-old") as caught:
        node.prepare(new)
    assert caught.value.code == "PLACEMENT_BUSY"
    assert [i.placement for i in node.live()] == [Placement(0, 4)]
    assert node.journal.records()["old"].state is State.PREPARED
    node.claims.deallocate(new, delete=True)
    assert node.service.endings.settle("new"), "the finalizer goes with the claim"
    assert "new" not in node.journal.records()


def test_a_foreign_instance_in_the_way_is_named_and_not_touched() -> None:
    node = BenchNode.with_gpus()
    wanted = node.device("1g.10gb", 4)
    gpu = node.gpus.readings()[0].uuid
    gi = node.gpus.foreign(gpu, node.catalog().find(*wanted)[1].partition)  # type: ignore[arg-type]
    with pytest.raises(Refused, match=f"GPU instance {gi}") as caught:
        node.prepare(node.allocated("a", wanted), patience=30.0)
    assert caught.value.code == "FOREIGN_INSTANCE"
    assert [i.gi_id for i in node.live()] == [gi]


def test_full_gpu_and_partitions_wait_for_each_other_and_the_mode_follows() -> None:
    node = BenchNode.with_gpus(mode=MigMode.OFF)
    node.prepare(node.allocated("part", node.device("1g.10gb", 6)))
    assert node.gpus.readings()[0].mig_mode is MigMode.ON
    whole = node.allocated("whole", node.whole())
    assert code_of(lambda: node.prepare(whole)) == "PLACEMENT_BUSY"
    node.service.endings.unprepare("part")
    node.prepare(whole)
    assert node.gpus.readings()[0].mig_mode is MigMode.OFF
    again = node.allocated("again", node.device("1g.10gb", 0))
    assert code_of(lambda: node.prepare(again)) == "PLACEMENT_BUSY"


def test_a_mode_that_may_not_be_switched_is_refused_in_words() -> None:
    # The catalog offers only what the mode allows; the mode changed by hand after the claim was allocated.
    node = BenchNode.with_gpus(mode=MigMode.ON, mode_switch_needs_reset=True)
    ref = node.allocated("a", node.device("1g.10gb", 0))
    catalog = node.catalog()
    node.gpus.set_mig_mode(node.gpus.readings()[0].uuid, on=False)
    node.catalog = lambda: catalog  # type: ignore[method-assign]
    node.restart()
    assert code_of(lambda: node.prepare(ref)) == "MIG_MODE"


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda o: o["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"), "CLAIM_DELETED"),
        (lambda o: o["metadata"].update(annotations={names.RELEASE: "now"}), "RELEASED"),
        (lambda o: o.update(status={}), "NOT_ALLOCATED"),
        (lambda o: o["status"]["allocation"]["devices"]["results"][0].update(device="gpu-7"), "UNKNOWN_DEVICE"),
        (lambda o: o["status"]["allocation"]["devices"]["results"][0].update(pool="n2/gpu-0"), "UNKNOWN_DEVICE"),
        (lambda o: o["status"]["allocation"]["devices"]["results"][0].update(adminAccess=True), "ADMIN_ACCESS"),
    ],
)
def test_a_claim_that_may_not_be_prepared_is_refused_before_any_act(spoil: Callable[..., None], code: str) -> None:
    from tests.unit.driver.bench_node import claim_object

    node = BenchNode.with_gpus()
    obj = claim_object("a", node.device("1g.10gb", 0))
    spoil(obj)
    ref = node.claims.put(obj)
    assert code_of(lambda: node.prepare(ref)) == code
    assert node.is_clean()
    found = node.claims.get(ref)
    assert isinstance(found, Found)
    assert not found.value.held


def test_a_claim_that_the_server_does_not_have_or_does_not_tell_of_is_not_prepared() -> None:
    node = BenchNode.with_gpus()
    assert code_of(lambda: node.prepare(ClaimRef("ns", "never", "x"))) == "CLAIM_GONE"
    ref = node.allocated("a", node.device("1g.10gb", 0))
    node.claims.silent = True
    assert code_of(lambda: node.prepare(ref)) == "API_UNAVAILABLE"
    assert node.is_clean()


def test_configuration_that_would_be_ignored_is_refused() -> None:
    node = BenchNode.with_gpus()
    config = [
        {
            "opaque": {
                "driver": names.DRIVER_NAME,
                "parameters": {
                    "apiVersion": "resource.nvidia.com/v1beta1",
                    "kind": "MigDeviceConfig",
                    "sharing": {"strategy": "MPS"},
                },
            }
        }
    ]
    ref = node.allocated("a", node.device("1g.10gb", 0), config=config)
    with pytest.raises(Refused, match="sharing"):
        node.prepare(ref)
    del config[0]["opaque"]["parameters"]["sharing"]  # type: ignore[attr-defined]
    node.prepare(node.allocated("b", node.device("1g.10gb", 0), config=config))


def test_same_name_new_claim() -> None:
    node = BenchNode.with_gpus()
    old = node.allocated("old-uid", node.device("1g.10gb", 0), name="same")
    node.prepare(old)
    node.allocated("new-uid", node.device("1g.10gb", 1), name="same")
    assert code_of(lambda: node.prepare(old)) == "CLAIM_GONE"
    node.service.endings.unprepare("old-uid")
    assert node.live() == []
    assert node.service.endings.settle("old-uid")


def test_the_disk_is_full_before_any_hardware_act() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    for nth in (1, 2):
        node.journal.faults.fail("write", Unavailable("JOURNAL_UNWRITABLE", "no space"), nth=nth)
    assert code_of(lambda: node.prepare(ref)) == "JOURNAL_UNWRITABLE"
    assert node.live() == []
    node.prepare(ref)
    assert len(node.live()) == 1


def test_unprepare_of_something_unknown_succeeds_and_leaves_no_state() -> None:
    node = BenchNode.with_gpus()
    for n in range(1000):
        node.service.endings.unprepare(f"never-{n % 7}")
    assert node.is_clean()


def test_destroy_answers_in_use_and_half_destroyed() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    node.prepare(ref)
    node.gpus.faults.fail("destroy_gpu_instance", Unavailable("IN_USE", "a monitor holds it"))
    assert code_of(lambda: node.service.endings.unprepare("a")) == "IN_USE"
    assert node.journal.records()["a"].state is State.RETIRING
    assert node.live()[0].compute == (), "the compute instance is gone, the GPU instance is not"
    assert code_of(lambda: node.prepare(node.allocated("b", node.device("1g.10gb", 0)))) == "PLACEMENT_BUSY"
    node.service.endings.unprepare("a")
    assert node.live() == []


def test_what_is_still_there_after_its_destruction_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device("1g.10gb", 0)))
    with monkeypatch.context() as patched:
        patched.setattr(node.gpus, "destroy_gpu_instance", lambda gpu, gi: None)
        assert code_of(lambda: node.service.endings.unprepare("a")) == "IN_USE"
    assert node.journal.records()["a"].state is State.RETIRING
    node.service.endings.unprepare("a")
    assert node.live() == []


def test_an_allocated_claim_keeps_the_finalizer_and_silence_proves_nothing() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    node.prepare(ref)
    node.service.endings.unprepare("a")
    assert not node.service.endings.settle("a"), "still allocated here"
    node.claims.deallocate(ref)
    node.claims.silent = True
    assert not node.service.endings.settle("a")
    node.claims.silent = False
    assert node.service.endings.settle("a")
    found = node.claims.get(ref)
    assert isinstance(found, Found)
    assert not found.value.held
    assert names.NODE not in found.value.annotations


def test_a_claim_held_by_another_node_waits_for_it() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    found = node.claims.get(ref)
    assert isinstance(found, Found)
    node.claims.hold(found.value, {names.NODE: "n2"})
    assert code_of(lambda: node.prepare(ref)) == "HELD_ELSEWHERE"
    assert node.live() == []


def test_a_claim_that_another_node_holds_by_now_keeps_its_finalizer() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    node.prepare(ref)
    node.service.endings.unprepare("a")
    found = node.claims.get(ref)
    assert isinstance(found, Found)
    node.claims.hold(found.value, {names.NODE: "n2"})
    node.claims.deallocate(ref, delete=True)
    assert node.service.endings.settle("a"), "there is nothing left to do for it here"
    found = node.claims.get(ref)
    assert isinstance(found, Found)
    assert (found.value.held, found.value.held_by_node) == (True, "n2")


def test_a_shared_claim_is_prepared_once() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    answers: list[object] = []
    threads = [in_thread(lambda: answers.append(node.prepare(ref))) for _ in range(8)]
    for thread in threads:
        thread.join(10)
    assert len(answers) == 8
    assert all(a == answers[0] for a in answers)
    assert len(node.live()) == 1


def test_one_claim_many_callers() -> None:
    """1000 random prepares and unprepares of one claim: never two instances, and the end equals the last call's."""
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    chance = random.Random(20261129)
    calls = [chance.random() < 0.5 for _ in range(1000)]
    turn = threading.Lock()
    last: list[bool] = []

    def call(prepare: bool) -> None:
        if prepare:
            node.prepare(ref, patience=30.0)
        else:
            node.service.endings.unprepare("a")
        with turn:
            last.append(prepare)

    for n in range(0, 1000, 4):
        threads = [in_thread(call, p) for p in calls[n : n + 4]]
        for thread in threads:
            thread.join(10)
    assert len(last) == 1000
    assert node.gpus.most_alive[node.gpus.readings()[0].uuid] == 1
    call(True)
    assert len(node.live()) == 1
    call(False)
    assert node.live() == []


def test_churn_on_a_busy_node_keeps_the_gpus_independent_and_the_books_straight() -> None:
    """4 GPUs x 7 slots, claims come and go from many threads; I1 is checked at every journal write."""
    node = BenchNode.with_gpus(4)
    gpus = [r.uuid for r in node.gpus.readings()]

    def check(_: ClaimRecord) -> None:
        owners = [r for r in node.journal.records().values() if r.owns_hardware]
        for gpu in gpus:
            i1_disjoint(gpu, {r.ref.uid: r.partitions_on(gpu) for r in owners})

    node.journal.on_write = check
    failures: list[BaseException] = []

    def slot(gpu: int, start: int) -> None:
        try:
            for n in range(10):
                uid = f"{gpu}-{start}-{n}"
                ref = node.allocated(uid, node.device("1g.10gb", start, gpu=gpu))
                node.prepare(ref, patience=30.0)
                node.service.endings.unprepare(uid)
                node.claims.deallocate(ref, delete=True)
                assert node.service.endings.settle(uid)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [in_thread(slot, gpu, start) for gpu in range(4) for start in range(7)]
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert node.is_clean()


def test_the_catalog_offers_what_the_mode_allows() -> None:
    offers = BenchNode.with_gpus(mode=MigMode.OFF, mode_switch_needs_reset=True).catalog().offers
    (offer,) = offers.values()
    assert [d.partition for d in offer.pool.devices] == [None]
    assert "needs a GPU reset" in offer.why
    (on,) = BenchNode.with_gpus(mode=MigMode.ON, mode_switch_needs_reset=True).catalog().offers.values()
    assert all(d.partition is not None for d in on.pool.devices)
    (both,) = BenchNode.with_gpus(mode=MigMode.OFF).catalog().offers.values()
    assert both.pool.devices[-1].partition is None
    assert len(both.pool.devices) == 26
    assert both.why == ""


def test_a_gpu_without_mig_is_offered_whole() -> None:
    reading = h100(mode=MigMode.ABSENT, geometry=None)
    from dynamig.testing.fakes import FakeGpus

    (offer,) = BenchNode(FakeGpus([reading])).catalog().offers.values()
    assert [d.partition for d in offer.pool.devices] == [None]
    assert not offer.pool.counters
