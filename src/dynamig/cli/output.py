"""How commands print: for people in a terminal, as plain columns in a pipe, as one JSON value for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

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
    """Standard output as it is: a terminal with its width, or a pipe without one."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


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
