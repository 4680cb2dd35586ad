"""`dynamig driver adopt`: a claim whose record was lost gets back what is shown to be its own, and nothing else."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dynamig.driver.adoption import may_adopt
from dynamig.driver.journal import FileJournal
from dynamig.errors import DynamigError, Refused, Unavailable
from dynamig.mig import GpuUuid
from dynamig.protocol import device_status, names
from dynamig.protocol.claims import ClaimRef, ClaimView
from dynamig.protocol.gpus import LiveInstance
from dynamig.protocol.lifecycle import Event, State
from dynamig.protocol.records import ClaimRecord
from dynamig.protocol.seen import Found
from tests.unit.driver.bench_node import NODE, BenchNode
from tests.unit.driver.test_loans import JOB, SlurmNode
from tests.unit.driver.test_proof import partition_of, planned, uuid_of
from tests.unit.driver.test_recovery import DiesAt, repair, until_killed

ONE = "1g.10gb"


def lose(node: BenchNode, uid: str) -> ClaimRecord:
    """The journal's record of a prepared claim is gone, and the driver starts anew; the record as it was."""
    record = node.journal.kept.pop(uid)
    assert record.state is State.PREPARED
    node.restart()
    repair(node)
    return record


def lost(node: BenchNode, *devices: tuple[str, str], uid: str = "a") -> ClaimRef:
    """A claim whose pod runs and whose record is lost."""
    ref = node.allocated(uid, *(devices or (node.device(ONE, 0),)))
    node.prepare(ref)
    lose(node, uid)
    return ref


def refused(node: BenchNode, wanted: str = "a") -> DynamigError:
    """Why the claim is not adopted; nothing has changed by asking."""
    before = node.journal.records(), dict(node.cdi.specs), [node.live(n) for n in range(len(node.gpus.readings()))]
    node.changed.clear()
    with pytest.raises(DynamigError) as told:
        node.service.adopt(wanted)
    after = node.journal.records(), dict(node.cdi.specs), [node.live(n) for n in range(len(node.gpus.readings()))]
    assert after == before
    assert node.changed == []
    return told.value


def edit(node: BenchNode, ref: ClaimRef, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    change(node.claims._objects[ref.namespace, ref.name])


# -- what it does ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["a", "ns/claim-a"], ids=["uid", "name"])
def test_the_claim_has_what_it_had_and_ends_like_any_other(wanted: str) -> None:
    node = BenchNode.with_gpus(2)
    node.prepare(node.allocated("bystander", node.device(ONE, 6)))
    devices = node.device("2g.20gb", 0), node.device(ONE, 3), node.device(ONE, 0, gpu=1)
    ref = node.allocated("a", *devices)
    answer = node.prepare(ref)
    spec = node.cdi.specs["a"]
    before = lose(node, "a")
    assert "a" not in node.cdi.specs
    running = node.live(0), node.live(1)
    node.clock.now += 5
    node.changed.clear()

    adopted = node.service.adopt(wanted)

    record = node.journal.records()["a"]
    assert record == dataclasses.replace(before, since=node.clock.now)
    assert (adopted.record, adopted.fresh, adopted.kept) == (record, True, None)
    assert node.cdi.specs["a"] == spec
    assert node.changed == ["a"], "it is reported on the claim and in the Lease"
    assert (node.live(0), node.live(1)) == running
    node.restart()
    repair(node)
    assert node.prepare(ref) == answer
    node.service.endings.unprepare("a")
    assert [i.placement.start for i in node.live(0)] == [6], "the bystander's"
    assert node.live(1) == []
    node.claims.deallocate(ref, delete=True)
    assert node.service.endings.settle("a")
    assert not isinstance(node.claims.get(ref), Found)


def test_asked_again_it_says_that_nothing_was_to_be_done() -> None:
    node = BenchNode.with_gpus()
    lost(node)
    record = node.service.adopt("a").record
    node.changed.clear()
    again = node.service.adopt("a")
    assert (again.record, again.fresh) == (record, False)
    assert node.journal.records()["a"] == record
    assert node.changed == []


def test_a_record_that_is_absent_will_do_as_well_as_one_that_says_held() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device(ONE, 0))
    node.prepare(ref)
    before = node.journal.kept.pop("a")
    node.clock.now += 5
    assert node.service.adopt("a").record == dataclasses.replace(before, since=node.clock.now)


