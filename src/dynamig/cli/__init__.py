"""The command line. Every command takes `--json`; an error names the thing, the place and the next step."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer
from rich.console import Console

from dynamig.cli import driver, emulator, gpus
from dynamig.errors import DynamigError, InvariantBroken

app = typer.Typer(
    help="NVIDIA MIG slices on demand, for Kubernetes pods and Slurm jobs.", no_args_is_help=True, add_completion=False
)
app.command("gpus")(gpus.gpus)
app.command("ps")(gpus.ps)
app.add_typer(driver.app, name="driver")
app.add_typer(emulator.app, name="emulator")


def main() -> None:
    """Entry point. Exit status: 0 done, 1 an error of ours was shown, 2 wrong usage, 70 a bug."""
    sys.exit(run(app))


def run(command: Callable[[], object]) -> int:
    console = Console(stderr=True)
    try:
        command()
    except InvariantBroken as error:
        console.print(f"[red]bug:[/red] {error}", highlight=False)
        return 70
    except DynamigError as error:
        console.print(f"[red]error:[/red] {error.what}", highlight=False, soft_wrap=True)
        if error.next_step:
            console.print(f"  [dim]next:[/dim] {error.next_step}", highlight=False, soft_wrap=True)
        return 1
    return 0
