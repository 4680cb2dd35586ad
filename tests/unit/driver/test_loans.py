"""Loans: a GPU is lent or ours, never both, whatever dies, and only an answer ends a loan."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dynamig.cdi import ContainerEdits
from dynamig.driver.catalog import build
from dynamig.driver.claims import ClaimService
from dynamig.driver.config import GpuPolicies, GpuPolicy, Policy, load
from dynamig.driver.lender import Lender, Slurm
from dynamig.driver.loans import LoanFiles, MapFile
from dynamig.driver.map_source import given_for
from dynamig.driver.outside import Guards, Node
from dynamig.errors import DynamigError, Refused, Unavailable
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.device_map import DeviceMap, Given
from dynamig.protocol.gpus import GpuReading, MigMode
from dynamig.protocol.lifecycle import State
from dynamig.protocol.loans import LAUNCH_S, Borrower, JobFacts, Loan, NodeFacts, check_apart
from dynamig.protocol.outages import ALL_ANSWER
from dynamig.protocol.records import ClaimRecord
from dynamig.protocol.seen import Found, Gone, Seen, Unknown
from dynamig.testing.fakes import FakeGpus
from tests.unit.driver.bench_node import NODE, BenchNode, claim_object, h100, in_thread
from tests.unit.driver.test_recovery import DiesAt, Killed

JOB = Borrower(7, "s7", 0)
OTHER = Borrower(8, "s8", 0)
UP = NodeFacts("slurm-n1", frozenset({"IDLE"}), frozenset())


@dataclass
class FakeSlurm:
    """slurmctld as a table; what is not in it nobody answers for."""

    jobs: dict[int, Seen[JobFacts]] = field(default_factory=dict)
    node_answer: Seen[NodeFacts] = field(default_factory=lambda: Found(UP))
    steps_answer: Seen[bool] = field(default_factory=lambda: Found(False))
    asked: list[int] = field(default_factory=list)
    told_to_start: list[Borrower] = field(default_factory=list)
    node_name: str = "slurm-n1"
    before_answer: Callable[[], None] = lambda: None

    def job(self, job_id: int, *, within: float) -> Seen[JobFacts]:
        self.before_answer()
        self.asked.append(job_id)
        return self.jobs.get(job_id, Unknown("no answer"))

    def node(self, name: str, *, within: float) -> Seen[NodeFacts]:
        assert name == self.node_name
        return self.node_answer

    def has_steps(self, job_id: int, node: str, *, within: float) -> Seen[bool]:
        return self.steps_answer

    def start_now(self, run: Borrower, *, within: float) -> bool:
        self.told_to_start.append(run)
        return run.job_id in self.jobs

    def says(self, borrower: Borrower, *states: str) -> None:
        self.jobs[borrower.job_id] = Found(JobFacts(frozenset(states), borrower.sluid, borrower.restart))


class SlurmNode:
    """A driver on fakes on a node that Slurm has too, with loans in real files."""

    def __init__(self, folder: Path, gpus: int = 1, *, mode: MigMode = MigMode.ON, **reading: object) -> None:
        self.folder = folder
        self.bench = BenchNode(FakeGpus([h100(n, mode=mode, **reading) for n in range(gpus)]))
        self.slurm = FakeSlurm()
        self.file = Given("slurm-n1")
        self.entry: Seen[str] = Gone("no ConfigMap")
        self.restart()

    def restart(
        self,
        readings: tuple[GpuReading, ...] | None = None,
        *,
        unread: Mapping[GpuUuid, str] = ALL_ANSWER,
        settled: bool = True,
    ) -> None:
        bench, guards = self.bench, Guards()
        self.loans = LoanFiles(self.folder / "loans")
        slurm = Slurm(self.slurm, self.file, lambda: given_for(NODE, self.entry, self.file))
        maps = MapFile(self.folder / "slurm-devices.json")
        self.lender = Lender(bench.outside(), guards, self.loans, maps, slurm, bench.catalog)
        node = Node(NODE, names.DRIVER_NAME, bench.nodes.boot_id(), ContainerEdits(), with_slurm=True)
        self.service = ClaimService(node, bench.outside(), bench.catalog, bench.changed.append, guards, self.lender)
        self.lender.remap(bench.gpus.readings() if readings is None else readings, unread)
        if settled:
            self.lender.open()

    def remap(self) -> bool:
        return self.lender.remap(self.bench.gpus.readings())

    def device_map(self) -> DeviceMap | None:
        return self.lender.device_map

    def gpu(self, index: int = 0) -> GpuUuid:
        return self.bench.gpus.readings()[index].uuid

    def held(self, uid: str, *devices: tuple[str, str], node: str | None = NODE) -> ClaimRef:
        """A claim as the bridge commits it."""
        body = claim_object(uid, *devices)
        body["metadata"]["finalizers"] = [names.HELD]
        body["metadata"]["annotations"] = {names.NODE: node} if node else {}
        return self.bench.claims.put(body)

    def prepare(self, ref: ClaimRef, patience: float = 0.0) -> None:
        self.service.prepare(ref, deadline=self.bench.clock.now + patience)

    def lend(self, borrower: Borrower = JOB, *indices: int, wait: float = 0.0) -> None:
        with self.lender.lending(borrower, indices or (0,), deadline=self.bench.clock.now + wait):
            pass

    def lent(self) -> dict[int, int]:
        """Index to job id, as on disk."""
        found = LoanFiles(self.folder / "loans").all()
        gpus = [r.uuid for r in self.bench.gpus.readings()]
        return {i: found[gpu].borrower.job_id for i, gpu in enumerate(gpus) if gpu in found}

    def check(self) -> None:
        check_apart(self.loans.all(), self.bench.journal.records().values())

    def part(self, start: int = 0, gpu: int = 0) -> tuple[str, str]:
        return self.bench.device("1g.10gb", start, gpu)


@pytest.fixture
def node(tmp_path: Path) -> SlurmNode:
    return SlurmNode(tmp_path, 2)


def refused(code: str, call: Callable[[], object]) -> DynamigError:
    with pytest.raises(DynamigError) as caught:
        call()
    assert caught.value.code == code, caught.value
    return caught.value


# -- lending and giving back -----------------------------------------------------------------------------------------


def test_lent_on_disk_whole_and_given_back_by_the_epilog(node: SlurmNode) -> None:
    node.lend(JOB, 0)
    assert node.lent() == {0: 7}
    assert node.bench.gpus.reading(node.gpu()).mig_mode is MigMode.OFF, "a native job finds a whole GPU"
    assert [loan.gpu for loan in node.lender.give_back(JOB)] == [node.gpu()]
    assert node.lent() == {}
    assert node.lender.give_back(JOB) == [], "an epilog of a job that has nothing"


def test_lending_again_to_the_same_run_changes_nothing(node: SlurmNode) -> None:
    node.lend()
    before = (node.folder / "loans" / f"{node.gpu()}.json").read_bytes()
    node.bench.clock.now += 5
    node.lend()
    assert (node.folder / "loans" / f"{node.gpu()}.json").read_bytes() == before


def test_several_gpus_all_or_none(node: SlurmNode) -> None:
    node.prepare(node.held("a", node.part(gpu=1)))
    error = refused("CLAIMED", lambda: node.lend(JOB, 0, 1))
    assert "claim-a" in error.what
    assert node.lent() == {}
    node.service.endings.unprepare("a")
    node.lend(JOB, 0, 1)
    assert node.lent() == {0: 7, 1: 7}


@pytest.mark.parametrize("nth", [1, 2])
def test_a_full_disk_lends_none(node: SlurmNode, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    write, calls = node.loans.write, iter(range(1, 10))

    def full(loan: object) -> None:
        if next(calls) == nth:
            raise Unavailable("JOURNAL_UNWRITABLE", "no space")
        write(loan)  # type: ignore[arg-type]

    monkeypatch.setattr(node.loans, "write", full)
    refused("JOURNAL_UNWRITABLE", lambda: node.lend(JOB, 0, 1))
    assert node.lent() == {}


def test_a_claim_that_a_bug_lets_in_beside_a_loan_is_told_and_nothing_is_lent(
    node: SlurmNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8 is looked at once more when the loan is written, whatever was seen before."""
    node.prepare(node.held("a", node.part()))
    record = node.bench.journal.records()["a"]
    node.service.endings.unprepare("a")
    write = node.loans.write

    def beside_a_claim(loan: Loan) -> None:
        node.bench.journal.write(record)
        write(loan)

    monkeypatch.setattr(node.loans, "write", beside_a_claim)
    error = refused("I8", node.lend)
    assert "claim-a" in error.what
    assert node.lent() == {}


