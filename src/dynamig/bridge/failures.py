"""Actions that failed, and when they are tried again: what cannot be done must not be tried all the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dynamig.bridge.actions import Action
from dynamig.errors import DynamigError
from dynamig.protocol.pauses import pause_after

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0

FORGOTTEN_AFTER = 600.0
"""Seconds after which a failure that did not come again is forgotten: its subject may be gone."""

TOLD_FROM = 2
"""Failures in a row from which pods are told: one alone may be over before anybody reads of it."""


@dataclass(frozen=True, slots=True)
class Setback:
    """An action that failed lately. `waits`: it is not tried again yet; `words`: for the pods that wait for it, empty
    while it may pass by itself."""

    waits: bool
    words: str


@dataclass(frozen=True, slots=True)
class Failure:
    """`count`: in a row; `until`: not tried again before, by the clock."""

    count: int
    error: DynamigError
    until: float


class Failures:
    """By subject and kind of action: another decision for the same subject is not held up. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], Failure] = {}

    def setback(self, subject: str, action: Action) -> Setback | None:
        known = self._known.get(_key(subject, action))
        if known is None:
            return None
        words = f"{type(action).__name__} failed and is tried again: {known.error}"
        return Setback(self._clock() < known.until, words if known.count >= TOLD_FROM else "")

    def failed(self, subject: str, action: Action, error: DynamigError) -> bool:
        """Whether it is news: a first failure, or one of another kind."""
        before = self._known.get(_key(subject, action))
        count = 1 if before is None else before.count + 1
        until = self._clock() + pause_after(count, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
        self._known[_key(subject, action)] = Failure(count, error, until)
        return before is None or before.error.code != error.code

    def succeeded(self, subject: str, action: Action) -> Failure | None:
        """The failure that is over."""
        return self._known.pop(_key(subject, action), None)

    def forget_old(self) -> None:
        now = self._clock()
        self._known = {key: f for key, f in self._known.items() if now < f.until + FORGOTTEN_AFTER}

    @property
    def subjects(self) -> int:
        """How many are held up now."""
        now = self._clock()
        return len({subject for (subject, _), failure in self._known.items() if now < failure.until})


def _key(subject: str, action: Action) -> tuple[str, str]:
    return subject, type(action).__name__
