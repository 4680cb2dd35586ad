"""The bridge's loop, one turn at a time: stand by or look, and how long to rest after what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from dynamig.bridge.errands import LeadLost
from dynamig.bridge.health import Health, LookFailed, Trouble
from dynamig.errors import InvariantBroken
from dynamig.protocol.pauses import pause_after

log = structlog.get_logger(__name__)

REST = 0.1
"""Seconds between looks when everything changes."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0
"""Seconds between looks that fail: well below the 30 for which the last complete one makes us ready."""

MOST_BUGS = 5
"""Looks in a row that may end in an error nobody expected; then the process ends, to be started anew."""


class Lead(Protocol):
    """`dynamig.kube.leader.Elector`."""

    @property
    def held(self) -> bool:
        """Whether we may act now."""
        ...

    @property
    def trouble(self) -> str:
        """Why nobody can tell; empty if all is well."""
        ...


class Turns:
    """`look`: one whole look and what follows from it; `take_over`: what a new leader does first; `behind`: watches
    that are not in step; `told`: every look's outcome and seconds; `clock`: seconds, `wall`: of the epoch."""

    def __init__(
        self,
        lead: Lead,
        *,
        behind: Callable[[], Sequence[str]],
        take_over: Callable[[], None],
        look: Callable[[], None],
        told: Callable[[str, float], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._lead, self._behind = lead, behind
        self._take_over, self._look, self._told = take_over, look, told
        self._clock, self._wall = clock, wall
        self._failures = 0
        self._took_over = False
        self.health = Health(turned=clock())

    def alive(self) -> None:
        """Something was done just now."""
        self.health = replace(self.health, turned=self._clock())

    def turn(self) -> float:
        """Seconds to rest, whatever happens meanwhile. Raises InvariantBroken after too many bugs in a row."""
        behind, trouble = tuple(self._behind()), self._lead.trouble
        self.health = replace(self.health, turned=self._clock(), behind=behind, election=trouble)
        if not self._lead.held:
            self._stand_by()
            return REST
        begun = self._clock()
        try:
            self._begin()
            self._look()
        except LeadLost:
            self._stand_by()
            return REST
        except LookFailed as failed:
            outcome, rest = failed.where.lower(), self._failed(failed)
        except Exception as bug:
            log.exception("look_bug", in_a_row=self.health.bugs + 1)
            outcome, rest = "bug", self._bug(bug)
        else:
            outcome, rest = "complete", self._complete()
        self._told(outcome, self._clock() - begun)
        return rest

    def _stand_by(self) -> None:
        if self.health.leading:
            log.info("stands_by")
        self.health = replace(self.health, leading=False, completed=None, trouble=None, bugs=0)
        self._failures, self._took_over = 0, False

    def _begin(self) -> None:
        self.health = replace(self.health, leading=True)
        if not self._took_over:
            self._take_over()
            self._took_over = True
            log.info("leading")

    def _complete(self) -> float:
        if self.health.trouble is not None:
            log.info("looks_again", trouble=str(self.health.trouble))
        self._failures = 0
        self.health = replace(self.health, completed=self._clock(), trouble=None, bugs=0)
        return REST

    def _failed(self, failed: LookFailed) -> float:
        error = failed.error
        if self._is_news(failed.where, error.code):
            log.warning("look_failed", where=failed.where, code=error.code, error=str(error))
        return self._pause(failed.where, error.code, error.what)

    def _bug(self, bug: Exception) -> float:
        pause = self._pause("bug", type(bug).__name__, str(bug))
        self.health = replace(self.health, bugs=self.health.bugs + 1)
        if self.health.bugs >= MOST_BUGS:
            raise InvariantBroken("BRIDGE_BUG", f"{self.health.bugs} looks in a row ended in {bug!r}") from bug
        return pause

    def _is_news(self, where: str, code: str) -> bool:
        before = self.health.trouble
        return before is None or (before.where, before.code) != (where, code)

    def _pause(self, where: str, code: str, what: str) -> float:
        before = self.health.trouble
        since = self._wall() if before is None or self._is_news(where, code) else before.since
        self.health = replace(self.health, trouble=Trouble(where, code, what, since))
        self._failures += 1
        return pause_after(self._failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
