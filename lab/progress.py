"""Tell people what the lab is doing: bars on a terminal, plain lines elsewhere.

Without a terminal every step gives a line when it ends, and a long one a sign of life every `HEARTBEAT_S`, so that a
build server's log lives and shows where the time goes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

HEARTBEAT_S = 20.0
SHORT_S = 0.3
"""Steps that were done in less are not worth a line."""


class Task:
    """One running step. `expected_s` is how long it usually takes; a measured share beats that guess."""

    def __init__(self, name: str, expected_s: float | None) -> None:
        self.name = name
        self.expected_s = expected_s
        self.began = time.monotonic()
        self.note = ""
        self._share: float | None = None

    def tell(self, note: str, share: float | None = None) -> None:
        """`share`: how much of the work is done, 0 to 1."""
        self.note = note
        if share is not None:
            self._share = share

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def share(self) -> float | None:
        if self._share is not None or self.expected_s is None:
            return self._share
        return min(0.97, self.seconds / self.expected_s)

    def __str__(self) -> str:
        share = f" {self.share:.0%}" if self.share is not None else ""
        expected = f" of about {self.expected_s:.0f} s" if self.expected_s else ""
        return f"{self.name}:{share} ({self.seconds:.0f} s{expected}) {self.note}".rstrip()


class Reporter:
    """Usable from several threads. Use `live()` around the work."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._running: list[Task] = []
        self._began = time.monotonic()

    def line(self, text: str) -> None:
        """Print a line with the time; `text` may hold rich's markup."""
        if not self._quiet:
            self._console.print(f"[dim]{time.monotonic() - self._began:6.1f} s[/dim]  {text}", highlight=False)

    @contextmanager
    def task(self, name: str, expected_s: float | None = None) -> Iterator[Task]:
        task = Task(name, expected_s)
        self._running.append(task)
        try:
            yield task
        finally:
            self._running.remove(task)
        if task.seconds >= SHORT_S:
            self.line(f"[green]✓[/green] {name}  [dim]({task.seconds:.1f} s)[/dim]")

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show running steps for the block."""
        ended = threading.Event()
        show = self._bars if self._console.is_terminal else self._heartbeat
        thread = threading.Thread(target=show, args=(ended,), name="progress", daemon=True)
        if not self._quiet:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if not self._quiet:
                thread.join()

    def _heartbeat(self, ended: threading.Event) -> None:
        while not ended.wait(HEARTBEAT_S):
            for task in list(self._running):
                self.line(escape(f"… {task}"))

    def _bars(self, ended: threading.Event) -> None:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[note]}[/dim]"),
        )
        with Progress(*columns, console=self._console, transient=True) as bars:
            shown = dict[Task, object]()
            while True:
                _sync(bars, list(self._running), shown)
                if ended.wait(0.15):
                    return


def _sync(bars: Progress, running: list[Task], shown: dict[Task, object]) -> None:
    """The bars are those of the running tasks."""
    for task in [t for t in shown if t not in running]:
        bars.remove_task(shown.pop(task))  # type: ignore[arg-type]  # rich's TaskID is a NewType of int
    for task in running:
        if task not in shown:
            shown[task] = bars.add_task(task.name, total=None, note="")
        bar = shown[task]
        total = None if task.share is None else 1.0
        note = str(task).partition(":")[2].strip() if task.expected_s else task.note
        bars.update(bar, total=total, completed=task.share or 0, note=escape(note[:70]))  # type: ignore[arg-type]