def test_a_record_that_was_held_in_an_earlier_boot_becomes_one_of_this_boot() -> None:
    node = BenchNode.with_gpus()
    lost(node)
    node.journal.write(dataclasses.replace(node.journal.records()["a"], boot_id="boot-0"))
    assert node.service.adopt("a").record.boot_id == node.nodes.boot_id()
    assert planned(node) == ()


def test_a_damaged_record_is_replaced_and_kept(tmp_path: Path) -> None:
    node, ref, path = BenchNode.with_damaged_record(tmp_path / "claims", ONE)
    damaged = path.read_bytes()
    kept = node.service.adopt("a").kept
    assert kept is not None
    assert Path(kept).read_bytes() == damaged
    assert FileJournal(tmp_path / "claims").records() == node.journal.records()
    node.service.endings.unprepare("a")
    node.claims.deallocate(ref, delete=True)
    assert node.service.endings.settle("a")
    assert node.is_clean()


def test_a_whole_gpu_is_adopted() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.whole())
    node.prepare(ref)
    before = lose(node, "a")
    assert node.service.adopt("a").record.devices == before.devices


def test_a_claim_that_is_deleted_while_its_pod_runs_is_adopted() -> None:
    node = BenchNode.with_gpus()
    ref = lost(node)
    edit(node, ref, lambda claim: claim["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    assert node.service.adopt("a").fresh


@pytest.mark.parametrize("whole", [False, True])
def test_what_was_reported_of_the_device_may_agree(whole: bool) -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.whole() if whole else node.device(ONE, 0))
    node.prepare(ref)
    entries = device_status.prepared(node.journal.records()["a"], names.DRIVER_NAME)
    lose(node, "a")
    edit(node, ref, lambda claim: claim["status"].update(devices=list(entries)))
    assert node.service.adopt("a").fresh


# -- killed anywhere -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True], ids=["before-the-act", "after-the-act"])
@pytest.mark.parametrize("damaged", [False, True], ids=["held", "damaged"])
def test_killed_at_any_write_all_is_as_before_or_adopted_and_the_next_try_succeeds(damaged: bool, after: bool) -> None:
    deaths = 0
    for nth in range(1, 100):
        node = BenchNode.with_gpus()
        node.prepare(node.allocated("bystander", node.device(ONE, 6)))
        ref = lost(node, node.device("2g.20gb", 0))
        if damaged:
            del node.journal.kept["a"]
            node.journal.damaged["a"] = "a.json"
        running, before = node.live(), node.journal.records()
        if not until_killed(node, DiesAt(nth, after=after), functools.partial(node.service.adopt, "a")):
            break
        deaths += 1
        record = node.journal.records().get("a")
        assert node.journal.records() == before or (record is not None and record.state is State.PREPARED)
        node.restart()
        repair(node)
        assert node.live() == running
        node.service.adopt("a")
        assert node.journal.unreadable() == {}
        assert node.live() == running
        assert set(node.cdi.specs) == {"a", "bystander"}
        node.service.endings.unprepare("a")
        node.claims.deallocate(ref, delete=True)
        assert node.service.endings.settle("a")
        assert not isinstance(node.claims.get(ref), Found)
    assert deaths == 2, "the CDI file and the record"


def test_a_disk_that_takes_nothing_leaves_the_claim_as_it_was() -> None:
    node = BenchNode.with_gpus()
    lost(node)
    node.journal.faults.fail("restore", Unavailable("JOURNAL_UNWRITABLE", "no space left on device"))
    with pytest.raises(Unavailable):
        node.service.adopt("a")
    assert node.journal.records()["a"].state is State.HELD
    repair(node)
    assert node.service.adopt("a").fresh


# -- what speaks against it ------------------------------------------------------------------------------------


def test_silence_of_the_api_server_changes_nothing() -> None:
    node = BenchNode.with_gpus()
    lost(node)
    node.claims.silent = True
    assert refused(node).code == "API_UNAVAILABLE"


def test_silence_after_the_claim_was_found_changes_nothing() -> None:
    node = BenchNode.with_gpus()
    lost(node)
    asked_and_silent(node)
    assert refused(node).code == "API_UNAVAILABLE"


def asked_and_silent(bench: BenchNode) -> None:
    held_on = bench.claims.held_on

    def once(node: str) -> Sequence[ClaimView]:
        found = held_on(node)
        bench.claims.silent = True
        return found

    bench.claims.held_on = once  # type: ignore[method-assign]


@pytest.mark.parametrize("wanted", ["b", "ns/b", "claim-a", "other/claim-a"])
def test_a_claim_that_this_node_does_not_hold_is_not_found(wanted: str) -> None:
    node = BenchNode.with_gpus()
    lost(node)
    error = refused(node, wanted)
    assert (error.code, wanted in error.what, NODE in error.what) == ("UNKNOWN_CLAIM", True, True)


@pytest.mark.parametrize("change", [{"finalizers": []}, {"annotations": {names.NODE: "n2"}}, {"annotations": {}}])
def test_a_claim_that_is_no_longer_held_here_is_not_adopted(change: dict[str, object]) -> None:
    node = BenchNode.with_gpus()
    ref = lost(node)
    held = node.claims.held_on(NODE)
    edit(node, ref, lambda claim: claim["metadata"].update(change))
    node.claims.held_on = lambda node: held  # type: ignore[method-assign]
    assert refused(node).code == "NOT_HELD"


def _current(node: BenchNode, ref: ClaimRef) -> ClaimView:
    found = node.claims.get(ref)
    assert isinstance(found, Found)
    return found.value


def test_a_claim_that_no_pod_uses_is_not_adopted_since_nothing_would_end_it() -> None:
    node = BenchNode.with_gpus()
    ref = lost(node)
    edit(node, ref, lambda claim: claim["status"].update(reservedFor=[]))
    error = refused(node)
    assert (error.code, "nvidia-smi" in error.next_step) == ("NOT_IN_USE", True)


def test_a_claim_without_a_device_of_ours_is_not_adopted() -> None:
    node = BenchNode.with_gpus()
    ref = lost(node)
    edit(node, ref, lambda claim: claim["status"].update(allocation={}))
    assert refused(node).code == "NOT_ALLOCATED"


def test_a_device_of_another_node_is_not_adopted() -> None:
    node = BenchNode.with_gpus()
    ref = lost(node)
    foreign = {"request": "r0", "driver": names.DRIVER_NAME, "pool": "n2/gpu-0", "device": node.device(ONE, 0)[1]}
    edit(node, ref, lambda claim: claim["status"].update(allocation={"devices": {"results": [foreign]}}))
    assert refused(node).code == "UNKNOWN_DEVICE"


@pytest.mark.parametrize("event", [Event.INTEND, Event.RETIRE])
def test_a_record_that_still_says_what_the_claim_has_is_not_overruled(event: Event) -> None:
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device(ONE, 0)))
    record = node.journal.records()["a"]
    state = State.RETIRING if event is Event.RETIRE else State.INTENDED
    node.journal.write(dataclasses.replace(record, state=state))
    error = refused(node)
    assert (error.code, state.value in error.what) == ("NOTHING_LOST", True)