def test_a_loan_that_the_disk_does_not_let_go_stays_lent(node: SlurmNode) -> None:
    node.lend()
    path = node.folder / "loans" / f"{node.gpu()}.json"
    path.unlink()
    path.mkdir()  # what no file can be removed from
    refused("JOURNAL_UNWRITABLE", lambda: node.lender.give_back(JOB))
    refused("LENT", lambda: node.lend(OTHER))
    refused("LENT", lambda: node.prepare(node.held("a", node.part())))


def test_a_grant_that_could_not_be_delivered_is_undone_and_an_older_one_stays(node: SlurmNode) -> None:
    node.lend(JOB, 0)

    def granted_and_gone() -> None:
        with node.lender.lending(JOB, (0, 1), deadline=0):
            assert node.lent() == {0: 7, 1: 7}
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        granted_and_gone()
    assert node.lent() == {0: 7}


def test_a_prolog_that_died_while_waiting_gets_nothing(node: SlurmNode) -> None:
    node.lend(OTHER, 0)
    alive = iter([True, True, False])
    lending = node.lender.lending(JOB, (0,), deadline=node.bench.clock.now + 60, is_there=lambda: next(alive))
    refused("ABANDONED", lending.__enter__)
    assert node.lent() == {0: 8}


def test_a_run_that_asks_twice_is_answered_once_the_first_answer_is_delivered_or_taken_back(node: SlurmNode) -> None:
    with node.lender.lending(JOB, (0,), deadline=0):
        again = in_thread(node.lend, JOB, 0)
        again.join(0.3)
        assert again.is_alive()
    again.join(10)
    assert node.lent() == {0: 7}


