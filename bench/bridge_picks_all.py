"""`bench.bridge_picks` for every mix at every load."""

from __future__ import annotations

from bench.bridge_picks import CHOSEN, LOADS, report_of
from bench.figures import Report


def report(*, quick: bool) -> Report:
    return report_of(CHOSEN, LOADS, 20 if quick else 150)