def test_a_prepared_record_that_the_hardware_contradicts_is_recoverys_not_adopted() -> None:
    node = BenchNode.with_gpus()
    device = node.device(ONE, 0)
    node.prepare(node.allocated("a", device))
    node.gpus.reboot()
    node.gpus.foreign(uuid_of(node), partition_of(node, device))
    assert refused(node).code == "NOTHING_LOST"


def test_what_came_to_a_place_after_the_claims_own_was_seen_gone_is_not_its_own() -> None:
    """Also when the kubelet has tried again since, and found it in the way."""
    node = BenchNode.with_gpus()
    device = node.device(ONE, 0)
    ref = node.allocated("a", device)
    node.prepare(ref)
    node.service.endings.unprepare("a")
    node.gpus.foreign(uuid_of(node), partition_of(node, device))
    assert refused(node).code == "NOT_ITS_OWN"
    with pytest.raises(Refused, match="not made by dynamig") as told:
        node.prepare(ref)
    assert "adopt" not in told.value.next_step
    error = refused(node)
    assert (error.code, "seen gone" in error.what) == ("NOT_ITS_OWN", True)
    assert may_adopt(uuid_of(node), node.live()[0], node.journal.records().values()) == ()
    node.claims.deallocate(ref, delete=True)
    assert node.service.endings.settle("a"), "and it keeps no finalizer for it"