def test_nothing_of_a_run_is_given_back_while_it_is_lent_more(node: SlurmNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.lend(JOB, 0)
    write, waited = node.loans.write, list[bool]()

    def slowly(loan: Loan) -> None:
        epilog = in_thread(node.lender.give_back, JOB)
        epilog.join(0.3)
        waited.append(epilog.is_alive())
        write(loan)

    monkeypatch.setattr(node.loans, "write", slowly)
    node.lend(JOB, 0, 1)
    assert waited == [True]


def test_a_gpu_that_policy_ignores_is_lent_as_it_is(node: SlurmNode) -> None:
    _, name = node.part()
    partition = node.bench.catalog().offers[f"{NODE}/gpu-0"].pool.device(name).partition
    assert partition is not None
    node.bench.policies = GpuPolicies(default=GpuPolicy(policy=Policy.IGNORE))
    node.bench.gpus.foreign(node.gpu(0), partition)
    node.lend(JOB, 0, 1)
    assert [node.bench.gpus.mig_mode(node.gpu(n)) for n in range(2)] == [MigMode.ON, MigMode.ON]
    assert len(node.bench.live()) == 1


def test_a_run_does_not_wait_for_an_older_one_of_its_id(node: SlurmNode) -> None:
    """slurmctld forgot the older one in a crash and gave its id out again; its prolog still waits."""
    node.lend(OTHER, 0)
    forgotten, again = Borrower(7, "sOLD", 0), Borrower(7, "sNEW", 0)
    older = in_thread(node.lend, forgotten, 0, wait=600.0)
    older.join(0.3)
    assert older.is_alive()
    newer = in_thread(node.lend, again, 1)
    newer.join(10)
    assert node.lent() == {0: 8, 1: 7}
    node.lender.give_back(OTHER)
    older.join(10)


def test_a_waiting_prolog_gets_the_gpu_as_soon_as_it_is_free(node: SlurmNode) -> None:
    node.prepare(node.held("a", node.part()))
    waiting = in_thread(node.lend, JOB, 0, wait=600.0)
    waiting.join(0.3)
    assert waiting.is_alive()
    node.service.endings.unprepare("a")
    waiting.join(10)
    assert node.lent() == {0: 7}


def test_the_epilog_of_a_requeued_run_ends_that_run_only(node: SlurmNode) -> None:
    """slurmd counts the requeue before it runs the epilog (seen): the SLUID tells the runs apart."""
    node.lend(Borrower(7, "first", 0), 0)
    node.lend(Borrower(7, "second", 1), 1)
    node.lender.give_back(Borrower(7, "first", 1))
    assert node.lent() == {1: 7}


def test_what_a_person_gives_back_of_a_job_is_of_all_its_runs_and_of_no_other_job(tmp_path: Path) -> None:
    node = SlurmNode(tmp_path, 3)
    node.lend(Borrower(7, "first", 0), 0)
    node.lend(Borrower(7, "second", 1), 1)
    node.lend(OTHER, 2)
    node.lender.give_back_all(7)
    assert node.lent() == {2: 8}


def test_nothing_is_lent_before_a_crash_was_settled(node: SlurmNode) -> None:
    node.restart(settled=False)
    refused("STARTING", node.lend)
    node.lender.open()
    node.lend()


def test_an_unknown_index_a_foreign_instance_and_a_fixed_mig_mode_are_refused(tmp_path: Path) -> None:
    node = SlurmNode(tmp_path / "a")
    refused("UNKNOWN_INDEX", lambda: node.lend(JOB, 0, 5))
    _, name = node.part()
    partition = node.bench.catalog().offers[f"{NODE}/gpu-0"].pool.device(name).partition
    assert partition is not None
    node.bench.gpus.foreign(node.gpu(), partition)
    refused("QUARANTINED", node.lend)
    ampere = SlurmNode(tmp_path / "b", mode_switch_needs_reset=True)
    refused("MIG_MODE", ampere.lend)
    assert node.lent() == ampere.lent() == {}


def test_device_files_that_changed_places_are_not_lent(node: SlurmNode) -> None:
    swapped = [h100(0, minor=1), h100(1, minor=0)]
    node.bench.gpus._readings = {r.uuid: r for r in swapped}
    refused("MAP_OUTDATED", node.lend)
    assert node.lent() == {}


def test_an_unreadable_claim_record_may_own_any_gpu(node: SlurmNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.bench.journal, "unreadable", lambda: {"x": "claims/x.json"})
    refused("JOURNAL_DAMAGED", node.lend)


# -- prepare ---------------------------------------------------------------------------------------------------------


def test_prepare_on_a_lent_gpu_asks_slurmctld_first_and_fails_naming_the_job(node: SlurmNode) -> None:
    node.lend(JOB, 0)
    node.slurm.says(JOB, "RUNNING")
    ref = node.held("a", node.part())
    error = refused("LENT", lambda: node.prepare(ref))
    assert "Slurm job 7" in error.what
    assert isinstance(error, Unavailable)
    assert node.slurm.asked == [7]
    assert node.bench.live() == []
    node.prepare(node.held("b", node.part(gpu=1)))
    node.slurm.says(JOB, "COMPLETED")
    node.bench.clock.now += 60
    node.prepare(ref)
    assert node.lent() == {}
    assert node.bench.journal.records()["a"].state is State.PREPARED


def test_a_prepare_that_waits_goes_on_when_the_epilog_comes(node: SlurmNode) -> None:
    node.lend(JOB, 0)
    ref = node.held("a", node.part())
    waiting = in_thread(node.prepare, ref, 600.0)
    waiting.join(0.3)
    assert waiting.is_alive()
    node.lender.give_back(JOB)
    waiting.join(10)
    assert node.bench.journal.records()["a"].state is State.PREPARED


def test_slurmctld_is_not_asked_again_and_again_by_those_who_wait(node: SlurmNode) -> None:
    node.lend(JOB, 0)
    for ref in [node.held(uid, node.part()) for uid in "abcd"]:
        with pytest.raises(Unavailable, match="Slurm job 7"):
            node.prepare(ref)
    assert node.slurm.asked == [7]


def test_with_slurm_the_claim_must_be_held_by_the_bridge_for_this_node(node: SlurmNode) -> None:
    bare = node.bench.claims.put(claim_object("a", node.part()))
    refused("NOT_HELD", lambda: node.prepare(bare))
    refused("NOT_HELD", lambda: node.prepare(node.held("b", node.part(1), node=None)))
    refused("HELD_ELSEWHERE", lambda: node.prepare(node.held("c", node.part(2), node="n2")))
    found = node.bench.claims.get(bare)
    assert isinstance(found, Found)
    assert not found.value.held, "the driver never adds the finalizer itself"
    assert node.bench.journal.records() == {}
    node.prepare(node.held("d", node.part(3)))


def test_with_slurm_letting_go_waits_for_the_bridge(node: SlurmNode) -> None:
    ref = node.held("a", node.part())
    node.prepare(ref)
    node.service.endings.unprepare("a")
    assert not node.service.endings.settle("a"), "still allocated"
    node.bench.claims.deallocate(ref)
    assert not node.service.endings.settle("a"), "not released yet"
    view = node.bench.claims.get(ref)
    assert isinstance(view, Found)
    node.bench.claims.hold(view.value, {names.RELEASE: "now"})
    assert node.service.endings.settle("a")
    view = node.bench.claims.get(ref)
    assert isinstance(view, Found)
    assert not view.value.held


def test_with_slurm_a_claim_that_is_allocated_is_not_let_go_although_it_says_released(node: SlurmNode) -> None:
    ref = node.held("a", node.part())
    node.prepare(ref)
    node.service.endings.unprepare("a")
    view = node.bench.claims.get(ref)
    assert isinstance(view, Found)
    node.bench.claims.hold(view.value, {names.RELEASE: "now"})
    assert not node.service.endings.settle("a")
    node.bench.claims.deallocate(ref)
    assert node.service.endings.settle("a")


def test_with_slurm_a_deleted_claim_is_let_go(node: SlurmNode) -> None:
    ref = node.held("a", node.part())
    node.prepare(ref)
    node.service.endings.unprepare("a")
    node.bench.claims.deallocate(ref, delete=True)
    assert node.service.endings.settle("a")
    assert isinstance(node.bench.claims.get(ref), Gone)


# -- slurmctld's word ------------------------------------------------------------------------------------------------


def test_silence_and_reboots_end_nothing(node: SlurmNode) -> None:
    node.lend()
    node.bench.clock.now += 1e6
    assert node.lender.ask() == []
    node.bench.nodes.boot = "boot-2"
    node.bench.gpus.reboot()
    node.restart()
    assert node.lender.ask() == []
    assert node.lent() == {0: 7}
    refused("LENT", lambda: node.prepare(node.held("a", node.part())))


def test_slurmctlds_word_ends_a_loan_whose_epilog_found_no_driver(node: SlurmNode) -> None:
    node.lend(JOB, 0)
    node.lend(OTHER, 1)
    node.slurm.says(JOB, "CANCELLED")
    node.slurm.says(OTHER, "RUNNING")
    assert [loan.borrower for loan in node.lender.ask()] == [JOB]
    node.slurm.jobs[8] = Gone("unknown")
    node.slurm.node_answer = Found(NodeFacts("slurm-n1", frozenset({"MIXED"}), frozenset({1})))
    assert node.lender.ask() == [], "the node still counts the GPU as used"
    node.slurm.node_answer = Found(UP)
    node.bench.clock.now += LAUNCH_S
    node.lender.ask()
    assert node.lent() == {}


def test_a_forgotten_jobs_gpu_goes_to_the_job_that_slurm_has_given_it_to(node: SlurmNode) -> None:
    """On a busy GPU the node always counts it as used: by the next job, whose prolog asks for it."""
    node.lend(JOB, 0)
    node.slurm.jobs[JOB.job_id] = Gone("unknown")
    node.slurm.node_answer = Found(NodeFacts("slurm-n1", frozenset({"MIXED"}), frozenset({0})))
    node.bench.clock.step = 1.0
    refused("LENT", lambda: node.lend(OTHER, 0, wait=20))  # slurmctld does not say that the asking one has the GPU
    node.slurm.says(OTHER, "CANCELLED")
    refused("LENT", lambda: node.lend(OTHER, 0, wait=20))
    node.slurm.says(OTHER, "RUNNING")
    node.bench.clock.now += LAUNCH_S
    node.lend(OTHER, 0, wait=20)
    assert node.lent() == {0: 8}


def test_a_job_that_ended_with_a_silent_node_keeps_its_gpu_while_it_lives_on_there(node: SlurmNode) -> None:
    node.lend()
    node.slurm.says(JOB, "NODE_FAIL")
    ends_once_the_node_has_no_step(node)


def test_of_a_loan_that_nobody_asked_about_no_reason_of_an_older_one_is_told(node: SlurmNode) -> None:
    node.lend()
    node.slurm.says(JOB, "RUNNING")
    node.lender.ask()
    (loan,) = node.lender.loans().values()
    assert node.lender.why_it_stands(loan) == "slurmctld says that it is not over"
    node.lender.give_back(JOB)
    node.lend(OTHER)
    (loan,) = node.lender.loans().values()
    assert node.lender.why_it_stands(loan) == "slurmctld has not been asked about it yet"


def ends_once_the_node_has_no_step(node: SlurmNode) -> None:
    """The loan of JOB, a while after it was made."""
    node.bench.clock.now += LAUNCH_S
    (loan,) = node.lender.loans().values()
    for steps, why in ((Found(True), "still has a step"), (Unknown("no spool folder"), "no spool folder")):
        node.slurm.steps_answer = steps
        assert node.lender.ask() == []
        assert why in node.lender.why_it_stands(loan)
    node.slurm.steps_answer = Found(False)
    assert [loan.borrower for loan in node.lender.ask()] == [JOB]


@pytest.mark.parametrize(
    "said",
    [
        Gone("unknown"),
        Found(JobFacts(frozenset({"PENDING"}), JOB.sluid, JOB.restart)),
        Found(JobFacts(frozenset({"RUNNING"}), "another", 0)),
        Found(JobFacts(frozenset({"RUNNING"}), JOB.sluid, JOB.restart, frozenset({"slurm-n2"}))),
    ],
    ids=["unknown", "waits to be started", "the id is another job's", "it has this node no more"],
)
def test_what_slurmctld_has_no_more_keeps_its_gpu_while_it_lives_here(node: SlurmNode, said: Seen[JobFacts]) -> None:
    node.lend()
    node.slurm.jobs[JOB.job_id] = said
    assert node.lender.ask() == [], "it may be about to start"
    ends_once_the_node_has_no_step(node)


def test_a_loan_that_changed_hands_while_slurmctld_was_asked_stays(node: SlurmNode) -> None:
    node.lend(JOB, 0)
    node.slurm.says(JOB, "COMPLETED")

    def meanwhile() -> None:
        node.slurm.before_answer = lambda: None
        node.lender.give_back(JOB)
        node.lend(OTHER, 0)

    node.slurm.before_answer = meanwhile
    assert node.lender.ask() == []
    assert node.lent() == {0: 8}


def test_the_next_run_of_a_job_takes_over_what_its_last_run_left(node: SlurmNode) -> None:
    node.lend(Borrower(7, "first", 0))
    again = Borrower(7, "second", 1)
    node.slurm.says(again, "RUNNING")
    node.bench.clock.now += LAUNCH_S
    node.lend(again, wait=30)
    assert node.loans.all()[node.gpu()].borrower == again


# -- damage ----------------------------------------------------------------------------------------------------------


ANOTHERS = b'{"v":1,"gpu":"GPU-x","job":{"id":1,"sluid":"","restart":0},"since":1}'


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"v": 1}', ANOTHERS])
def test_a_damaged_loan_is_kept_and_its_gpu_is_closed_to_both(node: SlurmNode, content: bytes) -> None:
    node.lend()
    path = node.folder / "loans" / f"{node.gpu()}.json"
    path.write_bytes(content)
    node.restart()
    refused("LOAN_UNREADABLE", node.lend)
    error = refused("LOAN_UNREADABLE", lambda: node.prepare(node.held("a", node.part())))
    assert str(path) in error.what
    assert path.read_bytes() == content
    assert node.lender.ask() == []
    assert node.lender.give_back(JOB) == []
    node.lend(OTHER, 1)


