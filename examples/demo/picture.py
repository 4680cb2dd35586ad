"""The picture: GPUs as bars, pods and native jobs as a list. Pure, from a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dynamig.cli import draw, words
from dynamig.cli.output import Page
from dynamig.cli.view import GpuView
from examples.demo import cast
from examples.demo.seen import JobSeen, PodSeen, Snapshot

ASKS: Mapping[str, str] = {role.pod: role.asks for role in cast.ROLES}
PHASES = {"Running": "green", "Pending": "yellow", "Terminating": "yellow", "Failed": "red", "waits": "bold yellow"}

NAMES = 20
"""Columns that names have beside a bar, however narrow the terminal is."""

WORDS = 78
"""Columns from which the list has room for what pods ask for."""


def picture(now: Snapshot, paper: Page, width: int) -> RenderableType:
    """The GPUs as bars; pods and native jobs as a list."""
    return Group(Text(""), gpus(now, paper, width), Text(""), _work(now, paper, wide=width >= WORDS))


def gpus(now: Snapshot, paper: Page, width: int) -> RenderableType:
    """A bar for each, and beside it who has something of it."""
    room = width - max((len(g.name) for g in now.gpus), default=0) - 4
    cell = min(draw.cell_for(now.gpus, room, draw.LEGEND), max(1, (room - NAMES) // draw.SLICES - 1))
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


def _work(now: Snapshot, paper: Page, *, wide: bool) -> Table:
    """A row for each pod and native job: who, what it is, state, where, Slurm's job. `wide`: with what pods ask for."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for column in range(5):
        table.add_column(overflow="ellipsis", no_wrap=column != 1)
    palette = words.palette(now.gpus, colour=paper.colour)
    for pod in now.pods:
        table.add_row(*_pod_row(now, pod, palette, f"pod, {ASKS.get(pod.name, '')}" if wide else "pod"))
    for job in now.jobs:
        if job.native:
            table.add_row(*_job_row(job, palette, f"job of {job.user}, a whole GPU" if wide else "job"))
    return table


def _pod_row(now: Snapshot, pod: PodSeen, palette: words.Palette, what: str) -> Iterator[Text]:
    held = now.of_pod(pod.name)
    mark = palette.get(words.claim_of(held[0]), "") if held else "dim"
    yield Text.assemble(("■ " if held else "□ ", mark), pod.name)
    yield Text(what, "dim")
    yield _state("waits" if pod.waits and pod.phase == "Pending" else pod.phase)
    yield Text(held[0].pool if held else "")
    yield Text(", ".join(f"job {j.job_id}{_reason(j)}" for j in now.paying(pod.name)), "dim")


def _job_row(job: JobSeen, palette: words.Palette, what: str) -> Iterator[Text]:
    yield Text.assemble(("■ " if job.gpus else "□ ", palette.get(words.LENT, "") if job.gpus else "dim"), job.name)
    yield Text(what, "dim")
    yield _state("waits" if job.waits else job.state.capitalize())
    yield Text(job.node or "")
    yield Text(f"job {job.job_id}{_reason(job)}", "dim")


def _reason(job: JobSeen) -> str:
    return f": {job.reason}" if job.held_back else ""


def _state(word: str) -> Text:
    return Text(word, PHASES.get(word, ""))
