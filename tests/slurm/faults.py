"""What can happen to a request on its way: which request, which fault, and gates that a test opens.

A fault is a function: it is given `forward`, which sends the request to the server and returns its answer, and decides
whether, when and how often that happens. So the server's side of a fault is real: a dropped answer is the answer of a
write that has happened.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Protocol

WATCH = "WATCH"
"""What a GET with `watch=true` is called here."""

READS = frozenset({"GET", WATCH})
GATE_S = 120.0
"""Seconds after which a gate that nobody opens breaks the connection."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """`body` is one piece, or for a watch a stream."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | Generator[bytes, None, None]


class Broken(Exception):
    """The connection to the client breaks without an answer."""


Forward = Callable[[], Answer]


class Fault(Protocol):
    def __call__(self, forward: Forward) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests: regular expressions, found anywhere in path and body. An empty `method`: any."""

    method: str = ""
    path: str = ""
    body: str = ""

    def fits(self, request: Request) -> bool:
        return (
            self.method in ("", request.method)
            and re.search(self.path, request.path) is not None
            and re.search(self.body, request.body.decode(errors="replace")) is not None
        )


@dataclass(slots=True)
class Order:
    """A fault for the `nth` request that matches and the `count - 1` after it (None: all). `hits`: how many met it."""

    match: Match
    fault: Fault
    nth: int = 1
    count: int | None = 1
    seen: int = 0
    hits: int = 0

    def meets(self, request: Request) -> bool:
        if not self.match.fits(request):
            return False
        self.seen += 1
        met = self.seen >= self.nth and (self.count is None or self.seen < self.nth + self.count)
        self.hits += met
        return met


# -- faults ------------------------------------------------------------------------------------------------------------


def drop(forward: Forward) -> Answer:
    """It happens, and its answer is lost."""
    forward()
    raise Broken


def lose(forward: Forward) -> Answer:
    """It never arrives."""
    raise Broken


def repeat(forward: Forward) -> Answer:
    """It arrives twice, and the second answer is given."""
    forward()
    return forward()


def refuse(forward: Forward) -> Answer:
    """500, and nothing was sent."""
    return Answer(500, (("Content-Type", "text/plain"),), b"the proxy refuses this")


def delay(seconds: float) -> Fault:
    """It happens at once; its answer comes late."""

    def delayed(forward: Forward) -> Answer:
        answer = forward()
        time.sleep(seconds)
        return answer

    return delayed


def edit(change: Callable[[bytes], bytes]) -> Fault:
    """Another answer than the server's."""

    def edited(forward: Forward) -> Answer:
        answer = forward()
        assert isinstance(answer.body, bytes), "a watch is no single answer"
        return replace(answer, body=change(answer.body))

    return edited


def before(act: Callable[[], None]) -> Fault:
    """`act` is done, then the request arrives."""

    def acting(forward: Forward) -> Answer:
        act()
        return forward()

    return acting


def after(act: Callable[[], None]) -> Fault:
    """The request arrives, then `act` is done, then comes the answer."""

    def acting(forward: Forward) -> Answer:
        answer = forward()
        act()
        return answer

    return acting


class Gate:
    """Keeps a request until it is opened: before it is sent, or (`answered`) with its answer in hand."""

    def __init__(self, *, answered: bool = False) -> None:
        self._answered = answered
        self._reached, self._opened = threading.Event(), threading.Event()

    def __call__(self, forward: Forward) -> Answer:
        answer = forward() if self._answered else None
        self._reached.set()
        if not self._opened.wait(GATE_S):
            raise Broken
        return answer or forward()

    def wait_reached(self, seconds: float = 60.0) -> None:
        assert self._reached.wait(seconds), "no request has come to the gate"

    def open(self) -> None:
        self._opened.set()