def test_a_loan_of_a_newer_version_stops_the_start(node: SlurmNode) -> None:
    (node.folder / "loans" / f"{node.gpu()}.json").write_text(json.dumps({"v": 2}))
    refused("NEWER_JOURNAL", node.restart)


# -- deaths ----------------------------------------------------------------------------------------------------------


WRITES = {
    "loans": ("write", "forget"),
    "gpus": ("set_mig_mode", "create_gpu_instance", "create_compute_instance"),
    "journal": ("write",),
    "cdi": ("write",),
}


def dies(node: SlurmNode, death: DiesAt, act: Callable[[], object]) -> bool:
    """True if the process died at a write of `act`; the ports work again afterwards."""
    bench = node.bench
    ports = {"loans": node.loans, "gpus": bench.gpus, "journal": bench.journal, "cdi": bench.cdi}
    kept = [(port, call, getattr(port, call)) for name, port in ports.items() for call in WRITES[name]]
    for name, port in ports.items():
        death.wrap(port, WRITES[name])
    try:
        act()
    except Killed:
        return True
    finally:
        for port, call, original in kept:
            setattr(port, call, original)
    return False


@pytest.mark.parametrize("after", [False, True], ids=["before-the-act", "after-the-act"])
def test_killed_at_any_write_of_lending_the_gpus_are_free_again_once_slurm_says_so(tmp_path: Path, after: bool) -> None:
    deaths = 0
    for nth in range(1, 20):
        node = SlurmNode(tmp_path / str(nth), 2)
        if not dies(node, DiesAt(nth, after=after), lambda node=node: node.lend(JOB, 0, 1)):  # type: ignore[misc]
            break
        deaths += 1
        node.restart()
        node.check()
        node.slurm.says(Borrower(7, "next", 1), "PENDING")  # its prolog failed closed: requeued
        node.bench.clock.now += LAUNCH_S
        node.lender.ask()
        assert node.lent() == {}
        node.prepare(node.held("a", node.part(), node.part(gpu=1)))
        assert node.bench.journal.records()["a"].state is State.PREPARED
    assert deaths == 4, "two loans and two switches of MIG mode"


