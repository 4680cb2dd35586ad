"""Which steps are missing, and in which order they are taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamig.errors import InvariantBroken
from lab.plan import Step, in_order, missing, with_needs


@st.composite
def graphs(draw: st.DrawFn) -> list[Step]:
    """Up to eight steps, each needing or dying with some that were drawn before it; then shuffled."""
    names = [f"s{i}" for i in range(draw(st.integers(1, 8)))]
    steps = []
    for i, name in enumerate(names):
        earlier = st.frozensets(st.sampled_from(names[:i])) if i else st.just(frozenset[str]())
        steps.append(Step(name, draw(earlier), draw(earlier)))
    return list(draw(st.permutations(steps)))


def reach(steps: list[Step], name: str) -> set[str]:
    """All that a step needs, directly or not: the plain definition, to compare with."""
    by_name = {step.name: step for step in steps}
    direct = by_name[name].before
    return set(direct).union(*(reach(steps, other) for other in direct))


@given(graphs(), st.data())
def test_missing_steps_come_after_all_they_need_and_name_them(steps: list[Step], data: st.DataObject) -> None:
    done = data.draw(st.frozensets(st.sampled_from([step.name for step in steps])))
    plan = missing(steps, done)
    names = [step.name for step in plan]
    for position, step in enumerate(plan):
        needed = reach(steps, step.name) & set(names)
        assert step.needs == needed
        assert needed <= set(names[:position])


@given(graphs(), st.data())
def test_a_step_is_missing_if_not_done_or_if_it_died_with_one_that_is(steps: list[Step], data: st.DataObject) -> None:
    done = data.draw(st.frozensets(st.sampled_from([step.name for step in steps])))
    found = {step.name for step in missing(steps, done)}
    for step in steps:
        assert (step.name in found) == (step.name not in done or bool(step.dies_with & found))


@given(graphs())
def test_nothing_is_missing_once_all_is_done(steps: list[Step]) -> None:
    assert missing(steps, {step.name for step in steps}) == ()


def test_a_new_machine_makes_its_daemons_missing_but_not_the_servers_they_talk_to() -> None:
    steps = [
        Step("server"),
        Step("machine"),
        Step("engine", dies_with=frozenset({"machine"})),
        Step("agent", frozenset({"server", "engine"}), frozenset({"machine"})),
    ]
    found = missing(steps, {"server", "engine", "agent"})
    assert [step.name for step in found] == ["machine", "engine", "agent"]


def test_a_need_through_a_step_that_is_done_is_kept() -> None:
    """The controller survived its server's death; what waits for the controller must wait for the server too."""
    steps = [Step("server"), Step("controller", frozenset({"server"})), Step("account", frozenset({"controller"}))]
    *_, last = missing(steps, {"controller"})
    assert (last.name, last.needs) == ("account", frozenset({"server"}))


def test_steps_that_need_each_other_or_nobody_knows_are_our_bug() -> None:
    with pytest.raises(InvariantBroken, match="STEP_CYCLE"):
        in_order([Step("a", frozenset({"b"})), Step("b", frozenset({"a"}))])
    with pytest.raises(InvariantBroken, match="UNKNOWN_STEP"):
        in_order([Step("a", frozenset({"ghost"}))])


def test_with_needs_takes_what_is_needed_and_nothing_else() -> None:
    steps = [Step("a"), Step("b", frozenset({"a"})), Step("c", dies_with=frozenset({"b"})), Step("other")]
    assert {step.name for step in with_needs(steps, ["c"])} == {"a", "b", "c"}
