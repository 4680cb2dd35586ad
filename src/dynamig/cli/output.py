"""How commands print: rich for people, one JSON value for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout, for programs.")]


def show(value: Any, drawn: RenderableType, *, as_json: bool) -> None:
    """`drawn` to a terminal, or `value` as JSON."""
    if as_json:
        typer.echo(json.dumps(plain(value), indent=2))
    else:
        Console().print(drawn)


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
