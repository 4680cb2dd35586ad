"""Quantities: exact both ways (K6)."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dynamig.dra.quantity import memory, parse, written
from dynamig.errors import Refused
from dynamig.mig import MiB


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        (7, 7),
        ("0", 0),
        ("40Gi", 40 << 30),
        ("9984Mi", 9984 << 20),
        ("1.5Gi", 3 << 29),
        ("1500m", Fraction(3, 2)),
        ("2e3", 2000),
        ("2E3", 2000),
        ("1E", 10**18),
        ("1Ei", 1 << 60),
        ("-.5k", -500),
        ("12.", 12),
        ("100n", Fraction(1, 10**7)),
        ("1e-2", Fraction(1, 100)),
    ],
)
def test_parse(text: str | int, value: Fraction | int) -> None:
    assert parse(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "1KI", "0x10", "1Gi2", "--1", "1e", "."])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse(text)
    assert refusal.value.code == "BAD_QUANTITY"


@pytest.mark.parametrize(
    ("mib", "text"),
    [(9984, "9984Mi"), (16384, "16Gi"), (1, "1Mi"), (0, "0"), (1 << 20, "1Ti"), (81559, "81559Mi")],
)
def test_memory_is_written_as_the_server_would(mib: int, text: str) -> None:
    assert memory(MiB(mib)) == text
    assert parse(text) == mib << 20


@pytest.mark.parametrize("text", ["0", "7", "132", "1Ki", "9984Mi", "1537Ki", "80Gi", "3Ei"])
def test_an_amount_is_written_as_it_was_read(text: str) -> None:
    assert written(parse(text)) == text


def test_a_part_of_one_is_written_as_a_decimal() -> None:
    assert written(parse("1500m")) == "1.5"
