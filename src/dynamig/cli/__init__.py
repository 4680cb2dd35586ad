"""The command line. Every command takes `--json`; an error names the thing, the place and the next step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dynamig.cli import bridge, driver, emulator, gpus
from dynamig.cli.output import survive_any_encoding
from dynamig.errors import DynamigError, InvariantBroken


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dynamig {version('dynamig')}")
        raise typer.Exit


app = typer.Typer(
    help="NVIDIA MIG slices on demand, for Kubernetes pods and Slurm jobs.", no_args_is_help=True, add_completion=False
)
app.command("gpus")(gpus.gpus)
app.command("ps")(gpus.ps)
app.add_typer(driver.app, name="driver")
app.add_typer(bridge.app, name="bridge")
app.add_typer(emulator.app, name="emulator")


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """NVIDIA MIG slices on demand, for Kubernetes pods and Slurm jobs."""


def main() -> None:
    """Entry point. Exit status: 0 done, 1 an error of ours was shown, 2 wrong usage, 70 a bug."""
    survive_any_encoding(sys.stdout, sys.stderr)
    sys.exit(run(app))


def run(command: Callable[[], object]) -> int:
    console = Console(stderr=True)
    try:
        command()
    except InvariantBroken as error:
        console.print(Text.assemble(("bug: ", "red"), str(error)), soft_wrap=True)
        return 70
    except DynamigError as error:
        console.print(Text.assemble(("error: ", "red"), error.what), soft_wrap=True)
        if error.next_step:
            console.print(Text.assemble(("  next: ", "dim"), error.next_step), soft_wrap=True)
        return 1
    return 0
