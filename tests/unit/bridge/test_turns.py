"""The loop: stand by, look, rest longer after failures, say each change once, and survive what nobody expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from dynamig.bridge.errands import LeadLost
from dynamig.bridge.health import FRESH_LOOK, LookFailed
from dynamig.bridge.turns import LONGEST_PAUSE, MOST_BUGS, REST, Turns
from dynamig.errors import InvariantBroken, Unavailable


def slurm_away(code: str = "SLURM_UNAVAILABLE") -> None:
    raise LookFailed("Slurm", Unavailable(code, "jobs: connection refused"))


def bug() -> None:
    raise KeyError("metadata")


def fine() -> None:
    pass


@dataclass
class Loop:
    """A loop on a clock of its own: resting takes as long as it is told, looking a hundredth of a second."""

    leads: bool = True
    look: Callable[[], None] = fine
    take_over: Callable[[], None] = fine
    now: float = 1000.0
    looks: int = 0
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turns = Turns(
            self,
            behind=tuple,
            take_over=lambda: self.take_over(),
            look=self._look,
            told=lambda outcome, seconds: self.told.append(outcome),
            clock=lambda: self.now,
            wall=lambda: self.now,
        )

    @property
    def held(self) -> bool:
        return self.leads

    @property
    def trouble(self) -> str:
        return ""

    def _look(self) -> None:
        self.looks += 1
        self.now += 0.01
        self.look()

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += self.turns.turn()

    @property
    def why(self) -> str:
        return self.turns.health.not_ready(self.now)


def test_one_that_stands_by_is_ready_and_looks_at_nothing() -> None:
    loop = Loop(leads=False)
    loop.run(60)
    assert (loop.looks, loop.told, loop.why) == (0, [], "")


def test_slurm_is_away_for_ten_minutes() -> None:
    loop = Loop()
    loop.run(5)
    assert loop.why == ""
    before = loop.looks
    loop.look = slurm_away
    with capture_logs() as logs:
        loop.run(600)
    assert [entry["event"] for entry in logs] == ["look_failed"]
    assert 600 / LONGEST_PAUSE <= loop.looks - before < 80
    assert loop.why.startswith("Slurm: SLURM_UNAVAILABLE jobs: connection refused, since ")
    trouble = loop.turns.health.trouble
    assert trouble is not None
    assert trouble.since < 1010
    loop.look = fine
    with capture_logs() as logs:
        loop.run(LONGEST_PAUSE)
    assert [entry["event"] for entry in logs] == ["looks_again"]
    assert loop.why == ""
    assert loop.turns.turn() == REST


def test_another_reason_is_another_line_and_another_since() -> None:
    loop = Loop(look=slurm_away)
    with capture_logs() as logs:
        loop.run(60)
        loop.look = lambda: slurm_away("SLURM_AUTH")
        loop.run(60)
    assert [entry.get("code") for entry in logs if entry["event"] == "look_failed"] == [
        "SLURM_UNAVAILABLE",
        "SLURM_AUTH",
    ]
    trouble = loop.turns.health.trouble
    assert trouble is not None
    assert trouble.since > 1060


def test_a_short_failure_does_not_make_it_unready() -> None:
    loop = Loop()
    loop.run(1)
    loop.look = slurm_away
    loop.run(FRESH_LOOK / 2)
    assert loop.why == ""


def test_a_bug_in_one_look_is_survived_and_seen() -> None:
    loop = Loop(look=bug)
    with capture_logs() as logs:
        loop.turns.turn()
    (entry,) = [e for e in logs if e["event"] == "look_bug"]
    assert entry["exc_info"] is True, "with its traceback"
    assert loop.why.startswith("bug: KeyError")
    loop.look = fine
    loop.turns.turn()
    assert (loop.why, loop.told) == ("", ["bug", "complete"])


def test_a_bug_in_every_look_ends_the_process() -> None:
    loop = Loop(look=bug)
    with pytest.raises(InvariantBroken) as ended:
        loop.run(3600)
    assert loop.looks == MOST_BUGS
    assert isinstance(ended.value.__cause__, KeyError)


def test_the_lead_is_lost_in_the_middle_of_a_look() -> None:
    def lost() -> None:
        loop.leads = False
        raise LeadLost

    loop = Loop(look=lost)
    with capture_logs() as logs:
        loop.run(10)
    assert loop.looks == 1
    assert [entry["event"] for entry in logs] == ["leading", "stands_by"]
    assert loop.why == ""


def test_every_new_lead_begins_with_a_fresh_picture() -> None:
    pictures = []

    def fresh() -> None:
        pictures.append(loop.looks)

    loop = Loop(take_over=fresh)
    loop.run(5)
    loop.leads = False
    loop.run(5)
    before = loop.looks
    loop.leads = True
    loop.run(5)
    assert pictures == [0, before]


def test_without_a_fresh_picture_nothing_is_looked_at() -> None:
    def away() -> None:
        raise LookFailed("Kubernetes", Unavailable("API_UNAVAILABLE", "listing pods"))

    loop = Loop(take_over=away)
    loop.run(60)
    assert loop.looks == 0
    assert loop.why.startswith("Kubernetes: API_UNAVAILABLE listing pods")
    loop.take_over = fine
    loop.run(20)
    assert loop.looks
    assert loop.why == ""
