"""Plain columns: GPUs in a pipe, and devices of claims everywhere.

In a pipe a cell has no blanks and is never cut, every line has as many columns as the first, and the last column, the
one that may be long, is not padded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.text import Text

from dynamig.cli.holdings import Holding, HoldingState
from dynamig.cli.output import Page
from dynamig.cli.view import GpuView
from dynamig.cli.words import STATE_STYLE, WHOLE, Row, aligned, one_line, one_word, profile, ranges, who

GPU_HEAD = ("GPU", "FREE", "UNUSABLE", "WITHDRAWN", "UUID", "PRODUCT", "PROBLEM", "LENT-TO", "HELD-BY")
HOLDING_HEAD = (
    "NAMESPACE", "POD", "CLAIM", "GPU", "PROFILE", "SLICES", "STATE", "UUID", "DEVICE", "SLURM-JOB", "REASON",
)  # fmt: skip

Held = tuple[str, Holding]
"""Name of the GPU, empty while the claim waits for one; and the device."""


def gpus(views: Iterable[GpuView]) -> Text:
    """One line for each GPU."""
    rows: list[Row] = [GPU_HEAD]
    for view in views:
        free = WHOLE if view.whole_is_free else ranges(view.free)
        slices = (free, ranges(view.unusable), ranges(view.withdrawn))
        words = (one_word(view.product), one_word(view.wrong))
        lent = one_word(str(view.loan.borrower)) if view.loan else ""
        rows.append((view.name, *slices, view.uuid or "", *words, lent, ",".join(map(_word, view.holdings))))
    return aligned(rows)


def _word(holding: Holding) -> str:
    """`namespace/pod:profile(state)@job`, the last two where they say something."""
    state = "" if holding.state is HoldingState.READY else f"({holding.state.value})"
    return (
        f"{holding.namespace}/{who(holding, '+')}:{profile(holding)}{state}{f'@{_job(holding)}' if holding.job else ''}"
    )


def holdings(views: Iterable[GpuView], waits: Iterable[Holding], page: Page) -> Text:
    """One line for each device that a claim has, and each claim that waits; two in a terminal that is too narrow."""
    rows: list[Held] = [(view.name, holding) for view in views for holding in view.holdings]
    rows += [("", holding) for holding in waits]
    if page.width is None:
        return _wide(rows, one_word)
    wide = _wide(rows, one_line)
    return wide if max(map(len, wide.plain.splitlines())) <= page.width else _narrow(rows)


def _wide(rows: Sequence[Held], reason: Callable[[str], str]) -> Text:
    table: list[Row] = [HOLDING_HEAD]
    for gpu, h in rows:
        where = (gpu, profile(h), ranges(h.memory_slices), _state(h), h.uuid or "", h.device, _job(h))
        table.append((h.namespace, ",".join(h.pods), h.claim, *where, reason(h.reason)))
    return aligned(table)


def _narrow(rows: Sequence[Held]) -> Text:
    """The UUID below, or why there is none."""
    table: list[Row] = [("POD", "GPU", "PROFILE", "SLICES", "JOB", "STATE")]
    table += [
        (f"{h.namespace}/{who(h)}", gpu, profile(h), ranges(h.memory_slices), _job(h), _state(h)) for gpu, h in rows
    ]
    head, *lines = aligned(table).split("\n")
    below = [Text(f"  {one_line(h.reason) or h.uuid or h.device or 'no reason is known'}", "dim") for _, h in rows]
    return Text("\n").join([head, *(part for pair in zip(lines, below, strict=True) for part in pair)])


def _job(holding: Holding) -> str:
    """The Slurm job that pays."""
    return "" if holding.job is None else str(holding.job)


def _state(holding: Holding) -> Text:
    return Text(holding.state.value, STATE_STYLE[holding.state])
