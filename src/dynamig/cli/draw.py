"""GPUs as bars of memory slices, for a terminal; `table` has the columns for a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dynamig.cli import table
from dynamig.cli.holdings import Holding, HoldingState
from dynamig.cli.output import Page
from dynamig.cli.view import GpuView
from dynamig.cli.words import LENT, STATE_STYLE, Palette, borrower, claim_of, palette, profile, shortened, who
from dynamig.protocol import names
from dynamig.protocol.loans import Loan

CELL, WIDEST_CELL = 3, 8
"""Columns of one memory slice in a bar, without the gap behind it. Eight take a name such as `1g.10gb`."""

LEGEND = 36
"""Columns for who holds what, before bars grow; with fewer than `LEGEND_LEAST` it stands below the bar."""
LEGEND_LEAST = 26

SLICES = 8
"""Memory slices whose room a GPU without any takes in a bar: as many as most GPUs with MIG have."""

REASON = 48
"""Columns of a reason beside a bar; `dynamig ps` has all of it."""

FREE, UNUSABLE, WITHDRAWN = "·", "-", "×"
FILL = {
    HoldingState.ALLOCATED: "┄",
    HoldingState.READY: "━",
    HoldingState.FAILED: "!",
    HoldingState.LEAVING: "<",
}
"""How a block goes on behind its label. With colours a ready one needs none: its colour shows how far it goes."""
NATIVE_FILL = "▒"
"""The same for a GPU that a native job of Slurm has."""

UNUSABLE_MEANS = f"{UNUSABLE * CELL}  not held, and nothing that is published fits there"


def gpus(views: Sequence[GpuView], page: Page) -> RenderableType:
    """Bars by node in a terminal; one line for each GPU in a pipe."""
    return table.gpus(views) if page.width is None else Group(*_bars(views, page, page.width))


def _bars(views: Sequence[GpuView], page: Page, width: int) -> Iterator[RenderableType]:
    """A title for each node and product, below it its GPUs with bars of one width; what dashes mean at the end."""
    first = max((len(_short(v)) for v in views), default=0)
    cell = cell_for(views, width - first - 4, LEGEND)
    shades = palette(views, colour=page.colour)
    for _, group in groupby(views, key=lambda v: (v.node, v.product)):
        found = list(group)
        yield _title(found[0])
        yield rows([(_short(v), v) for v in found if v.pool], cell, width, first, shades)
    if any(v.unusable for v in views):
        yield Text(UNUSABLE_MEANS, "dim")


def _short(view: GpuView) -> str:
    return view.name.removeprefix(f"{view.node}/")


def _title(view: GpuView) -> Text:
    title = Text.assemble((view.node or "no node", "bold"), ("  " + view.product, "dim"))
    return title.append(f"  ! {view.trouble.words}", "bold yellow") if view.trouble.words else title


def rows(named: Sequence[tuple[str, GpuView]], cell: int, width: int, first: int, palette: Palette) -> RenderableType:
    """A row for each GPU: name, bar and legend; the legend below the bar where there is no room beside it."""
    columns = max((bar_width(v, cell) for _, v in named), default=0)
    if width - first - columns - 6 < LEGEND_LEAST:
        return Group(*(part for name, view in named for part in _stacked(name, view, cell, palette)))
    grid = Table(box=None, pad_edge=False, show_header=False)
    grid.add_column(width=first + 2, no_wrap=True)
    grid.add_column(width=columns, no_wrap=True)
    grid.add_column(overflow="fold")
    for name, view in named:
        grid.add_row(f"  {name}", bar(view, cell, palette), legend(view, palette))
    return grid


def _stacked(name: str, view: GpuView, cell: int, palette: Palette) -> Iterator[RenderableType]:
    yield Text.assemble(f"  {name}  ", bar(view, cell, palette))
    yield Padding(legend(view, palette), (0, 0, 0, 4))


# -- bars ------------------------------------------------------------------------------------------------------------


def cell_for(views: Iterable[GpuView], room: int, beside: int) -> int:
    """Columns of a memory slice so that the longest bar and `beside` columns of words take `room`, as far as can be.

    Without room for both, the bar takes the width of its own and shrinks to one column for each slice.
    """
    slices = max((v.memory_slices for v in views), default=0) or SLICES
    wanted = (room - beside) // slices - 1
    return min(WIDEST_CELL, wanted) if wanted >= CELL else max(1, min(CELL, room // slices - 1))


def bar_width(view: GpuView, cell: int) -> int:
    return (view.memory_slices or SLICES) * (cell + 1) - 1


def bar(view: GpuView, cell: int, palette: Palette) -> Text:
    """Memory slices from 0: a block for each holding, dots where free, crosses where withdrawn, dashes for the rest.

    One block of all of them where a native job has the GPU.
    """
    if view.loan is not None:
        return _lent(view.loan, bar_width(view, cell), palette)
    if not view.memory_slices:
        return _undivided(view, bar_width(view, cell), palette)
    blocks: list[Text] = []
    for holding, group in groupby(range(view.memory_slices), key=lambda s: _holder(view, s)):
        slices = list(group)
        if holding is not None:
            blocks.append(_block(holding, len(slices) * (cell + 1) - 1, palette))
        else:
            blocks += [_empty(view, s, cell) for s in slices]
    return Text(" ").join(blocks)


def _lent(loan: Loan, width: int, palette: Palette) -> Text:
    label = next((t for t in (str(loan.borrower), f"job {loan.borrower.job_id}") if len(t) <= width), "")
    colour = palette.get(LENT)
    return Text(label.ljust(width), f"black on {colour}") if colour else Text(label.ljust(width, NATIVE_FILL))


def _undivided(view: GpuView, width: int, palette: Palette) -> Text:
    """A GPU whose memory slices are not known or do not matter: its holders side by side, or free, or neither."""
    held = [h for h in view.holdings if h.state is not HoldingState.ADMIN]
    if held:
        each = max(1, (width + 1) // len(held) - 1)
        return Text(" ").join(_block(h, each, palette) for h in held)
    if view.withdrawals:
        return Text(WITHDRAWN * width, "red")
    return Text((FREE if view.whole_is_free else UNUSABLE) * width, "dim")


def _holder(view: GpuView, index: int) -> Holding | None:
    return next((h for h in view.holdings if index in h.memory_slices), None)


def _block(holding: Holding, width: int, palette: Palette) -> Text:
    """A label on the holder's colour; a line that shows how far it goes without colours, and in any other state."""
    label, fill = _label(holding, width), FILL.get(holding.state, "━")
    colour = palette.get(claim_of(holding))
    if colour is None:
        return Text(label.ljust(width, fill))
    if holding.state is HoldingState.READY:
        return Text(label.ljust(width), f"black on {colour}")
    return Text(label.ljust(width, fill), "white on red" if holding.state is HoldingState.FAILED else colour)


