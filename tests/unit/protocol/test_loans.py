"""Who a run of a job is, what slurmctld's answers prove, and what may be lent."""

from __future__ import annotations

import json

import pytest

from dynamig.errors import DynamigError, InvariantBroken, Unavailable
from dynamig.mig import GpuUuid
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.lifecycle import OWNS_HARDWARE, State
from dynamig.protocol.loans import (
    DISOWNED,
    LAUNCH_S,
    OUT_OF_TOUCH,
    Borrower,
    JobFacts,
    JobSeen,
    Loan,
    NodeFacts,
    check_apart,
    check_lendable,
    judge,
    loan_from_json,
    loan_to_json,
    used_but_for,
    why_it_stands,
)
from dynamig.protocol.node_report import report_of
from dynamig.protocol.records import ClaimRecord, DeviceRecord
from dynamig.protocol.seen import Found, Gone, Seen, Unknown

GPU = GpuUuid("GPU-a")
RUN = Borrower(7, "first", 0)
NO_SLUID = Borrower(7, "", 1)
UP: Seen[NodeFacts] = Found(NodeFacts("n1", frozenset({"IDLE"}), frozenset()))
USED: Seen[NodeFacts] = Found(NodeFacts("n1", frozenset({"MIXED"}), frozenset({0})))
SILENT: Unknown = Unknown("no answer")


def job(*states: str, sluid: str = "first", restart: int = 0, nodes: tuple[str, ...] = ()) -> Seen[JobFacts]:
    return Found(JobFacts(frozenset(states), sluid, restart, frozenset(nodes)))


def down(state: str) -> Seen[NodeFacts]:
    return Found(NodeFacts("n1", frozenset({state}), frozenset()))


@pytest.mark.parametrize(
    ("said", "node", "seen"),
    [
        (job("RUNNING"), UP, JobSeen.ACTIVE),
        (job("RUNNING", nodes=("n1", "n2")), UP, JobSeen.ACTIVE),
        (job("SUSPENDED"), UP, JobSeen.ACTIVE),
        (job("RUNNING", nodes=("n2",)), UP, JobSeen.ELSEWHERE),  # seen: it gave this node up while no driver answered
        (job("SUSPENDED", nodes=("n2",)), UP, JobSeen.ELSEWHERE),
        (job("RUNNING", "COMPLETING", nodes=("n2",)), UP, JobSeen.ACTIVE),
        (job("RUNNING", nodes=("n2",)), SILENT, JobSeen.SILENT),
        (job("PENDING"), UP, JobSeen.UNSTARTED),  # seen: slurmctld killed, its last state was from before the start
        (job("COMPLETED"), UP, JobSeen.ENDED),
        (job("CANCELLED"), USED, JobSeen.ENDED),  # another job has the GPU already
        (job("TIMEOUT"), UP, JobSeen.ENDED),
        (job("CANCELLED", "COMPLETING"), UP, JobSeen.ACTIVE),  # its epilog has not ended
        (job("PENDING", "COMPLETING", sluid="next", restart=1), UP, JobSeen.ACTIVE),  # seen: requeued, still leaving
        (job("PENDING", sluid="next", restart=1), UP, JobSeen.OTHER),
        (job("RUNNING", sluid="stranger"), UP, JobSeen.OTHER),  # the id was given out again
        (job("NODE_FAIL"), UP, JobSeen.UNHEARD),  # seen: the node was set down and was back at once, the job lived on
        (Gone("unknown"), UP, JobSeen.GONE),
        (Gone("unknown"), USED, JobSeen.SILENT),
        (Gone("unknown"), SILENT, JobSeen.SILENT),
        (SILENT, UP, JobSeen.SILENT),
        (job("COMPLETED"), SILENT, JobSeen.SILENT),
        *((job("NODE_FAIL"), down(state), JobSeen.SILENT) for state in sorted(OUT_OF_TOUCH)),
    ],
)
def test_what_the_answers_prove(said: Seen[JobFacts], node: Seen[NodeFacts], seen: JobSeen) -> None:
    assert judge(RUN, 0, said, node) is seen


def test_a_gpu_without_an_index_is_never_seen_free() -> None:
    assert judge(RUN, None, Gone("unknown"), UP) is JobSeen.SILENT


@pytest.mark.parametrize(
    ("said", "node", "used"),
    [
        (job("RUNNING"), USED, frozenset[int]()),
        (job("CONFIGURING", "RUNNING"), USED, frozenset[int]()),
        (job("PENDING"), USED, frozenset({0})),
        (job("RUNNING", sluid="stranger"), USED, frozenset({0})),
        (job("RUNNING", nodes=("n2",)), USED, frozenset({0})),
        (job("CANCELLED"), USED, frozenset({0})),
        (Gone("unknown"), USED, frozenset({0})),
        (SILENT, USED, frozenset({0})),
    ],
)
def test_a_run_that_asks_explains_the_use_of_its_own_indices(
    said: Seen[JobFacts], node: Seen[NodeFacts], used: frozenset[int]
) -> None:
    left = used_but_for(node, RUN, [0, 1], said)
    assert isinstance(left, Found)
    assert left.value.used == used


