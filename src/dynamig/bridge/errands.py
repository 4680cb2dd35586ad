"""Carries out the decisions of one look, each as far as it goes: what cannot be done for one set holds up no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from dynamig.bridge.actions import Action, Decision, Tell
from dynamig.bridge.failures import Failures
from dynamig.bridge.health import LookFailed
from dynamig.errors import Conflict, DynamigError, Refused, Unavailable

log = structlog.get_logger(__name__)

GIVEN_UP_AFTER = 3
"""Decisions in a row that fail with the same Unavailable: then it is the server and not the set, and asking for all the
others, each with its timeout, would help nobody."""


class LeadLost(Exception):
    """Another bridge may act from now on, or this one stops: nothing more is done."""


class Errands:
    """`run`: carries out an action, or raises Conflict, Unavailable or Refused; `leads`: asked before each action;
    `told`: each action, and what came of it."""

    def __init__(
        self,
        run: Callable[[Action], None],
        failures: Failures,
        leads: Callable[[], bool],
        told: Callable[[Action, str], None],
    ) -> None:
        self._run = run
        self._failures = failures
        self._leads = leads
        self._told = told

    def carry_out(self, decisions: Iterable[Decision]) -> bool:
        """Whether something was changed: the next look goes on from there. Raises LeadLost, and LookFailed if it does
        not seem to be about single sets."""
        changed, row = False, list[Unavailable]()
        for decision in decisions:
            try:
                changed = self._one(decision) or changed
                row.clear()
            except Unavailable as error:
                row = [*(e for e in row if e.code == error.code), error]
                if len(row) == GIVEN_UP_AFTER:
                    raise LookFailed("actions", error) from error
            except Refused:
                continue  # it is told with the next look
        self._failures.forget_old()
        return changed

    def _one(self, decision: Decision) -> bool:
        changed = False
        for action in decision.actions:
            if not self._leads():
                raise LeadLost
            try:
                self._run(action)
            except (Conflict, Unavailable, Refused) as error:
                if not _is_race(error):
                    self._told(action, "failed")
                    self._failed(decision.subject, action, error)
                    raise
                self._told(action, "conflict")
                log.info("decided_anew", action=type(action).__name__, why=str(error))
                return changed
            self._told(action, "done")
            if over := self._failures.succeeded(decision.subject, action):
                log.info("action_succeeded", subject=decision.subject, action=type(action).__name__, failed=over.count)
            changed = changed or not isinstance(action, Tell)
        return changed

    def _failed(self, subject: str, action: Action, error: DynamigError) -> None:
        if self._failures.failed(subject, action, error):
            kind = type(action).__name__
            log.warning("action_failed", subject=subject, action=kind, code=error.code, error=str(error))


def _is_race(error: DynamigError) -> bool:
    """Somebody changed or removed what we decided on: the next look sees that."""
    return isinstance(error, Conflict) or error.code == "NOT_FOUND"