def _empty(view: GpuView, index: int, cell: int) -> Text:
    if index in view.withdrawn:
        return Text(WITHDRAWN * cell, "red")
    return Text((FREE if index in view.free else UNUSABLE) * cell, "dim")


def _label(holding: Holding, width: int) -> str:
    """The profile, or as much of it as says most: compute slices, then what stands behind the plus."""
    name = profile(holding)
    head, _, attributes = name.partition("+")
    compute = head.split(".")[0]
    shorter = (name, f"{compute}+{attributes}" if attributes else compute, compute)
    return next((text for text in shorter if len(text) <= width), compute[:width])


# -- legend ----------------------------------------------------------------------------------------------------------


def legend(view: GpuView, palette: Palette) -> Group:
    """A line for the native job that has the GPU, each claim that holds something, and whatever is wrong."""
    claims = dict.fromkeys(map(claim_of, view.holdings))
    lines = [Text.assemble(("■ ", palette.get(LENT, "")), borrower(view.loan))] if view.loan else []
    lines += [_held_by([h for h in view.holdings if claim_of(h) == claim], palette) for claim in claims]
    if view.problem:
        lines.append(Text(f"! {view.problem}", "yellow"))
    lines += [
        Text(f"{WITHDRAWN} {_why_withdrawn(w.key)}: {w.devices} of {view.devices} devices withdrawn", "red")
        for w in view.withdrawals
    ]
    nothing = "free" if view.free or view.whole_is_free else "nothing can be had"
    return Group(*(lines or [Text(nothing, "dim")]))


def _held_by(held: Sequence[Holding], palette: Palette) -> Text:
    """One claim's devices on one GPU, with the state of those that are not simply ready, and the job that pays."""
    first = held[0]
    text = Text.assemble(("■ ", palette.get(claim_of(first), "")), f"{first.namespace}/{who(first, ', ')} ")
    for number, holding in enumerate(held):
        text.append(", " if number else "").append(profile(holding))
        if holding.state is not HoldingState.READY:
            reason = f": {shortened(holding.reason, REASON, 'see dynamig ps')}" if holding.reason else ""
            text.append(f" ({holding.state.value}{reason})", STATE_STYLE[holding.state])
    return text if first.job is None else text.append(f", Slurm job {first.job}", "dim")


def _why_withdrawn(key: str) -> str:
    return {
        names.FOREIGN_TAINT: "instance of unknown owner",
        names.WITHDRAWN_TAINT: "no longer offered",
    }.get(key, f"taint {key}")