def test_silence_about_the_node_stays_silence() -> None:
    assert used_but_for(SILENT, RUN, [0], job("RUNNING")) is SILENT


def over(has_steps: Seen[bool], age_s: float) -> set[JobSeen]:
    return {seen for seen in JobSeen if why_it_stands(seen, has_steps, age_s) is None}


def test_only_an_answer_ends_a_loan_and_where_slurmctld_may_have_forgotten_the_nodes_too() -> None:
    assert over(Found(False), LAUNCH_S) == {JobSeen.ENDED, *DISOWNED}
    assert over(Unknown("no answer"), 1e6) == over(Found(False), LAUNCH_S - 1) == {JobSeen.ENDED}
    assert over(Found(True), 1e6) == set(), "what is seen to live has not ended, whatever the books say"


@pytest.mark.parametrize(
    ("seen", "steps", "words"),
    [
        (JobSeen.ACTIVE, Unknown("not asked"), "slurmctld says that it is not over"),
        (JobSeen.SILENT, Unknown("not asked"), "no answer of slurmctld proves it over"),
        (JobSeen.ENDED, Found(True), "over, but slurmd's spool folder on this node still has a step of it"),
        (JobSeen.GONE, Found(True), "does not know it, but slurmd's spool folder on this node still has a step of it"),
        (JobSeen.OTHER, Unknown("no spool folder"), "another run or job under its id, and the node does not say"),
        (JobSeen.OTHER, Unknown("no spool folder"), "no spool folder"),
        (JobSeen.ELSEWHERE, Found(True), "has this node no more, but slurmd's spool folder on this"),
        (JobSeen.UNSTARTED, Found(False), "has not started, but a run may need a minute to start"),
    ],
)
def test_a_loan_says_why_it_stands(seen: JobSeen, steps: Seen[bool], words: str) -> None:
    assert words in (why_it_stands(seen, steps, LAUNCH_S - 1) or "")


@pytest.mark.parametrize(
    ("run", "epilog", "same", "ended"),
    [
        (RUN, RUN, True, True),
        (RUN, Borrower(7, "first", 1), True, True),  # seen: slurmd counts the requeue before the epilog
        (RUN, Borrower(7, "second", 0), False, False),
        (RUN, Borrower(8, "first", 0), False, False),
        (NO_SLUID, NO_SLUID, True, True),
        (NO_SLUID, Borrower(7, "", 2), False, True),
        (NO_SLUID, Borrower(7, "", 0), False, False),  # a late epilog of the run before
        (NO_SLUID, Borrower(7, "any", 1), True, True),  # Slurm was upgraded meanwhile
    ],
)
def test_runs_of_a_job(run: Borrower, epilog: Borrower, same: bool, ended: bool) -> None:
    assert run.is_same_run(epilog) is same
    assert run.is_ended_by(epilog) is ended


def record(state: State, gpu: GpuUuid = GPU) -> ClaimRecord:
    device = DeviceRecord("r0", "n1/gpu-0", "gpu-0", gpu, None)
    return ClaimRecord(ClaimRef("ns", "pod-claim", "u1"), state, (device,), "boot-1", 1.0)


@pytest.mark.parametrize("state", State)
def test_what_owns_hardware_is_not_lent_and_what_does_not_is(state: State) -> None:
    if state in OWNS_HARDWARE:
        with pytest.raises(Unavailable, match="ns/pod-claim"):
            check_lendable(GPU, RUN, {}, [record(state)], [])
        with pytest.raises(InvariantBroken):
            check_apart([GPU], [record(state)])
    else:
        check_lendable(GPU, RUN, {}, [record(state)], [])
        check_apart([GPU], [record(state)])
    check_lendable(GPU, RUN, {}, [record(state, GpuUuid("GPU-b"))], [])
    check_apart([GPU], [record(state, GpuUuid("GPU-b"))])


def test_lent_to_one_run_only() -> None:
    loans = {GPU: Loan(GPU, RUN, 1.0)}
    check_lendable(GPU, RUN, loans, [], [])
    with pytest.raises(Unavailable, match="lent to Slurm job 7"):
        check_lendable(GPU, Borrower(7, "second", 1), loans, [], [])


def test_on_disk() -> None:
    loan = Loan(GPU, RUN, 12.5)
    assert loan_from_json(json.loads(json.dumps(loan_to_json(loan)))) == loan
    with pytest.raises(DynamigError, match="version 2"):
        loan_from_json({**loan_to_json(loan), "v": 2})


def test_in_the_lease() -> None:
    plain = json.loads(report_of("b", 1, True, []).to_json())
    assert set(plain) == {"v", "bootId", "sequence", "registered", "claims"}, "as it was on nodes without Slurm"
    lent = json.loads(report_of("b", 1, True, [], loans=[Loan(GPU, RUN, 1.0)]).to_json())
    assert lent["loans"] == [loan_to_json(Loan(GPU, RUN, 1.0))]
