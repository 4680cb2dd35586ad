"""Pauses grow, end at the longest, and stay there however long it lasts."""

from __future__ import annotations

import pytest

from dynamig.protocol.pauses import pause_after


def test_they_double_up_to_the_longest() -> None:
    assert [pause_after(n, first=0.5, longest=3.0) for n in (1, 2, 3, 4, 5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("failures", [1_000, 1_024, 1_025, 10**9])
def test_days_of_failures_are_no_error(failures: int) -> None:
    assert pause_after(failures, first=0.4, longest=10.0) == 10.0
