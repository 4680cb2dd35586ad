"""How the story is shown: a picture that lives below the lines in a terminal, timestamped lines alone elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dynamig.cli import draw
from dynamig.cli.output import Page, page
from examples.demo import cast
from examples.demo.changes import changes
from examples.demo.checks import Check
from examples.demo.seen import PodSeen, Snapshot

ASKS: Mapping[str, str] = {role.pod: role.asks for role in cast.ROLES}
FRAMES_PER_S = 8
WIDE = 120
"""Columns from which the picture has room for UUIDs."""

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
        self._print(Text(""))
        self._print(Text(f"{number}  {title}", "bold"))
        self._print(Text(f"   {sentence}"))

    def line(self, text: str, style: str = "") -> None:
        self._print(Text.assemble((f"{self.seconds:6.1f} s  ", "dim"), (text, style)))

    def command(self, text: str) -> None:
        self.line(f"$ {text}", "cyan")

    def show(self, now: Snapshot) -> None:
        for text in changes(self._last, now) if self._last else ():
            self.line(text)
        self._last = now

    def table(self, checks: Sequence[Check]) -> None:
        """The table of checks."""
        table = Table("", "CHECK", "ASKED", "SEEN", box=None, pad_edge=False, header_style="bold")
        table.columns[1].overflow = table.columns[2].overflow = table.columns[3].overflow = "fold"
        for check in checks:
            mark = Text("pass", "green") if check.passed else Text("FAIL", "bold red")
            table.add_row(
                mark, check.claims, Text(check.sources, "dim"), Text(check.seen, "" if check.passed else "red")
            )
        self._console.print()
        self._console.print(table)
        self._console.print()

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=not self._console.is_terminal)

    def _picture(self) -> RenderableType:
        return picture(self._last, page(self._console), self._console.width) if self._last else Text("")


def picture(now: Snapshot, paper: Page, width: int) -> RenderableType:
    """The GPUs as bars and the pods as a list."""
    return Group(Text(""), _gpus(now, paper, width), Text(""), _pods(now, paper, width))


def _gpus(now: Snapshot, paper: Page, width: int) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    cell = draw.cell_for(now.gpus, min(width - 40, 80))
    palette = draw.colours(now.gpus) if paper.colour else {}
    for gpu in now.gpus:
        claims = dict.fromkeys((h.namespace, h.claim) for h in gpu.holdings)
        who = Text("  ").join(Text.assemble(("■ ", palette.get(claim, "")), _users(now, claim)) for claim in claims)
        table.add_row(gpu.name, draw.bar(gpu, cell, palette), who)
    return table


def _users(now: Snapshot, claim: draw.Claim) -> str:
    held = next(h for h in now.holdings if (h.namespace, h.claim) == claim)
    return ", ".join(held.pods) or held.claim


def _pods(now: Snapshot, paper: Page, width: int) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    palette = draw.colours(now.gpus) if paper.colour else {}
    for pod in now.pods:
        held = now.of_pod(pod.name)
        mark = palette.get((held[0].namespace, held[0].claim), "") if held else "dim"
        name = Text.assemble(("■ " if held else "□ ", mark), pod.name)
        devices = ", ".join(draw.profile(h) for h in held) + (f" on {held[0].pool}" if held else "")
        row: list[RenderableType] = [name, Text(ASKS.get(pod.name, ""), "dim"), _phase(pod), devices]
        if width >= WIDE:
            row.append(Text("\n".join(h.uuid or "" for h in held), "dim"))
        table.add_row(*row)
    return table


def _phase(pod: PodSeen) -> Text:
    if pod.waits and pod.phase == "Pending":
        return Text("waits", "bold yellow")
    return Text(pod.phase, PHASES.get(pod.phase, ""))
