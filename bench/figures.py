"""What a bench reports: series of measured values, each against another, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one kind, in the order in which they were measured. `unit`: ms, s, MiB, share, calls."""

    name: str
    unit: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"series {self.name!r} has no values")

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def median(self) -> float:
        return median(self.values)

    def quantile(self, share: float) -> float | None:
        """The smallest value that at least `share` of all do not exceed (nearest rank); None where fewer than one
        in n would lie beyond it, so that it would only be another name for the largest."""
        if self.n * (1 - share) < 1 - 1e-9:
            return None
        return sorted(self.values)[math.ceil(self.n * share - 1e-9) - 1]


@dataclass(frozen=True, slots=True)
class Figure:
    """A series, and the one it is to be compared with, measured in turn with it. None: a part or a count."""

    series: Series
    against: Series | None = None

    def __post_init__(self) -> None:
        if self.against is not None and self.against.unit != self.series.unit:
            raise ValueError(f"{self.series.name!r} in {self.series.unit} against {self.against.unit}")

    @property
    def ratio(self) -> float | None:
        """Of the medians; None where there is nothing to compare with, or it is zero."""
        if self.against is None or self.against.median == 0:
            return None
        return self.series.median / self.against.median


@dataclass(frozen=True, slots=True)
class Report:
    """What one bench found. `notes`: how it was measured and what else the reader must know."""

    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()


def series(name: str, unit: str, values: Sequence[float], *, scale: float = 1.0) -> Series:
    """Values multiplied by `scale`, 1000 for seconds told in ms."""
    return Series(name, unit, tuple(v * scale for v in values))


def plain(report: Report) -> dict[str, Any]:
    """As JSON has it, with every value, so that a reader can compute what we did not."""
    return {"figures": [_plain_figure(f) for f in report.figures], "notes": list(report.notes)}


def _plain_figure(figure: Figure) -> Mapping[str, Any]:
    body = _plain_series(figure.series)
    if figure.against is not None:
        body["against"] = _plain_series(figure.against)
        body["ratio"] = figure.ratio
    return body


def _plain_series(one: Series) -> dict[str, Any]:
    return {
        "name": one.name,
        "unit": one.unit,
        "n": one.n,
        "median": one.median,
        "p90": one.quantile(0.9),
        "p99": one.quantile(0.99),
        "max": max(one.values),
        "values": list(one.values),
    }
