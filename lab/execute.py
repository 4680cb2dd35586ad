"""Take planned steps, several at a time where their order allows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter

from lab.plan import Step

WORKERS = 6


class Cancelled(Exception):
    """Another step failed, or somebody pressed Ctrl-C; not an error of its own."""


class Cancel:
    """A flag that every wait of the lab looks at."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._hooks: list[Callable[[], None]] = []

    def set(self) -> None:
        with self._lock:
            self._event.set()
            for hook in self._hooks:
                hook()

    def on_set(self, hook: Callable[[], None]) -> Callable[[], None]:
        """Call `hook` when somebody gives up (now, if that has happened). The result takes the hook away again."""
        with self._lock:
            if self._event.is_set():
                hook()
            self._hooks.append(hook)

        def forget() -> None:
            with self._lock:
                self._hooks.remove(hook)

        return forget

    def check(self) -> None:
        """Raises Cancelled if somebody has given up."""
        if self._event.is_set():
            raise Cancelled

    def sleep(self, seconds: float) -> None:
        """Raises Cancelled as soon as somebody gives up."""
        if self._event.wait(seconds):
            raise Cancelled


def wait_for(question: Callable[[], str | None], seconds: float, cancel: Cancel, every: float = 0.2) -> str | None:
    """Ask until the answer is None (it holds); after `seconds`, the last answer: why it still does not hold."""
    deadline = time.monotonic() + seconds
    while (reason := question()) is not None and time.monotonic() < deadline:
        cancel.sleep(every)
    return reason


def execute(steps: Sequence[Step], act: Callable[[str], None], cancel: Cancel) -> None:
    """All steps are taken, each after those it needs (`plan.missing` made them so that `needs` says all of it).

    The first failure ends the rest and is raised.
    """
    names = {step.name for step in steps}
    order = TopologicalSorter({step.name: step.needs & names for step in steps})
    order.prepare()
    running: dict[Future[None], str] = {}
    with ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="step") as pool:
        try:
            while order.is_active():
                running.update({pool.submit(act, name): name for name in order.get_ready()})
                done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    order.done(running.pop(future))
                    future.result()
        except BaseException as failure:  # noqa: BLE001 -- Ctrl-C too must reach the workers; it is raised again
            cancel.set()
            raise _cause(failure, running) from None


def _cause(failure: BaseException, running: dict[Future[None], str]) -> BaseException:
    """The failure itself, unless it only says that another step gave up: then that step's error."""
    if not isinstance(failure, Cancelled):
        return failure
    wait(running)
    errors = (future.exception() for future in running)
    return next((e for e in errors if e is not None and not isinstance(e, Cancelled)), failure)
