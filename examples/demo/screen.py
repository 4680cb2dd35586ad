"""How the story is shown: a picture that lives below the lines in a terminal, timestamped lines alone elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dynamig.cli import draw, words
from dynamig.cli.output import Page, page
from dynamig.cli.view import GpuView
from examples.demo import cast
from examples.demo.changes import changes
from examples.demo.checks import Check
from examples.demo.seen import JobSeen, PodSeen, Snapshot

ASKS: Mapping[str, str] = {role.pod: role.asks for role in cast.ROLES}
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

PHASES = {"Running": "green", "Pending": "yellow", "Terminating": "yellow", "Failed": "red", "waits": "bold yellow"}
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
        self._console.print(Padding(gpus(now, paper, width - MARGIN), (0, 0, 0, MARGIN)))

    def queue(self, rows: Sequence[Sequence[str]]) -> None:
        """squeue's answer, as a table."""
        wide = self._console.width >= WIDE
        self._console.print(Padding(queue_table(rows, wide=wide), (0, 0, 0, MARGIN)))

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


# -- the picture -------------------------------------------------------------------------------------------------------


def picture(now: Snapshot, paper: Page, width: int) -> RenderableType:
    """The GPUs as bars; pods and native jobs as a list."""
    return Group(Text(""), gpus(now, paper, width), Text(""), _work(now, paper))


def gpus(now: Snapshot, paper: Page, width: int) -> RenderableType:
    cell = draw.cell_for(now.gpus, width - max((len(g.name) for g in now.gpus), default=0) - 4, draw.LEGEND)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    palette = words.palette(now.gpus, colour=paper.colour)
    for gpu in now.gpus:
        table.add_row(gpu.name, draw.bar(gpu, cell, palette), _users(now, gpu, palette))
    return table


def _users(now: Snapshot, gpu: GpuView, palette: words.Palette) -> Text:
    """Who has something of the GPU, each with his colour."""
    users = []
    if gpu.loan is not None:
        names = [j.name for j in now.jobs if j.job_id == gpu.loan.borrower.job_id]
        users.append(_marked(palette.get(words.LENT, ""), *(names or [str(gpu.loan.borrower)])))
    held = {words.claim_of(h): h for h in gpu.holdings}
    users += [_marked(palette.get(claim, ""), words.who(h, ", ")) for claim, h in held.items()]
    return Text("  ").join(users) if users else Text("free" if gpu.free else "", "dim")


def _marked(colour: str, *name: str) -> Text:
    return Text.assemble(("■\u00a0", colour), *name)  # no line ends between the two


def _work(now: Snapshot, paper: Page) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for column in range(5):
        table.add_column(overflow="ellipsis", no_wrap=column != 1)
    palette = words.palette(now.gpus, colour=paper.colour)
    for pod in now.pods:
        table.add_row(*_pod_row(now, pod, palette))
    for job in now.jobs:
        if job.native:
            table.add_row(*_job_row(job, palette))
    return table


def _pod_row(now: Snapshot, pod: PodSeen, palette: words.Palette) -> Iterator[Text]:
    held = now.of_pod(pod.name)
    mark = palette.get(words.claim_of(held[0]), "") if held else "dim"
    yield Text.assemble(("■ " if held else "□ ", mark), pod.name)
    yield Text(f"pod, {ASKS.get(pod.name, '')}", "dim")
    yield _state("waits" if pod.waits and pod.phase == "Pending" else pod.phase)
    yield Text(held[0].pool if held else "")
    yield Text(", ".join(f"job {j.job_id}{_reason(j)}" for j in now.paying(pod.name)), "dim")


def _job_row(job: JobSeen, palette: words.Palette) -> Iterator[Text]:
    yield Text.assemble(("■ " if job.gpus else "□ ", palette.get(words.LENT, "") if job.gpus else "dim"), job.name)
    yield Text(f"job of {job.user}, a whole GPU", "dim")
    yield _state("waits" if job.waits else job.state.capitalize())
    yield Text(job.node or "")
    yield Text(f"job {job.job_id}{_reason(job)}", "dim")


def _reason(job: JobSeen) -> str:
    return f": {job.reason}" if job.held_back else ""


def _state(word: str) -> Text:
    return Text(word, PHASES.get(word, ""))
