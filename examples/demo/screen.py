"""How the story is shown: a picture that lives below the lines in a terminal, timestamped lines alone elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dynamig.cli import draw, words
from dynamig.cli.output import Page, page
from examples.demo import cast
from examples.demo.changes import changes
from examples.demo.checks import Check
from examples.demo.seen import PodSeen, Snapshot

ASKS: Mapping[str, str] = {role.pod: role.asks for role in cast.ROLES}
FRAMES_PER_S = 8
WHO = "Asked were NVML inside the containers, NVML and disks of the nodes, and the API server: each without the others."
WIDE = 120
"""Columns from which the picture has room for UUIDs."""
UUID_WIDTH = 44
"""Columns of a MIG device's UUID and a little more: one that is broken by the end of a line cannot be copied."""

PHASES = {"Running": "green", "Pending": "yellow", "Terminating": "yellow", "Failed": "red"}


class Screen:
    """`show` is given every snapshot and prints what changed since the last one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._last: Snapshot | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @contextmanager
    def live(self) -> Iterator[None]:
        """The picture is there for the block. Nothing but lines where there is no terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(get_renderable=self._picture, console=self._console, refresh_per_second=FRAMES_PER_S, transient=True):
            yield

    def act(self, number: int, title: str, sentence: str) -> None:
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


def picture(now: Snapshot, paper: Page, width: int) -> RenderableType:
    """The GPUs as bars and the pods as a list."""
    return Group(Text(""), _gpus(now, paper, width), Text(""), _pods(now, paper, width))


def _gpus(now: Snapshot, paper: Page, width: int) -> Table:
    cell = draw.cell_for(now.gpus, width - max((len(g.name) for g in now.gpus), default=0) - 4, draw.LEGEND)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    palette = words.colours(now.gpus) if paper.colour else {}
    for gpu in now.gpus:
        claims = dict.fromkeys((h.namespace, h.claim) for h in gpu.holdings)
        who = Text("  ").join(Text.assemble(("■ ", palette.get(claim, "")), _users(now, claim)) for claim in claims)
        table.add_row(gpu.name, draw.bar(gpu, cell, palette), who)
    return table


def _users(now: Snapshot, claim: words.Claim) -> str:
    held = next(h for h in now.holdings if (h.namespace, h.claim) == claim)
    return ", ".join(held.pods) or held.claim


def _pods(now: Snapshot, paper: Page, width: int) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    palette = words.colours(now.gpus) if paper.colour else {}
    for pod in now.pods:
        held = now.of_pod(pod.name)
        mark = palette.get((held[0].namespace, held[0].claim), "") if held else "dim"
        name = Text.assemble(("■ " if held else "□ ", mark), pod.name)
        uuids = Text("\n".join(f"{words.profile(h)}  {h.uuid or ''}" for h in held), "dim")
        where = Text(held[0].pool if held else "")
        table.add_row(
            name, Text(ASKS.get(pod.name, ""), "dim"), _phase(pod), where, *([uuids] if width >= WIDE else [])
        )
    return table


def _phase(pod: PodSeen) -> Text:
    if pod.waits and pod.phase == "Pending":
        return Text("waits", "bold yellow")
    return Text(pod.phase, PHASES.get(pod.phase, ""))
