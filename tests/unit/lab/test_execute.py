"""Steps run in order, side by side where they may, and stop together."""

from __future__ import annotations

import threading
import time

import pytest

from lab.execute import Cancel, Cancelled, execute, wait_for
from lab.plan import Step

DIAMOND = (
    Step("root"),
    Step("left", frozenset({"root"})),
    Step("right", frozenset({"root"})),
    Step("top", frozenset({"root", "left", "right"})),
)


def test_steps_that_need_nothing_of_each_other_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=10)
    order: list[str] = []

    def act(name: str) -> None:
        if name in ("left", "right"):
            both.wait()  # breaks unless both are running
        order.append(name)

    execute(DIAMOND, act, Cancel())
    assert (order[0], order[-1], set(order)) == ("root", "top", {"root", "left", "right", "top"})


def test_the_first_failure_is_raised_and_ends_the_others() -> None:
    cancel = Cancel()
    started: list[str] = []

    def act(name: str) -> None:
        started.append(name)
        if name == "left":
            raise ValueError("left broke")
        if name == "right":
            cancel.sleep(60)

    began = time.monotonic()
    with pytest.raises(ValueError, match="left broke"):
        execute(DIAMOND, act, cancel)
    assert time.monotonic() - began < 10
    assert "top" not in started


def test_giving_up_reaches_waits_and_hooks_before_and_after() -> None:
    cancel = Cancel()
    heard: list[str] = []
    forget = cancel.on_set(lambda: heard.append("forgotten"))
    cancel.on_set(lambda: heard.append("early"))
    forget()
    cancel.set()
    cancel.on_set(lambda: heard.append("late"))
    assert heard == ["early", "late"]
    with pytest.raises(Cancelled):
        cancel.sleep(60)


def test_wait_for_gives_the_last_reason_when_time_is_up() -> None:
    reasons = iter(["first", "second", None])
    assert wait_for(lambda: next(reasons), 10, Cancel(), every=0) is None
    assert wait_for(lambda: "never", 0, Cancel()) == "never"
