"""How commands print: for people in a terminal, as plain columns in a pipe, as one JSON value for programs."""

from __future__ import annotations

import codecs
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Annotated, Any, TextIO, cast

import structlog
import typer
from rich.console import Console, RenderableType
from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout, for programs.")]

PIPE_WIDTH = 4096
"""Columns where no terminal limits them: what reads a pipe wants whole lines."""


@dataclass(frozen=True, slots=True)
class Page:
    """What is drawn on. `width`: columns of the terminal; None in a pipe, where nothing may be cut or wrapped."""

    width: int | None
    colour: bool


def show(value: Any, drawn: RenderableType | Callable[[Page], RenderableType], *, as_json: bool) -> None:
    """`value` as JSON, or `drawn`, made for the page where it depends on that."""
    if as_json:
        typer.echo(json.dumps(plain(value), indent=2))
        return
    console = stdout()
    ready = drawn(page(console)) if callable(drawn) else drawn
    console.print(ready, soft_wrap=isinstance(ready, Text))


def stdout() -> Console:
    """Standard output as it is: a terminal with its width, or a pipe without one, and without blanks at line ends."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH, file=cast("IO[str]", Trimmed(sys.stdout)))


class Trimmed:
    """A text stream on which lines end with their last visible character: tables pad, and nobody wants that in a file.

    What stands in an unfinished line is written when its end, or a flush, comes.
    """

    def __init__(self, to: TextIO) -> None:
        self._to = to
        self._line = ""

    def write(self, text: str) -> int:
        *ended, self._line = (self._line + text).split("\n")
        self._to.write("".join(line.rstrip(" ") + "\n" for line in ended))
        return len(text)

    def flush(self) -> None:
        kept = self._line.rstrip(" ")
        self._to.write(kept)
        self._line = self._line[len(kept) :]  # blanks wait: visible text may follow them
        self._to.flush()

    def isatty(self) -> bool:
        return self._to.isatty()

    @property
    def encoding(self) -> str:
        return self._to.encoding


PLAIN_LETTERS = str.maketrans("·×━┄▒■□…✓─│┃╺╸\u00a0", ".x=~%#o.+-||-- ")
"""What stands for our signs where an encoding lacks them; everything else becomes a question mark."""


def survive_any_encoding(*streams: TextIO) -> None:
    """What the streams' encoding cannot express is written in plain letters; nothing raises UnicodeEncodeError."""
    codecs.register_error("dynamig.plain", _in_plain_letters)
    for stream in streams:
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="dynamig.plain")


def _in_plain_letters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end].translate(PLAIN_LETTERS)
    return "".join(letter if letter.isascii() else "?" for letter in letters), error.end


def page(console: Console) -> Page:
    return Page(
        width=console.width if console.is_terminal else None,
        colour=console.color_system is not None and not console.no_color,
    )


def plain(value: Any) -> Any:
    """Dataclasses, enums, tuples and paths as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def log_as_json() -> None:
    """Services log one JSON object a line on stdout."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(sort_keys=False),
        ]
    )
