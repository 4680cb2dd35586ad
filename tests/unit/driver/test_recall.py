"""A native job that was turned away starts as soon as its GPUs are free, not two minutes later."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamig.driver.recall import OFTEN, SELDOM, Recall
from dynamig.protocol.loans import Borrower
from dynamig.protocol.seen import Gone, Unknown
from tests.unit.driver.test_loans import JOB, SlurmNode

AGAIN = Borrower(JOB.job_id, "next", 1)
"""Its next run."""


@pytest.fixture
def node(tmp_path: Path) -> SlurmNode:
    return SlurmNode(tmp_path, 2)


def turned_away(node: SlurmNode, *states: str) -> Recall:
    node.slurm.says(AGAIN, *states)
    recall = Recall(node.lender, node.slurm, 1.0)
    recall.note(JOB, [0, 1])
    return recall


def test_it_is_told_to_start_once_all_its_gpus_are_free(node: SlurmNode) -> None:
    node.prepare(node.held("a", node.part()))
    recall = turned_away(node, "PENDING")
    assert recall.step() == OFTEN
    assert node.slurm.told_to_start == []
    node.service.endings.unprepare("a")
    recall.step()
    assert node.slurm.told_to_start == [AGAIN]
    assert recall.step() == SELDOM, "told once"
    assert node.lent() == {}, "nothing was lent: the prolog asks again"


@pytest.mark.parametrize("states", [("PENDING", "COMPLETING"), ("RUNNING",), ("CANCELLED", "COMPLETING")])
def test_a_run_that_is_not_over_yet_is_waited_for(node: SlurmNode, states: tuple[str, ...]) -> None:
    recall = turned_away(node, *states)
    recall.step()
    assert node.slurm.told_to_start == []
    node.slurm.says(AGAIN, "PENDING")
    recall.step()
    assert node.slurm.told_to_start == [AGAIN]


def test_a_job_that_is_over_is_forgotten_and_silence_forgets_nothing(node: SlurmNode) -> None:
    recall = turned_away(node, "PENDING")
    node.slurm.jobs[JOB.job_id] = Unknown("silent")
    assert [recall.step(), recall.step()] == [OFTEN, OFTEN]
    node.slurm.jobs[JOB.job_id] = Gone("slurmctld knows it no more")
    recall.step()
    assert recall.step() == SELDOM


def test_another_job_that_has_the_id_now_is_not_told_to_start(node: SlurmNode) -> None:
    """It may wait for a time that its user wants. slurmctld gives the id of a job that it forgot out again."""
    recall = turned_away(node)
    node.slurm.says(Borrower(JOB.job_id, "another", 0), "PENDING")
    recall.step()
    assert (node.slurm.told_to_start, recall.step()) == ([], SELDOM)


def test_a_job_that_got_its_gpus_is_forgotten(node: SlurmNode) -> None:
    recall = turned_away(node, "RUNNING")
    recall.forget(JOB.job_id)
    assert recall.step() == SELDOM