@pytest.mark.parametrize("after", [False, True], ids=["before-the-act", "after-the-act"])
def test_killed_at_any_write_of_lending_the_same_prolog_may_ask_again(tmp_path: Path, after: bool) -> None:
    for nth in range(1, 5):
        node = SlurmNode(tmp_path / str(nth), 2)
        assert dies(node, DiesAt(nth, after=after), lambda node=node: node.lend(JOB, 0, 1))  # type: ignore[misc]
        node.restart()
        node.lend(JOB, 0, 1)
        assert node.lent() == {0: 7, 1: 7}
        node.lender.give_back(JOB)
        assert node.lent() == {}


@pytest.mark.parametrize("after", [False, True], ids=["before-the-act", "after-the-act"])
def test_killed_at_any_write_of_giving_back(tmp_path: Path, after: bool) -> None:
    for nth in (1, 2):
        node = SlurmNode(tmp_path / str(nth), 2)
        node.lend(JOB, 0, 1)
        assert dies(node, DiesAt(nth, after=after), lambda node=node: node.lender.give_back(JOB))  # type: ignore[misc]
        node.restart()
        node.slurm.says(JOB, "COMPLETED")
        node.lender.ask()
        assert node.lent() == {}


@pytest.mark.parametrize("after", [False, True], ids=["before-the-act", "after-the-act"])
def test_killed_at_any_write_of_prepare_the_gpu_is_not_lent_while_anything_may_be_there(
    tmp_path: Path, after: bool
) -> None:
    deaths = 0
    for nth in range(1, 20):
        node = SlurmNode(tmp_path / str(nth))
        ref = node.held("a", node.part())
        if not dies(node, DiesAt(nth, after=after), lambda node=node, ref=ref: node.prepare(ref)):  # type: ignore[misc]
            break
        deaths += 1
        node.restart()
        intended = bool(node.bench.journal.records())
        if intended:
            refused("CLAIMED", node.lend)
        else:
            node.lend()
        node.check()
    assert deaths >= 5


