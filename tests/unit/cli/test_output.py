"""Output survives any encoding, and lines in a pipe end with what one can see."""

from __future__ import annotations

import io
from typing import IO, cast

import pytest
from rich.console import Console
from rich.table import Table

from dynamig.cli.output import Trimmed, survive_any_encoding


@pytest.mark.parametrize(
    ("encoding", "written"),
    [("ascii", "~ . x = # % caf? GPU ? -"), ("latin-1", "~ · × = # % café GPU ?\u00a0-"), ("utf-8", None)],
)
def test_what_an_encoding_lacks_is_written_in_plain_letters(encoding: str, written: str | None) -> None:
    text = "┄ · × ━ ■ ▒ café GPU 名\u00a0-"
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    survive_any_encoding(stream)
    stream.write(text)
    stream.flush()
    assert raw.getvalue().decode(encoding) == (text if written is None else written)


def test_padding_of_tables_does_not_reach_a_pipe() -> None:
    to = io.StringIO()
    table = Table(box=None, pad_edge=False)
    table.add_column("A")
    table.add_column("B")
    table.add_row("a long cell", "x")
    table.add_row("b", "")
    Console(file=cast(IO[str], Trimmed(to)), width=200).print(table)
    assert to.getvalue() == "A            B\na long cell  x\nb\n"


def test_blanks_inside_a_line_that_comes_in_parts_are_kept() -> None:
    to = io.StringIO()
    stream = Trimmed(to)
    for part in ("a  ", "b", "  \n c "):
        stream.write(part)
        stream.flush()
    assert to.getvalue() == "a  b\n c"
