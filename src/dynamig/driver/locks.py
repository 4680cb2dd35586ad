"""Locks of the driver. Order: a claim's lock first, then GPU locks in the order of their UUIDs, nothing after.

No lock is held over a call to the API server but the claim's own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager


class KeyedLocks:
    """One lock per key, made when first asked for and dropped with its last user."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def of(self, key: str) -> Iterator[None]:
        with self._guard:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._guard:
                _, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = (lock, users - 1)

    @contextmanager
    def of_all(self, keys: Iterable[str]) -> Iterator[None]:
        """All of them, in one order, so that two callers never wait for each other in a circle."""
        with ExitStack() as stack:
            for key in sorted(set(keys)):
                stack.enter_context(self.of(key))
            yield


class Changes:
    """Tells waiters that something on the hardware has gone, without saying what: they look again."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    def count(self) -> int:
        with self._condition:
            return self._count

    def announce(self) -> None:
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait_after(self, seen: int, timeout: float) -> None:
        """Returns when something was announced after `seen` was counted, or after `timeout` seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, timeout)


class InFlight:
    """Counts calls in progress, so that the end of the process can wait for them."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self._condition:
            self._count += 1
        try:
            yield
        finally:
            with self._condition:
                self._count -= 1
                self._condition.notify_all()

    def wait_idle(self, timeout: float) -> bool:
        """Whether no call is in progress any more, after at most `timeout` seconds."""
        with self._condition:
            return self._condition.wait_for(lambda: self._count == 0, timeout)