def test_a_gpu_is_never_lent_and_ours_at_the_same_time(tmp_path: Path) -> None:
    """Looked at inside every write of either book, where the GPU's lock is held or its claim is known to own it."""
    node = SlurmNode(tmp_path, 2)
    broken: list[str] = []
    done: list[str] = []

    def claim_written(record: ClaimRecord) -> None:
        if record.owns_hardware:
            broken.extend(f"{record.ref} on lent {d.gpu}" for d in record.devices if d.gpu in node.loans.all())

    write = node.loans.write

    def loan_written(loan: Loan) -> None:
        write(loan)
        owners = [r for r in node.bench.journal.records().values() if r.owns_hardware]
        broken.extend(f"{loan} beside {r.ref}" for r in owners if any(d.gpu == loan.gpu for d in r.devices))

    node.bench.journal.on_write = claim_written
    node.loans.write = loan_written  # type: ignore[method-assign]
    threads = [threading.Thread(target=_jobs, args=(node, n, done)) for n in range(6)]
    threads += [threading.Thread(target=_pods, args=(node, n, done)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert broken == []
    assert Counter(done) == {"lent": 120, "prepared": 120}
    assert node.lent() == {}
    assert not any(r.owns_hardware for r in node.bench.journal.records().values())


def _jobs(node: SlurmNode, n: int, done: list[str]) -> None:
    luck = random.Random(n)
    for attempt in range(20):
        borrower = Borrower(100 + n, f"s{n}-{attempt}", attempt)
        node.lend(borrower, *luck.choice([(0,), (1,), (0, 1)]), wait=600)
        done.append("lent")
        node.lender.give_back(borrower)


def _pods(node: SlurmNode, n: int, done: list[str]) -> None:
    luck = random.Random(1000 + n)
    for attempt in range(20):
        uid = f"c{n}-{attempt}"
        node.prepare(node.held(uid, node.part(n, luck.choice([0, 1]))), 600)
        done.append("prepared")
        node.service.endings.unprepare(uid)


# -- configuration and publishing ----------------------------------------------------------------------------


def test_the_section_slurm(tmp_path: Path) -> None:
    path = tmp_path / "driver.yaml"
    path.write_text("nodeName: n1\nslurm: {nodeName: gpu7, scontrol: /opt/slurm/bin/scontrol, deviceMap: {0: GPU-a}}\n")
    slurm = load(path).slurm
    assert slurm is not None
    assert (slurm.node_name, slurm.scontrol, slurm.device_map) == ("gpu7", ("/opt/slurm/bin/scontrol",), {0: "GPU-a"})
    path.write_text(
        "nodeName: n1\nslurm: {nodeName: 'a b', scontrol: [], answerSeconds: 0, askSeconds: 0, nodename: x}\n"
    )
    with pytest.raises(Refused) as caught:
        load(path)
    for key in ("slurm.nodeName", "slurm.scontrol", "slurm.answerSeconds", "slurm.askSeconds", "slurm.nodename"):
        assert key in caught.value.what


def test_only_the_bridge_may_allocate_what_slurm_has_too(node: SlurmNode) -> None:
    readings, numbers = node.bench.gpus.readings(), {node.gpu(0): 0, node.gpu(1): 1}
    for managed in (True, False):
        catalog = build(NODE, readings, numbers, node.bench.policies, managed=managed)
        taints = [
            [(t.key, t.value, t.effect) for t in d.taints] for o in catalog.offers.values() for d in o.pool.devices
        ]
        wanted = [("dynamig.io/slurm", "managed", "NoSchedule")] if managed else []
        assert len(taints) > 20
        assert all(found == wanted for found in taints)
