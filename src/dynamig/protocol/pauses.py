"""How long to wait before something that failed is tried again. Pure."""

from __future__ import annotations


def pause_after(failures: int, *, first: float, longest: float) -> float:
    """Seconds after `failures` in a row, counted from 1: `first`, doubled each time, at most `longest`.

    For any number of them: a float ends at 2**1024, which what fails every ten seconds reaches in three hours.
    """
    return min(first * 2.0 ** min(failures - 1, 64), longest)
