"""`bench.bridge_look` with 200 nodes."""

from __future__ import annotations

from bench.bridge_look import report_of
from bench.figures import Report


def report(*, quick: bool) -> Report:
    return report_of((200,), rounds=1 if quick else 5)