@pytest.mark.parametrize("noted", [False, True], ids=["allocated", "had"])
def test_a_device_that_another_claim_is_held_for_is_nobodys(noted: bool) -> None:
    node = BenchNode.with_gpus()
    ref = lost(node)
    other = node.allocated("b", node.device(ONE, 0))
    note = _current(node, ref).annotations[names.HOLD]
    node.claims.hold(_current(node, other), {names.NODE: NODE, names.HOLD: note})
    if noted:
        node.claims.deallocate(other)
    error = refused(node)
    assert (error.code, "ns/claim-b" in error.what) == ("NOT_ITS_OWN", True)


def test_a_claim_whose_note_is_older_than_its_allocation_is_in_nobodys_way() -> None:
    node = BenchNode.with_gpus()
    ref = lost(node)
    other = node.allocated("b", node.device(ONE, 5))
    note = _current(node, ref).annotations[names.HOLD]
    node.claims.hold(_current(node, other), {names.NODE: NODE, names.HOLD: note})
    assert node.service.adopt("a").fresh


@pytest.mark.parametrize("whole", [False, True])
def test_what_another_record_proves_to_be_its_own_is_not_adopted(whole: bool) -> None:
    node = BenchNode.with_gpus()
    ref = lost(node)
    node.service.adopt("a")
    record = node.journal.kept.pop("a")
    others = dataclasses.replace(record, ref=ClaimRef("ns", "thief", "thief"))
    node.journal.write(others)
    if whole:
        results = [{"request": "r0", "driver": names.DRIVER_NAME, "pool": node.whole()[0], "device": node.whole()[1]}]
        edit(node, ref, lambda claim: claim["status"].update(allocation={"devices": {"results": results}}))
    error = refused(node)
    assert (error.code, "ns/thief" in error.what) == ("NOT_ITS_OWN", True)


def test_books_in_which_two_claims_had_one_slice_are_not_written() -> None:
    """A record of an earlier boot proves nothing, and is no more than recovery's next work."""
    node = BenchNode.with_gpus()
    lost(node)
    record = node.service.adopt("a").record
    node.journal.kept["a"] = dataclasses.replace(record, state=State.HELD)
    node.journal.write(dataclasses.replace(record, ref=ClaimRef("ns", "old", "old"), boot_id="boot-0"))
    assert refused(node).code == "I1"


@pytest.mark.parametrize("profile", ["2g.20gb", "1g.10gb+me"])
def test_a_place_where_nothing_of_that_profile_lives_is_not_adopted(profile: str) -> None:
    node = BenchNode.with_gpus()
    lost(node)
    node.gpus.reboot()
    node.gpus.foreign(uuid_of(node), partition_of(node, node.device(profile, 0)))
    error = refused(node)
    assert (error.code, "GPU instance" in error.what) == ("NOTHING_THERE", True), "and says what is there instead"


def test_all_devices_of_a_claim_are_adopted_or_none() -> None:
    node = BenchNode.with_gpus(2)
    lost(node, node.device(ONE, 0), node.device(ONE, 0, gpu=1))
    (second,) = node.live(1)
    node.gpus.destroy_compute_instance(uuid_of(node, 1), second.gi_id, second.compute[0].ci_id)
    node.gpus.destroy_gpu_instance(uuid_of(node, 1), second.gi_id)
    assert refused(node).code == "NOTHING_THERE"


def _none(instance: LiveInstance) -> LiveInstance:
    return dataclasses.replace(instance, compute=())


def _two(instance: LiveInstance) -> LiveInstance:
    return dataclasses.replace(instance, compute=instance.compute * 2)


def _without_device(instance: LiveInstance) -> LiveInstance:
    return dataclasses.replace(instance, compute=(dataclasses.replace(instance.compute[0], uuid=None),))


def _with_room(instance: LiveInstance) -> LiveInstance:
    """`MIG 1c.3g.40gb`, say, where we make `MIG 3g.40gb`."""
    return dataclasses.replace(instance, compute=(dataclasses.replace(instance.compute[0], fills=False),))


