"""The words and colours that bars, columns and the demo share."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from rich.text import Text

from dynamig.cli.holdings import Holding, HoldingState
from dynamig.cli.nodes import clock
from dynamig.cli.view import GpuView
from dynamig.protocol.loans import Loan

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_cyan", "bright_magenta", "bright_yellow")
"""Of claims. Red is not among them: it is for what went wrong."""

STATE_STYLE = {
    HoldingState.WAITING: "bold yellow",
    HoldingState.ALLOCATED: "yellow",
    HoldingState.READY: "green",
    HoldingState.FAILED: "red",
    HoldingState.LEAVING: "yellow",
    HoldingState.ADMIN: "dim",
}
NATIVE = "white"
"""Of native jobs of Slurm: the light grey of most terminals, to be seen on black and on white. No claim has it."""

NOTHING = "-"
WHOLE = "whole"

Row = tuple[str | Text, ...]
Claim = tuple[str, str]
"""Namespace and name."""
Palette = Mapping[Claim, str]
"""Colours of claims, and under LENT of native jobs; empty where there are none."""

LENT: Claim = ("", "")


def palette(views: Iterable[GpuView], *, colour: bool) -> Palette:
    return {**colours(views), LENT: NATIVE} if colour else {}


def colours(views: Iterable[GpuView]) -> dict[Claim, str]:
    """A colour for each claim: its own by its name, or the next one where its neighbours on a GPU have that."""
    chosen: dict[Claim, str] = {}
    for view in views:
        claims = dict.fromkeys(map(claim_of, view.holdings))
        for claim in claims:
            if claim not in chosen:
                taken = {chosen[c] for c in claims if c in chosen}
                first = zlib.crc32("/".join(claim).encode()) % len(COLOURS)
                turned = COLOURS[first:] + COLOURS[:first]
                chosen[claim] = next((c for c in turned if c not in taken), turned[0])
    return chosen


def claim_of(holding: Holding) -> Claim:
    return holding.namespace, holding.claim


def profile(holding: Holding) -> str:
    return WHOLE if holding.profile is None else holding.profile


def who(holding: Holding, between: str = ",") -> str:
    """The pods; the claim where no pod has it."""
    return between.join(holding.pods) or holding.claim


def borrower(loan: Loan) -> str:
    """The native job that has the GPU, and since when: `Slurm job 12, since 14:03:21`."""
    since = datetime.fromtimestamp(loan.since, UTC)
    return f"{loan.borrower}, since {clock(since, datetime.now(UTC))}"


def ranges(slices: Iterable[int]) -> str:
    """Ascending numbers as `0-3,7`."""
    parts: list[list[int]] = []
    for index in slices:
        if parts and index == parts[-1][-1] + 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def one_line(text: str) -> str:
    return " ".join(text.split())


def one_word(text: str) -> str:
    """Without blanks, so that columns of a pipe can be counted."""
    return "_".join(text.split())


def shortened(text: str, room: int, instead: str) -> str:
    """The text in one line; where that takes more than `room` columns, its beginning and where to read all of it."""
    line = one_line(text)
    return line if len(line) <= room else f"{line[:room].rsplit(' ', 1)[0]} ...; {instead}"


def aligned(rows: Sequence[Row], gap: int = 2) -> Text:
    """Columns as wide as their widest cell, but the last; none is cut. Empty cells are dashes, so that they count."""
    cells = [[cell if isinstance(cell, Text) else Text(cell or NOTHING) for cell in row] for row in rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        line = Text()
        for cell, width in zip(row[:-1], widths, strict=False):
            line.append_text(cell).append(" " * (width - cell.cell_len + gap))
        lines.append(line.append_text(row[-1]))
    return Text("\n").join(lines)
