"""What cannot be done for one set holds up no other; it is told on its pods and tried again, less and less often."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from structlog.testing import capture_logs

from dynamig.bridge.actions import Action, Submit
from dynamig.bridge.errands import GIVEN_UP_AFTER, LeadLost
from dynamig.bridge.failures import FIRST_PAUSE, LONGEST_PAUSE
from dynamig.bridge.health import LookFailed
from dynamig.bridge.news import passive
from dynamig.errors import Conflict, DynamigError, Refused, Unavailable
from dynamig.protocol.pauses import pause_after
from dynamig.protocol.slurm_jobs import JobState, SlurmNodeName
from dynamig.testing.fake_slurm import FakeSlurm
from tests.unit.bridge.stage import Stage, wants


def failing(stage: Stage, error: DynamigError, *pods: str) -> Callable[[], int]:
    """Submits for these pods fail from now on; how often they were tried."""
    tried = []
    run = stage.errands._run

    def spoiled(action: Action) -> None:
        if isinstance(action, Submit) and action.of.pod.ref.name in pods:
            tried.append(action)
            raise error
        run(action)

    stage.errands._run = spoiled
    return lambda: len(tried)


REFUSED = Refused("SLURM_2045", "submitting hold 1: Invalid account")
JOB_LOST = Unavailable("JOB_LOST", "submitting hold 1: id 7 is another job's already", "submit it again")


@pytest.mark.parametrize("error", [REFUSED, JOB_LOST])
def test_the_other_sets_are_served_in_the_same_look(error: DynamigError) -> None:
    stage = Stage()
    tried = failing(stage, error, "a")
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.sets.create_pod("b", wants("1g.10gb"))
    stage.look()
    assert tried() == 1
    assert stage.states() == {"pod-b": JobState.RUNNING}


def test_a_set_that_cannot_be_served_takes_no_place() -> None:
    """Its decision promises it a GPU; in the looks between its attempts that GPU is there for others."""
    stage = Stage(slurm=FakeSlurm({SlurmNodeName("n1"): (7, 0), SlurmNodeName("n2"): (0, 0)}))
    stage.sets.create_pod("a", wants("7g.80gb"))
    stage.sets.create_pod("b", wants("7g.80gb"))
    failing(stage, REFUSED, "a", "b")
    stage.look()
    (_, of_b) = [action for action, outcome in stage.done if outcome == "failed"]
    stage.failures.succeeded("pod-b", of_b)
    (decision,) = stage.decisions()
    (submit,) = decision.actions
    assert isinstance(submit, Submit)
    assert (decision.subject, submit.plan.choice is not None) == ("pod-b", True)


def test_it_is_told_on_its_pod_from_the_second_time_and_logged_once() -> None:
    stage = Stage()
    tried = failing(stage, REFUSED, "a")
    stage.sets.create_pod("a", wants("1g.10gb"))
    with capture_logs() as logs:
        while tried() < 2:
            assert ("ActionFailed", f"Submit failed and is tried again: {REFUSED}") not in stage.sets.told.get("a", [])
            stage.look()
        stage.look_for(60)
    assert stage.sets.told["a"][-1] == ("ActionFailed", f"Submit failed and is tried again: {REFUSED}")
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["action_failed"]


def test_it_is_tried_less_and_less_often_and_served_when_it_can_be() -> None:
    stage = Stage()
    tried = failing(stage, REFUSED, "a")
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.look_for(600)
    assert 600 / LONGEST_PAUSE < tried() < 20
    assert stage.failures.subjects == 1
    stage.errands._run = stage.hands.run
    stage.look_for(LONGEST_PAUSE + 5)
    assert stage.states() == {"pod-a": JobState.RUNNING}
    assert stage.failures.subjects == 0


@pytest.mark.parametrize("error", [Conflict("CONFLICT", "changed"), Refused("NOT_FOUND", "claim ns/a-0")])
def test_whoever_was_faster_is_no_failure(error: DynamigError) -> None:
    stage = Stage()
    tried = failing(stage, error, "a")
    stage.sets.create_pod("a", wants("1g.10gb"))
    with capture_logs() as logs:
        stage.look_for(5)
    assert (tried(), stage.failures.subjects) == (5, 0)
    assert {outcome for action, outcome in stage.done if isinstance(action, Submit)} == {"conflict"}
    assert [entry for entry in logs if entry["log_level"] == "warning"] == []


def test_another_decision_for_the_same_set_is_not_held_up() -> None:
    stage = Stage()
    failing(stage, REFUSED, "a")
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.look_for(60)
    stage.sets.pods["a"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    stage.look_for(2)
    assert stage.sets.claims["a-0"]["metadata"]["finalizers"] == [], "let go at once"


def test_a_server_that_is_away_ends_the_look_and_does_not_cost_a_timeout_for_each_set() -> None:
    stage = Stage()
    pods = [f"p{n}" for n in range(20)]
    for pod in pods:
        stage.sets.create_pod(pod, wants("1g.10gb"))
    tried = failing(stage, Unavailable("SLURM_UNAVAILABLE", "submitting: timed out"), *pods)
    stage.look()
    assert tried() == GIVEN_UP_AFTER
    stage.errands._run = stage.hands.run
    stage.look_for(10)
    assert set(stage.states().values()) == {JobState.RUNNING}
    assert len(stage.states()) == 20


def test_failures_of_single_sets_among_others_that_are_served_end_no_look() -> None:
    stage = Stage()
    pods = [f"p{n}" for n in range(8)]
    for pod in pods:
        stage.sets.create_pod(pod, wants("1g.10gb"))
    tried = failing(stage, Unavailable("SLURM_UNAVAILABLE", "submitting: not now"), "p0", "p2", "p4", "p6")
    stage.errands.carry_out(stage.decisions())
    assert tried() == 4
    assert len(stage.states()) == 4


def test_nothing_more_is_done_once_the_lead_is_lost() -> None:
    stage = Stage()
    run = stage.errands._run

    def and_loses(action: Action) -> None:
        run(action)
        stage.leads = False

    stage.errands._run = and_loses
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.sets.create_pod("b", wants("1g.10gb"))
    with pytest.raises(LeadLost):
        stage.look()
    assert len(stage.done) == 1


def test_while_slurm_is_away_pods_that_wait_are_told_and_others_are_not() -> None:
    stage = Stage()
    stage.sets.create_pod("runs", wants("1g.10gb"))
    stage.settle()
    stage.sets.create_pod("waits", wants("1g.10gb"))
    told = passive(stage.world().pods.values(), Unavailable("SLURM_UNAVAILABLE", "jobs: connection refused"))
    assert [(tell.of.names, tell.reason) for tell in told] == [("ns/waits", "SlurmUnavailable")]
    assert "connection refused" in told[0].message
    told = passive(stage.world().pods.values(), Refused("SLURM_FORBIDDEN", "rights of alice"))
    assert [(tell.of.names, tell.reason) for tell in told] == [("ns/waits", "BridgePassive")]


def test_given_up_is_a_look_that_failed() -> None:
    stage = Stage()
    pods = [f"p{n}" for n in range(4)]
    for pod in pods:
        stage.sets.create_pod(pod, wants("1g.10gb"))
    failing(stage, Unavailable("SLURM_UNAVAILABLE", "submitting: timed out"), *pods)
    with pytest.raises(LookFailed) as failed:
        stage.errands.carry_out(stage.decisions())
    assert failed.value.where == "actions"


def test_pauses_grow_and_end() -> None:
    pause = partial(pause_after, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
    assert [pause(n) for n in (1, 2, 3, 4)] == [1, 2, 4, 8]
    assert pause(1000) == LONGEST_PAUSE
