"""How the story is shown: a picture that lives below the lines in a terminal, timestamped lines alone elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dynamig.cli.output import page
from examples.demo.changes import changes
from examples.demo.evidence import Check
from examples.demo.picture import gpus, picture
from examples.demo.seen import Snapshot

FRAMES_PER_S = 8
WHO = (
    "Asked were NVML in containers, jobs and nodes, the API server, squeue, and the disks of the nodes: each without "
    "the others."
)
WIDE = 120
"""Columns from which tables have room for UUIDs."""
UUID_WIDTH = 44
"""Columns of a MIG device's UUID and a little more: one that is broken by the end of a line cannot be copied."""

MARGIN = 10
"""Columns of the time before a line."""

READING_S = 2.5
"""At the end of an act, where somebody watches."""

QUEUE_HEAD = ("JOB", "USER", "NAME", "STATE", "NODE", "COMMENT")


class Screen:
    """`show` is given every snapshot and prints what changed since the last one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._last: Snapshot | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def reading_s(self) -> float:
        """How long a picture should stay: nobody reads a file while it is written."""
        return READING_S if self._console.is_terminal else 0.0

    @contextmanager
    def live(self) -> Iterator[None]:
        """The picture is there for the block. Nothing but lines where there is no terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(get_renderable=self._picture, console=self._console, refresh_per_second=FRAMES_PER_S, transient=True):
            yield

    def act(self, number: int, title: str, sentence: str) -> None:
        """Its title, below the GPUs as the act before left them: those stay when the picture goes on."""
        if number > 1 and self._last is not None:
            self._bars(self._last)
        self._console.print()
        self._console.print(Text(f"{number}  {title}", "bold"))
        self._beside("  ", Text(sentence))

    def line(self, text: str, style: str = "") -> None:
        self._beside(f"{self.seconds:6.1f} s ", Text(text, style))

    def command(self, text: str) -> None:
        self.line(f"$ {text}", "cyan")

    def show(self, now: Snapshot) -> None:
        for text in changes(self._last, now) if self._last else ():
            self.line(text)
        self._last = now

    def _bars(self, now: Snapshot) -> None:
        paper = page(self._console)
        width = self._console.width if self._console.is_terminal else WIDE
        margin = MARGIN if width >= WIDE else 3
        self._console.print(Padding(gpus(now, paper, width - margin), (0, 0, 0, margin)))

    def queue(self, rows: Sequence[Sequence[str]]) -> None:
        """squeue's answer, as a table."""
        wide = self._console.width >= WIDE
        self._console.print(Padding(queue_table(rows, wide=wide), (0, 0, 0, MARGIN if wide else 3)))

    def verdict(self, checks: Sequence[Check]) -> None:
        """The table of checks, and the sum of it."""
        failed = sum(not check.passed for check in checks)
        told = f"{failed} of {len(checks)} checks FAILED" if failed else f"all {len(checks)} checks passed"
        self._console.print()
        self._console.print(table(checks, wide=self._console.width >= WIDE))
        self._console.print()
        self._console.print(Text(WHO, "dim"))
        self._console.print()
        self._console.print(Text(f"{told}, {self.seconds:.0f} s in all", "bold red" if failed else "bold green"))
        self._console.print()

    def _beside(self, margin: str, text: Text) -> None:
        """Text that stays right of its margin where it has to wrap."""
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_column(no_wrap=True, style="dim")
        row.add_column(overflow="fold")
        row.add_row(margin, text)
        self._console.print(row)

    def _picture(self) -> RenderableType:
        return picture(self._last, page(self._console), self._console.width) if self._last else Text("")


def table(checks: Sequence[Check], *, wide: bool) -> Table:
    """A row for each check; where there is no room for who was asked and what they said, those stand below."""
    found = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("", "CHECK", *(("ASKED", "SEEN") if wide else ())):
        found.add_column(head, overflow="fold", min_width=UUID_WIDTH if head == "SEEN" else None)
    for check in checks:
        mark = Text("pass", "green") if check.passed else Text("FAIL", "bold red")
        claims, sources = Text(check.claims), Text(check.sources if wide else f"asked: {check.sources}", "dim")
        told = Text(check.seen, "" if check.passed else "red")
        found.add_row(mark, *((claims, sources, told) if wide else (Text("\n").join((claims, told, sources)),)))
    return found


def queue_table(rows: Sequence[Sequence[str]], *, wide: bool) -> RenderableType:
    """A row for each job; the comment below where there is no room beside."""
    heads = QUEUE_HEAD if wide else QUEUE_HEAD[:-1]
    if wide:
        found = _columns(heads)
        for row in rows:
            found.add_row(*row)
        return found
    widths = [max(map(len, column)) + 2 for column in zip(heads, *(row[:-1] for row in rows), strict=True)]
    lines: list[RenderableType] = [Text(_spaced(heads, widths), "bold")]
    for row in rows:
        lines += [Text(_spaced(row[:-1], widths)), Padding(Text(row[-1], "dim"), (0, 0, 0, 2))]
    return Group(*lines)


def _spaced(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))


def _columns(heads: Sequence[str]) -> Table:
    found = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        found.add_column(head, overflow="fold", no_wrap=head != QUEUE_HEAD[-1])
    return found
