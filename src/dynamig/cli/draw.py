"""GPUs and holdings as text, from views: bars and colours in a terminal, whole plain columns in a pipe."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dynamig.cli.output import Page
from dynamig.cli.view import GpuView, Holding, HoldingState
from dynamig.protocol import names

CELL = 3
WIDEST_CELL = 8
"""Columns of one memory slice in a bar, without the gap behind it. Eight take a name such as `1g.10gb`."""

LEGEND = 36
"""Columns for who holds what, before bars grow."""

SLICES = 8
"""Memory slices whose room a GPU without any takes in a bar: as many as most GPUs with MIG have."""

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red", "bright_cyan", "bright_magenta")
STATE_STYLE = {
    HoldingState.ALLOCATED: "yellow",
    HoldingState.READY: "green",
    HoldingState.FAILED: "red",
    HoldingState.LEAVING: "yellow",
    HoldingState.ADMIN: "dim",
}
FREE, WITHDRAWN, FILL = "·", "×", "━"
NOTHING = "-"
WHOLE = "whole"

Row = tuple[str | Text, ...]
Claim = tuple[str, str]
"""Namespace and name."""
Palette = Mapping[Claim, str]
"""Colours of claims; empty where there are none."""

# -- GPUs ------------------------------------------------------------------------------------------------------------


def gpus(views: Sequence[GpuView], page: Page) -> RenderableType:
    """Bars by node in a terminal; one line for each GPU in a pipe."""
    return _gpu_lines(views) if page.width is None else Group(*_gpu_bars(views, page, page.width))


def _gpu_lines(views: Iterable[GpuView]) -> Text:
    """No spaces inside a column but the last, the product's."""
    rows: list[Row] = [("GPU", "FREE", "HELD-BY", "WITHDRAWN", "PROBLEM", "UUID", "PRODUCT")]
    for view in views:
        free = ranges(view.free) if view.memory_slices else WHOLE if view.idle else ""
        held = ",".join(map(_held_word, view.holdings))
        problem = (view.problem or "").replace(" ", "_")
        rows.append((view.name, free, held, ranges(view.withdrawn), problem, view.uuid or "", view.product))
    return aligned(rows)


def _held_word(holding: Holding) -> str:
    state = "" if holding.state is HoldingState.READY else f"({holding.state.value})"
    return f"{holding.namespace}/{_who(holding, '+')}:{profile(holding)}{state}"


def _gpu_bars(views: Sequence[GpuView], page: Page, width: int) -> Iterator[RenderableType]:
    """A title for each node and product, below it a table of equal columns."""
    short = [v.name.removeprefix(f"{v.node}/") for v in views]
    first = max(map(len, short), default=0)
    cell = cell_for(views, width - first - 4 - LEGEND)
    columns = max((bar_width(v, cell) for v in views), default=0)
    palette = colours(views) if page.colour else {}
    rows = zip(short, views, strict=True)
    for (node, product), group in groupby(rows, key=lambda row: (row[1].node, row[1].product)):
        yield Text.assemble((node or "no node", "bold"), ("  " + product, "dim"))
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(width=first + 2, no_wrap=True)
        table.add_column(width=columns, no_wrap=True)
        table.add_column(overflow="fold")
        for name, view in group:
            table.add_row(f"  {name}", bar(view, cell, palette), legend(view, palette))
        yield table


