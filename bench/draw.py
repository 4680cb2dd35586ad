"""A report as a table for people: each figure, and below it what it stands against."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.figures import Figure, Report, Series

DASH = "-"


def drawn(title: str, report: Report) -> RenderableType:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("FIGURE")
    for column in ("MEDIAN", "P90", "P99", "MAX", "N", "RATIO"):
        table.add_column(column, justify="right", no_wrap=True)
    for figure in report.figures:
        _add(table, figure)
    notes = Text("\n".join(f"  {note}" for note in report.notes), style="dim")
    return Group(table, notes, Text())


def _add(table: Table, figure: Figure) -> None:
    table.add_row(*_cells(figure.series), "" if figure.ratio is None else f"x {number(figure.ratio)}")
    if figure.against is not None:
        name, *rest = _cells(figure.against)
        table.add_row(f"  against {name}", *rest, "1", style="dim")


def _cells(one: Series) -> tuple[str, ...]:
    quantiles = (one.median, one.quantile(0.9), one.quantile(0.99), max(one.values))
    return (f"{one.name} [{one.unit}]".replace("[", r"\["), *(number(q) for q in quantiles), str(one.n))


def number(value: float | None) -> str:
    """Three digits that count: 0.0123, 1.23, 12.3, 1234."""
    if value is None:
        return DASH
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"
