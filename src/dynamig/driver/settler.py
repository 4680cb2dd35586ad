"""Brings claims to their end behind the kubelet's calls: tells the API what became of devices, destroys what could
not be destroyed at once, and lets go of claims that are over. Each claim has its own pace, with growing pauses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from dynamig.driver.claims import ClaimService
from dynamig.driver.outside import Outside
from dynamig.errors import Conflict, DynamigError, Refused, Unavailable
from dynamig.protocol import device_status
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.lifecycle import State
from dynamig.protocol.seen import Found, Gone, Unknown

log = structlog.get_logger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
IDLE = 10.0
"""Seconds after which the journal is looked through again, for claims that nobody announced."""


@dataclass(frozen=True, slots=True)
class _Due:
    at: float
    pause: float = FIRST_PAUSE


class Settler:
    """`changed` and `failed` may be called from any thread; `step` from one."""

    def __init__(self, service: ClaimService, outside: Outside, driver_name: str, poke: Callable[[], None]) -> None:
        self._service = service
        self._out = outside
        self._driver = driver_name
        self._poke = poke
        self._lock = threading.Lock()
        self._due: dict[str, _Due] = {}
        self._failures: dict[str, tuple[ClaimRef, DynamigError]] = {}
        self._reported: dict[str, float] = {}

    def changed(self, uid: str) -> None:
        """Something about the claim is new: look at it now."""
        with self._lock:
            self._due[uid] = _Due(self._out.monotonic())
        self._poke()

    def failed(self, ref: ClaimRef, error: DynamigError) -> None:
        """A prepare of the claim failed: its user is to see why on the claim."""
        with self._lock:
            self._failures[ref.uid] = (ref, error)
        self.changed(ref.uid)

    def step(self) -> float:
        """Everything that is due was tried once; seconds until the next is due."""
        for uid, due in self._ready():
            try:
                finished = self._one(uid)
            except Conflict as error:  # somebody else changed the claim too: expected, and tried again at once
                log.debug("settle_again", uid=uid, error=str(error))
                finished = False
            except DynamigError as error:
                log.warning("settle_failed", uid=uid, code=error.code, error=str(error))
                finished = False
            self._reschedule(uid, due, finished)
        return self._until_next()

    def _ready(self) -> list[tuple[str, _Due]]:
        now = self._out.monotonic()
        with self._lock:
            for uid, record in self._out.journal.records().items():
                if record.state is not State.PREPARED or self._reported.get(uid) != record.since:
                    self._due.setdefault(uid, _Due(now))
            return [(uid, due) for uid, due in self._due.items() if due.at <= now]

    def _one(self, uid: str) -> bool:
        """Letting go comes first and does not wait for a report that nobody takes."""
        finished = self._service.endings.settle(uid)
        return self._report(uid) and finished

    def _report(self, uid: str) -> bool:
        try:
            self._report_prepared(uid)
            self._report_failure(uid)
        except Refused as error:  # another node's claim by now: it is not ours to speak of
            log.info("report_refused", uid=uid, code=error.code, error=str(error))
            self._forget_failure(uid)
        except DynamigError as error:
            log.warning("report_failed", uid=uid, code=error.code, error=str(error))
            return False
        return True

    def _report_failure(self, uid: str) -> None:
        with self._lock:
            failure = self._failures.get(uid)
        if failure is None:
            return
        ref, error = failure
        record = self._out.journal.records().get(uid)
        if record is not None and record.state is State.PREPARED:  # a later failure to ask takes nothing from the pod
            self._forget_failure(uid)
            return
        match self._out.claims.get(ref):
            case Found(claim):
                if entries := device_status.failed(claim, self._driver, error, self._out.wall()):
                    self._out.claims.report(ref, entries)
            case Gone():
                pass
            case Unknown(reason):
                raise Unavailable("API_UNAVAILABLE", reason)
        with self._lock:
            if self._failures.get(uid) == failure:
                del self._failures[uid]

    def _forget_failure(self, uid: str) -> None:
        with self._lock:
            self._failures.pop(uid, None)

    def _report_prepared(self, uid: str) -> None:
        record = self._out.journal.records().get(uid)
        if record is None:
            self._reported.pop(uid, None)
        elif record.state is State.PREPARED and self._reported.get(uid) != record.since:
            self._out.claims.report(record.ref, device_status.prepared(record, self._driver))
            self._reported[uid] = record.since

    def _reschedule(self, uid: str, due: _Due, finished: bool) -> None:
        with self._lock:
            if self._due.get(uid) is not due:  # announced again meanwhile
                return
            if finished:
                del self._due[uid]
            else:
                pause = min(due.pause * 2, LONGEST_PAUSE)
                self._due[uid] = replace(due, at=self._out.monotonic() + due.pause, pause=pause)

    def _until_next(self) -> float:
        with self._lock:
            soonest = min((d.at for d in self._due.values()), default=self._out.monotonic() + IDLE)
        return max(0.0, min(soonest - self._out.monotonic(), IDLE))
