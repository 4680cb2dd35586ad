"""What a figure may claim."""

from __future__ import annotations

import pytest
from rich.console import Console

from bench.draw import drawn, number
from bench.figures import Figure, Report, Series, plain, series


def up_to(n: int) -> Series:
    return series("s", "ms", [float(v) for v in range(n, 0, -1)])


@pytest.mark.parametrize(
    ("n", "p90", "p99"),
    [(1, None, None), (9, None, None), (10, 9, None), (99, 90, None), (100, 90, 99), (200, 180, 198)],
)
def test_a_quantile_is_given_only_where_a_value_lies_beyond_it(n: int, p90: float | None, p99: float | None) -> None:
    assert (up_to(n).quantile(0.9), up_to(n).quantile(0.99)) == (p90, p99)


def test_the_ratio_is_of_the_medians() -> None:
    assert Figure(up_to(9), series("floor", "ms", [2, 2, 100])).ratio == 2.5
    assert Figure(up_to(9)).ratio is None
    assert Figure(up_to(9), series("nothing", "ms", [0, 0])).ratio is None


def test_units_are_not_mixed() -> None:
    with pytest.raises(ValueError, match="in ms against s"):
        Figure(up_to(3), series("other", "s", [1]))


def test_nothing_measured_is_no_series() -> None:
    with pytest.raises(ValueError, match="'s' has no values"):
        series("s", "ms", [])


def test_seconds_are_told_in_milliseconds() -> None:
    assert series("s", "ms", [0.25], scale=1e3).values == (250,)


def test_json_has_every_value_in_the_order_measured() -> None:
    figure, counted = plain(Report((Figure(up_to(3), up_to(2)), Figure(up_to(1))), ("note",)))["figures"]
    assert figure["values"] == [3, 2, 1]
    assert (figure["n"], figure["median"], figure["p90"], figure["max"]) == (3, 2, None, 3)
    assert (figure["against"]["values"], figure["ratio"]) == ([2, 1], 2 / 1.5)
    assert "ratio" not in counted


def test_a_table_shows_figure_floor_ratio_and_notes() -> None:
    console = Console(width=120, record=True, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(drawn("title", Report((Figure(up_to(10), series("floor", "ms", [0.5])),), ("measured so",))))
    text = captured.get()
    first, second = (line.split() for line in text.splitlines() if "[ms]" in line)
    assert first == ["s", "[ms]", "5.50", "9.00", "-", "10.0", "10", "x", "11.0"]
    assert second == ["against", "floor", "[ms]", "0.500", "-", "-", "0.500", "1", "1"]
    assert "title" in text
    assert "measured so" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (0.01234, "0.0123"), (0.999, "0.999"), (1.234, "1.23"), (99.94, "99.9"), (1234.5, "1234")],
)
def test_three_digits_count(value: float | None, text: str) -> None:
    assert number(value) == text