@pytest.mark.parametrize("change", [_none, _two, _without_device, _with_room])
def test_an_instance_unlike_those_that_we_make_is_not_adopted(change: Callable[[LiveInstance], LiveInstance]) -> None:
    node = BenchNode.with_gpus()
    lost(node)
    (instance,) = node.live()
    node.gpus._live[uuid_of(node)][instance.gi_id] = change(instance)
    error = refused(node)
    assert (error.code, "compute instance" in error.what) == ("NOT_ITS_OWN", True)


@pytest.mark.parametrize("whole", [False, True])
def test_a_device_that_was_reported_with_another_uuid_is_not_adopted(whole: bool) -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.whole() if whole else node.device(ONE, 0))
    node.prepare(ref)
    record = lose(node, "a")
    (entry,) = device_status.prepared(record, names.DRIVER_NAME)
    entry = {**entry, "data": {**entry["data"], "uuid": "MIG-another"}}
    edit(node, ref, lambda claim: claim["status"].update(devices=[entry]))
    error = refused(node)
    assert (error.code, "MIG-another" in error.what) == ("NOT_ITS_OWN", True)


def test_a_whole_gpu_with_an_instance_is_not_adopted() -> None:
    node = BenchNode.with_gpus()
    lost(node, node.whole())
    node.gpus.set_mig_mode(uuid_of(node), on=True)
    node.gpus.foreign(uuid_of(node), partition_of(node, node.device(ONE, 0)))
    assert refused(node).code == "FOREIGN_INSTANCE"


def test_a_gpu_that_is_lent_is_not_adopted(tmp_path: Path) -> None:
    node = SlurmNode(tmp_path)
    node.held("a", node.bench.whole())
    node.lend(JOB)
    with pytest.raises(Unavailable, match="Slurm job 7") as told:
        node.service.adopt("a")
    assert told.value.code == "LENT"
    assert node.bench.journal.records() == {}
    node.lender.give_back(JOB)
    node.service.adopt("a")
    node.check()


def test_a_gpu_that_does_not_answer_is_not_adopted() -> None:
    node = BenchNode.with_gpus()
    lost(node)
    node.gpus.faults.fail("instances", Unavailable("GPU_LOST", "fell off the bus"))
    with pytest.raises(Unavailable, match="fell off"):
        node.service.adopt("a")
    assert node.journal.records()["a"].state is State.HELD


# -- under which locks -----------------------------------------------------------------------------------------


def test_the_claim_and_its_gpus_are_locked_while_it_is_seen_and_written() -> None:
    node = BenchNode.with_gpus()
    lost(node)
    restore = node.journal.restore
    locked: list[bool] = []

    def watched(record: ClaimRecord) -> str | None:
        locks = node.service._claim_locks._locks, node.service._gpu_locks._locks
        locked.append(all(key in held for key, held in zip(("a", uuid_of(node)), locks, strict=True)))
        return restore(record)

    node.journal.restore = watched  # type: ignore[method-assign]
    node.service.adopt("a")
    assert locked == [True]


# -- who is told of it -----------------------------------------------------------------------------------------


def test_a_quarantined_instance_is_named_with_the_claim_that_may_adopt_it() -> None:
    node = BenchNode.with_gpus(2)
    ref = lost(node)
    node.prepare(node.allocated("b", node.device(ONE, 5)))
    mine, other = node.live()
    records = node.journal.records().values()
    gpu: GpuUuid = uuid_of(node)
    assert may_adopt(gpu, mine, records) == (ref,)
    assert may_adopt(gpu, other, records) == (), "prepared"
    assert may_adopt(uuid_of(node, 1), mine, records) == (), "another GPU"
    node.service.adopt("a")
    assert may_adopt(gpu, mine, node.journal.records().values()) == ()
    assert planned(node) == ()


def test_a_prepare_that_meets_what_may_be_its_own_says_so() -> None:
    node = BenchNode.with_gpus()
    ref = lost(node)
    with pytest.raises(Refused) as told:
        node.prepare(ref)
    assert "`dynamig driver adopt a`" in told.value.next_step
    other = node.allocated("b", node.device("2g.20gb", 0))
    with pytest.raises(Refused) as told:
        node.prepare(other)
    assert "adopt" not in told.value.next_step