def cell_for(views: Iterable[GpuView], room: int) -> int:
    """Columns of a memory slice so that the longest bar takes `room` at most, as far as that can be."""
    slices = max((v.memory_slices for v in views), default=0) or SLICES
    return max(CELL, min(WIDEST_CELL, room // slices - 1))


def bar_width(view: GpuView, cell: int) -> int:
    return (view.memory_slices or SLICES) * (cell + 1) - 1


def bar(view: GpuView, cell: int, palette: Palette) -> Text:
    """Memory slices from 0: a block for each holding, dots where free, crosses where withdrawn."""
    if not view.memory_slices:
        return _undivided(view, bar_width(view, cell), palette)
    blocks: list[Text] = []
    for holding, group in groupby(range(view.memory_slices), key=lambda s: _holder(view, s)):
        slices = list(group)
        if holding is not None:
            blocks.append(_block(holding, len(slices) * (cell + 1) - 1, palette))
        else:
            blocks += [_empty(s in view.withdrawn, cell) for s in slices]
    return Text(" ").join(blocks)


def _undivided(view: GpuView, width: int, palette: Palette) -> Text:
    """A GPU that is offered whole only: held, or free."""
    if view.holdings:
        return _block(view.holdings[0], width, palette)
    return _empty(bool(view.withdrawals), width)


def _holder(view: GpuView, index: int) -> Holding | None:
    return next((h for h in view.holdings if index in h.memory_slices), None)


def _block(holding: Holding, width: int, palette: Palette) -> Text:
    """A label on the holder's colour; without colours, a line that shows how far it goes."""
    label = _label(holding, width)
    if colour := palette.get(_claim(holding)):
        return Text(label.ljust(width), f"black on {colour}")
    return Text(label.ljust(width, FILL))


def _empty(withdrawn: bool, width: int) -> Text:
    return Text(WITHDRAWN * width, "red") if withdrawn else Text(FREE * width, "dim")


def _label(holding: Holding, width: int) -> str:
    """The profile, or as much of it as says most: compute slices, then what stands behind the plus."""
    name = profile(holding)
    head, _, attributes = name.partition("+")
    compute = head.split(".")[0]
    shorter = (name, f"{compute}+{attributes}" if attributes else compute, compute)
    return next((text for text in shorter if len(text) <= width), compute[:width])


def legend(view: GpuView, palette: Palette) -> Group:
    """A line for each claim that holds something, and for whatever is wrong."""
    claims = dict.fromkeys(map(_claim, view.holdings))
    lines = [_held_by([h for h in view.holdings if _claim(h) == claim], palette) for claim in claims]
    if view.problem:
        lines.append(Text(f"! {view.problem}", "yellow"))
    lines += [
        Text(f"{WITHDRAWN} {_why_withdrawn(w.key)}: {w.devices} of {view.devices} devices withdrawn", "red")
        for w in view.withdrawals
    ]
    return Group(*(lines or [Text("free", "dim")]))


def _held_by(holdings: Sequence[Holding], palette: Palette) -> Text:
    """One claim's devices on one GPU, with the state of those that are not simply ready."""
    first = holdings[0]
    text = Text.assemble(("■ ", palette.get(_claim(first), "")), f"{first.namespace}/{_who(first, ', ')} ")
    for number, holding in enumerate(holdings):
        text.append(", " if number else "").append(profile(holding))
        if holding.state is not HoldingState.READY:
            reason = f": {_one_line(holding.reason)}" if holding.reason else ""
            text.append(f" ({holding.state.value}{reason})", STATE_STYLE[holding.state])
    return text


def _why_withdrawn(key: str) -> str:
    return {
        names.FOREIGN_TAINT: "instance of unknown owner",
        names.MIG_MODE_TAINT: "present MIG mode",
    }.get(key, f"taint {key}")


# -- holdings --------------------------------------------------------------------------------------------------------


def holdings(views: Iterable[GpuView], page: Page) -> Text:
    """One line for each device that a claim has; two where the terminal is too narrow for all columns."""
    rows = [(view, holding) for view in views for holding in view.holdings]
    wide = _wide(rows)
    if page.width is None or max(map(len, wide.plain.splitlines())) <= page.width:
        return wide
    return _narrow(rows)


def _wide(rows: Sequence[tuple[GpuView, Holding]]) -> Text:
    """What went wrong stands last: it has spaces."""
    head = ("NAMESPACE", "POD", "CLAIM", "GPU", "PROFILE", "SLICES", "STATE", "UUID", "DEVICE", "REASON")
    table: list[Row] = [head]
    for view, h in rows:
        where = (view.name, profile(h), ranges(h.memory_slices), _state(h), h.uuid or "", h.device)
        table.append((h.namespace, ",".join(h.pods), h.claim, *where, _one_line(h.reason)))
    return aligned(table if any(h.reason for _, h in rows) else [row[:-1] for row in table])


def _narrow(rows: Sequence[tuple[GpuView, Holding]]) -> Text:
    """The UUID below, or why there is none."""
    table: list[Row] = [("POD", "GPU", "PROFILE", "SLICES", "STATE")]
    for view, h in rows:
        where = (view.name, profile(h), ranges(h.memory_slices))
        table.append((f"{h.namespace}/{_who(h)}", *where, _state(h)))
    head, *lines = aligned(table).split("\n")
    below = [Text(f"  {_one_line(h.reason) or h.uuid or h.device}", "dim") for _, h in rows]
    return Text("\n").join([head, *(part for pair in zip(lines, below, strict=True) for part in pair)])


def _state(holding: Holding) -> Text:
    return Text(holding.state.value, STATE_STYLE[holding.state])


def _one_line(text: str) -> str:
    return " ".join(text.split())


# -- words -----------------------------------------------------------------------------------------------------------


def colours(views: Iterable[GpuView]) -> dict[Claim, str]:
    """A colour for each claim: its own by its name, or the next one where its neighbours on a GPU have that."""
    chosen: dict[Claim, str] = {}
    for view in views:
        claims = dict.fromkeys(map(_claim, view.holdings))
        for claim in claims:
            if claim not in chosen:
                taken = {chosen[c] for c in claims if c in chosen}
                first = zlib.crc32("/".join(claim).encode()) % len(COLOURS)
                turned = COLOURS[first:] + COLOURS[:first]
                chosen[claim] = next((c for c in turned if c not in taken), turned[0])
    return chosen


def _claim(holding: Holding) -> Claim:
    return holding.namespace, holding.claim


def profile(holding: Holding) -> str:
    return holding.profile or WHOLE


def ranges(slices: Iterable[int]) -> str:
    """Ascending numbers as `0-3,7`."""
    parts: list[list[int]] = []
    for index in slices:
        if parts and index == parts[-1][-1] + 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def _who(holding: Holding, between: str = ",") -> str:
    """The pods; the claim where no pod has it."""
    return between.join(holding.pods) or holding.claim


def aligned(rows: Sequence[Row], gap: int = 2) -> Text:
    """Columns as wide as their widest cell, none cut; an empty cell is a dash, so that columns can be counted."""
    cells = [[cell if isinstance(cell, Text) else Text(cell or NOTHING) for cell in row] for row in rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        line = Text()
        for cell, width in zip(row[:-1], widths, strict=False):
            line.append_text(cell).append(" " * (width - cell.cell_len + gap))
        lines.append(line.append_text(row[-1]))
    return Text("\n").join(lines)
