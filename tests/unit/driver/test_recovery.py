"""After a crash anywhere: nothing leaked, nothing foreign touched, nothing running hurt, and a second look is quiet."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest

from dynamig.driver import recovery
from dynamig.driver.repair import Repair
from dynamig.errors import DynamigError, Unavailable
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.hold_note import hold_note
from dynamig.protocol.lifecycle import State
from dynamig.protocol.seen import Found
from tests.unit.driver.bench_node import NODE, BenchNode


def repair(node: BenchNode, lost: list[str] | None = None) -> None:
    """What the driver does at start, until there is nothing left to do."""
    losses: list[str] = [] if lost is None else lost
    fixer = Repair(
        node.service._node, node.outside(), node.service, node.catalog, lambda ref, error: losses.append(error.code)
    )
    fixer.run(fixer.plan(node.claims.held_on(NODE)).actions)
    for uid in node.journal.records():
        node.service.endings.settle(uid)
    assert fixer.plan(node.claims.held_on(NODE)).actions == ()


class Killed(BaseException):
    """The process is gone: nothing of it runs after this point, not even its clean-up."""


class DiesAt:
    """Wraps a port: the n-th call over all wrapped ports dies, before or after it took effect."""

    def __init__(self, nth: int, *, after: bool) -> None:
        self.left = nth
        self.after = after
        self.dead = False

    def wrap(self, port: Any, calls: tuple[str, ...]) -> Any:
        for name in calls:
            setattr(port, name, self._dying(getattr(port, name)))
        return port

    def _dying(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def maybe(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise Killed
            self.left -= 1
            if self.left > 0:
                return call(*args, **kwargs)
            self.dead = True
            if self.after:
                call(*args, **kwargs)
            raise Killed

        return maybe


PORTS = {
    "gpus": ("create_gpu_instance", "create_compute_instance", "destroy_compute_instance", "destroy_gpu_instance"),
    "claims": ("hold", "let_go"),
    "journal": ("write", "restore", "forget"),
    "cdi": ("write", "remove"),
}


def until_killed(node: BenchNode, death: DiesAt, act: Callable[[], object]) -> bool:
    """True if `act` died; the ports work again afterwards."""
    originals = {p: {c: getattr(getattr(node, p), c) for c in calls} for p, calls in PORTS.items()}
    for port, calls in PORTS.items():
        death.wrap(getattr(node, port), calls)
    try:
        act()
    except Killed:
        return True
    finally:
        for port, kept in originals.items():
            for call, original in kept.items():
                setattr(getattr(node, port), call, original)
    return False


@pytest.mark.parametrize("after", [False, True], ids=["before-the-act", "after-the-act"])
def test_killed_at_any_write_of_prepare_the_claim_is_prepared_or_undone(after: bool) -> None:
    deaths = 0
    for nth in range(1, 100):
        node = BenchNode.with_gpus(2)
        bystander = node.allocated("bystander", node.device("1g.10gb", 6))
        node.prepare(bystander)
        running = node.live()
        ref = node.allocated("a", node.device("2g.20gb", 0), node.device("1g.10gb", 0, gpu=1))
        if not until_killed(node, DiesAt(nth, after=after), functools.partial(node.prepare, ref)):
            break
        deaths += 1
        node.restart()
        repair(node)
        assert [i for i in node.live() if i in running] == running, "the bystander was touched"
        record = node.journal.records().get("a")
        if record is not None and record.state is State.PREPARED:
            assert len(node.live(0)) == 2
            assert "a" in node.cdi.specs
        else:
            assert node.live(0) == running
            assert node.live(1) == []
            assert "a" not in node.cdi.specs
        assert len(node.prepare(ref)) == 2, "the kubelet's next attempt succeeds"
        finish(node, ref)
        assert node.live() == running
    assert deaths >= 8, "there are at least that many writes to die at"


@pytest.mark.parametrize("after", [False, True], ids=["before-the-act", "after-the-act"])
def test_killed_at_any_write_of_unprepare_and_letting_go_nothing_is_left(after: bool) -> None:
    deaths = 0
    for nth in range(1, 100):
        node = BenchNode.with_gpus()
        ref = node.allocated("a", node.device("2g.20gb", 0))
        node.prepare(ref)

        def end(node: BenchNode = node, ref: ClaimRef = ref) -> None:
            node.service.endings.unprepare("a")
            node.claims.deallocate(ref, delete=True)
            node.service.endings.settle("a")

        if not until_killed(node, DiesAt(nth, after=after), end):
            break
        deaths += 1
        node.restart()
        repair(node)
        finish(node, ref)
        assert node.is_clean()
        assert not isinstance(node.claims.get(ref), Found)
    assert deaths >= 5


def finish(node: BenchNode, ref: ClaimRef) -> None:
    """The kubelet unprepares, the controller deletes, the driver lets go."""
    node.service.endings.unprepare(ref.uid)
    if isinstance(node.claims.get(ref), Found):
        node.claims.deallocate(ref, delete=True)
    assert node.service.endings.settle(ref.uid)
    assert ref.uid not in node.journal.records()


def test_restart_with_prepared_claims_touches_nothing() -> None:
    node = BenchNode.with_gpus()
    for n in range(3):
        node.prepare(node.allocated(f"c{n}", node.device("1g.10gb", n)))
    before = node.live(), node.journal.records(), dict(node.cdi.specs)
    node.restart()
    node.gpus.faults.fail("destroy_gpu_instance", Unavailable("IN_USE", "must not be called"))
    repair(node)
    assert (node.live(), node.journal.records(), dict(node.cdi.specs)) == before


def test_node_reboot_frees_the_placements_and_the_kubelet_prepares_again() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("3g.40gb", 4))
    node.prepare(ref)
    old = node.journal.records()["a"].devices[0].live
    node.gpus.reboot()
    node.cdi.specs.clear()
    node.nodes.boot = "boot-2"
    node.restart()
    lost: list[str] = []
    repair(node, lost)
    assert lost == ["NODE_REBOOTED"]
    assert node.journal.records()["a"].state is State.HELD, "still allocated: it keeps the finalizer"
    assert node.journal.records()["a"].seen_gone
    node.prepare(ref)
    assert not node.journal.records()["a"].seen_gone
    new = node.journal.records()["a"].devices[0].live
    assert new is not None
    assert old is not None
    assert new.mig_uuid != old.mig_uuid
    assert node.live()[0].placement.start == 4


@pytest.mark.parametrize("answers", [True, False])
def test_what_was_prepared_before_a_reboot_is_retired_whether_or_not_hardware_can_tell(answers: bool) -> None:
    """A whole GPU looks the same after a reboot, and one that is silent tells nothing."""
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.whole()))
    live = {node.gpus.readings()[0].uuid: node.live()} if answers else {}
    plan = recovery.plan_recovery(node.journal.records(), live, "boot-2", ["a"])
    assert [type(action) for action in plan.actions] == [recovery.Retire]


def test_what_nobody_makes_any_more_is_destroyed_by_the_settler_too() -> None:
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device("1g.10gb", 0)))
    node.journal.write(dataclasses.replace(node.journal.records()["a"], state=State.INTENDED))
    node.service.endings.settle("a")
    assert node.live() == []
    assert node.journal.records()["a"].state is State.HELD


def test_an_instance_that_somebody_destroyed_is_reported_lost() -> None:
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device("1g.10gb", 0)))
    node.gpus.reboot()
    lost: list[str] = []
    repair(node, lost)
    assert lost == ["INSTANCE_LOST"]
    assert node.journal.records()["a"].state is State.HELD


def test_a_claim_that_is_ending_has_lost_nothing() -> None:
    """Its next pod is not to hear of an end that only took two tries."""
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device("1g.10gb", 0)))
    node.gpus.faults.fail("destroy_gpu_instance", Unavailable("IN_USE", "a process is slow to end"))
    with pytest.raises(Unavailable):
        node.service.endings.unprepare("a")
    assert node.journal.records()["a"].live_devices
    lost: list[str] = []
    repair(node, lost)
    assert lost == []
    assert node.live() == []


def test_an_instance_remade_by_hand_at_the_same_place_is_not_ours_to_destroy() -> None:
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device("1g.10gb", 0)))
    partition = node.journal.records()["a"].devices[0].partition
    assert partition is not None
    node.gpus.reboot()
    gi = node.gpus.foreign(node.gpus.readings()[0].uuid, partition)
    node.service.endings.unprepare("a")
    assert [i.gi_id for i in node.live()] == [gi], "same id and place, other UUID"


def test_foreign_instances_are_quarantined_never_destroyed() -> None:
    node = BenchNode.with_gpus()
    gpu = node.gpus.readings()[0].uuid
    offer = node.catalog().offers["n1/gpu-0"]
    for start in range(7):
        _, device = node.device("1g.10gb", start)
        partition = offer.pool.device(device).partition
        assert partition is not None
        node.gpus.foreign(gpu, partition)
    before = node.live()
    plan = recovery.plan_recovery(node.journal.records(), {gpu: before}, "boot-1", ())
    assert plan.actions == ()
    assert list(plan.quarantined[gpu]) == before
    repair(node)
    assert node.live() == before


def test_cdi_files_lost_or_left_over() -> None:
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device("1g.10gb", 0)))
    kept = node.cdi.specs.pop("a")
    node.cdi.specs["gone"] = {"kind": "x"}
    repair(node)
    assert node.cdi.specs == {"a": kept}


def test_a_claim_that_carries_our_finalizer_and_is_in_no_journal_is_let_go_once_it_ends() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    death = DiesAt(1, after=True)
    assert until_killed(node, death, lambda: node.prepare(ref)), "dies right after the finalizer was put"
    assert node.journal.records() == {}
    node.restart()
    repair(node)
    assert node.journal.records()["a"].state is State.HELD
    node.claims.deallocate(ref, delete=True)
    assert node.service.endings.settle("a")
    assert not isinstance(node.claims.get(ref), Found)


def test_a_lost_journal_destroys_nothing_and_keeps_the_finalizer_while_the_hardware_is_not_empty() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    node.prepare(ref)
    instances = node.live()
    node.journal.kept.clear()
    node.restart()
    repair(node)
    node.service.endings.unprepare("a")
    node.claims.deallocate(ref, delete=True)
    assert not node.service.endings.settle("a"), "what is there cannot be shown to be ours"
    assert node.live() == instances
    found = node.claims.get(ref)
    assert isinstance(found, Found)
    assert found.value.held


def test_a_gpu_that_does_not_answer_proves_nothing() -> None:
    node = BenchNode.with_gpus(2)
    node.prepare(node.allocated("a", node.device("1g.10gb", 0), node.device("1g.10gb", 0, gpu=1)))
    answers = {node.gpus.readings()[0].uuid: node.live(0)}
    for live in ({}, answers):
        assert recovery.plan_recovery(node.journal.records(), live, "boot-1", ["a"]).actions == ()


def test_a_plan_made_on_an_older_record_is_not_run() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    node.prepare(ref)
    old = dataclasses.replace(node.journal.records()["a"], state=State.INTENDED)
    assert not node.service.endings.retire(old)
    assert len(node.live()) == 1


def test_what_was_planned_before_a_claim_was_prepared_takes_nothing_from_it() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    node.prepare(ref)
    record, spec = node.journal.records()["a"], node.cdi.specs["a"]
    found = node.claims.get(ref)
    assert isinstance(found, Found)
    node.service.remove_cdi("a")
    node.service.take_note(found.value, ())
    assert (node.journal.records(), node.cdi.specs) == ({"a": record}, {"a": spec})


def test_a_cdi_file_is_not_restored_for_a_claim_that_was_unprepared_since_it_was_planned() -> None:
    node = BenchNode.with_gpus()
    node.prepare(node.allocated("a", node.device("1g.10gb", 0)))
    planned = node.journal.records()["a"]
    node.service.endings.unprepare("a")
    node.service.restore_cdi(planned)
    assert node.cdi.specs == {}


def test_every_action_has_words() -> None:
    node = BenchNode.with_gpus()
    ref = node.allocated("a", node.device("1g.10gb", 0))
    node.prepare(ref)
    record = node.journal.records()["a"]
    found = node.claims.get(ref)
    assert isinstance(found, Found)
    actions: list[recovery.Action] = [
        recovery.Retire(record, "the node was rebooted"),
        recovery.RestoreCdi(record),
        recovery.RemoveCdi("x"),
        recovery.TakeNote(found.value, ()),
    ]
    assert all("x" in text or "claim-a" in text for text in map(recovery.describe, actions))
    note = hold_note(found.value)
    assert note is not None
    (noted,) = note.devices
    assert (noted.pool, noted.device) == node.device("1g.10gb", 0)
    assert names.HOLD in found.value.annotations


def test_an_error_in_one_action_does_not_stop_the_others() -> None:
    node = BenchNode.with_gpus()
    for n in range(2):
        node.prepare(node.allocated(f"c{n}", node.device("1g.10gb", n)))
    node.cdi.specs.clear()
    node.cdi.faults.fail("write", Unavailable("JOURNAL_UNWRITABLE", "no space"))
    fixer = Repair(node.service._node, node.outside(), node.service, node.catalog, _no_loss)
    fixer.run(fixer.plan().actions)
    assert len(node.cdi.specs) == 1
    fixer.run(fixer.plan().actions)
    assert len(node.cdi.specs) == 2


def _no_loss(ref: ClaimRef, error: DynamigError) -> None:
    raise AssertionError(f"{ref} lost: {error}")
