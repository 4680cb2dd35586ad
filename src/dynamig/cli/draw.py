"""Tables and bars for the terminal, from views."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dynamig.cli.view import GpuView, Holding

CELL = 4
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red", "bright_cyan", "bright_magenta")


def gpus(views: Iterable[GpuView]) -> Table:
    """One row a GPU: a bar of its memory slices, and a line for each holder."""
    table = Table(box=None, pad_edge=False)
    table.add_column("GPU", no_wrap=True)
    table.add_column("memory slices", no_wrap=True)
    table.add_column("held by")
    for view in views:
        name = Text.assemble((view.pool, "bold"), "\n", (view.product, "dim"))
        table.add_row(name, bar(view), Group(*(_legend(h) for h in view.holdings), *_notes(view)))
    return table


def bar(view: GpuView) -> Text:
    """A cell per memory slice in its holder's colour; dots are free, crosses foreign."""
    text = Text()
    if not view.memory_slices:
        whole = next(iter(view.holdings), None)
        return text.append(" whole GPU ", style=f"black on {colour(whole)}" if whole else "dim")
    for index in range(view.memory_slices):
        holder = next((h for h in view.holdings if index in h.memory_slices), None)
        if holder is not None:
            style = f"black on {colour(holder)}"
            text.append(_label(holder, index), style).append(" ", style if index + 1 in holder.memory_slices else "")
        elif index in view.foreign:
            text.append("×" * (CELL - 1), "red").append(" ")
        else:
            text.append("·" * (CELL - 1), "dim").append(" ")
    return text


def colour(holding: Holding) -> str:
    """The same colour for the same claim in every view."""
    return COLOURS[zlib.crc32(f"{holding.namespace}/{holding.claim}".encode()) % len(COLOURS)]


def holdings(rows: Sequence[Holding]) -> Table:
    """One row a device that a claim has."""
    table = Table(box=None, pad_edge=False)
    for column in ("NAMESPACE", "CLAIM", "POD", "DEVICE", "PROFILE", "SLICES", "STATE", "UUID"):
        table.add_column(column, no_wrap=column != "STATE")
    for h in rows:
        slices = f"{h.memory_slices[0]}-{h.memory_slices[-1]}" if h.memory_slices else "-"
        state = f"{h.state}: {h.reason}" if h.reason else h.state
        pods = ", ".join(h.pods) or "-"
        device = f"{h.pool} {h.device}"
        table.add_row(h.namespace, h.claim, pods, device, h.profile or "whole", slices, state, h.uuid or "-")
    return table


def _label(holding: Holding, index: int) -> str:
    first = holding.memory_slices[0]
    text = (holding.profile or "GPU").split("+")[0] if index == first else ""
    return text[: CELL - 1].ljust(CELL - 1)


def _legend(holding: Holding) -> Text:
    who = ", ".join(holding.pods) or holding.claim
    what = holding.profile or "whole GPU"
    state = "" if holding.state == "ready" else f" ({holding.state})"
    return Text.assemble(("■ ", colour(holding)), f"{holding.namespace}/{who} {what}{state}")


def _notes(view: GpuView) -> list[Text]:
    notes = []
    if view.foreign:
        notes.append(Text("× made by somebody else: not offered, not touched", style="red"))
    if view.problem:
        notes.append(Text(f"not usable now: {view.problem}", style="yellow"))
    if not view.holdings and not notes:
        notes.append(Text("free", style="dim"))
    return notes
