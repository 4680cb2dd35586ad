"""A thread that does one thing again and again: at an interval, sooner when poked, later after failures."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from dynamig.errors import DynamigError
from dynamig.protocol.pauses import pause_after

log = structlog.get_logger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


class Loop:
    """`act` returns the seconds until it wants to be called again. Errors of ours are logged and tried again with
    growing pauses; any other error is a bug and ends the process through `on_bug`, to start anew from the journal.
    """

    def __init__(self, name: str, act: Callable[[], float], on_bug: Callable[[], None]) -> None:
        self._name = name
        self._act = act
        self._on_bug = on_bug
        self._poked = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def poke(self) -> None:
        self._poked.set()

    def stop(self) -> None:
        self._stopping.set()
        self._poked.set()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def _run(self) -> None:
        pause, failures = 0.0, 0
        while not self._stopping.is_set():
            self._poked.wait(pause)
            self._poked.clear()
            if self._stopping.is_set():
                return
            try:
                pause, failures = self._act(), 0
            except DynamigError as error:
                failures += 1
                pause = pause_after(failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
                log.warning("loop_failed", loop=self._name, code=error.code, error=str(error), again_in=pause)
            except BaseException:
                log.exception("loop_bug", loop=self._name)
                self._on_bug()
                raise
