"""`python -m bench [NAME...] [--quick] [--list] [--json FILE]`."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape

from bench.draw import drawn
from bench.figures import Report, plain
from dynamig.errors import DynamigError, Refused

PLAIN_WIDTH = 140
"""Columns where there is no terminal to ask."""


@dataclass(frozen=True, slots=True)
class Bench:
    """`module` has `report(*, quick)`; it is imported only when it runs, so that the others need not be whole.
    `long`: takes many minutes, and runs only if it is named."""

    name: str
    title: str
    module: str
    long: bool = False

    def run(self, *, quick: bool) -> Report:
        found = cast(Callable[..., Report], import_module(self.module).report)
        return found(quick=quick)


BENCHES = (
    Bench("pods", "A pod with a claim, on the lab", "bench.pods"),
    Bench("prepare", "What the driver adds to a prepare and an unprepare", "bench.prepare"),
    Bench("start", "Driver start with 8 GPUs and 56 prepared claims", "bench.start"),
    Bench("first_fit_order", "Packing by the published order of placements", "bench.packing"),
    Bench("allocate", "The allocator beside Kubernetes' own", "bench.allocate"),
    Bench("emulator", "The NVML emulator: reads, changes, enumeration", "bench.emulator"),
    Bench("bridge", "Pods paid for in Slurm, on a lab of their own", "bench.bridge"),
    Bench("bridge_burst", "Many pods at once, on a lab of their own", "bench.bridge_burst"),
    Bench("bridge_slurm", "What a look of the bridge asks of Slurm, on a lab of its own", "bench.bridge_slurm"),
    Bench("bridge_look", "What one look of the bridge costs, on fakes", "bench.bridge_look"),
    Bench("bridge_picks", "Wrong picks of Slurm, and what is served beside them, simulated", "bench.bridge_picks"),
    Bench("memory", "What a running driver costs its node, on the lab", "bench.memory"),
    Bench("bridge_look_200", "What one look costs with 200 nodes, on fakes", "bench.bridge_look_200", long=True),
    Bench("bridge_picks_all", "Wrong picks, all mixes and loads, simulated", "bench.bridge_picks_all", long=True),
)


def chosen(names: Sequence[str]) -> tuple[Bench, ...]:
    """Those named, in the order named; all that are not long if none is.

    Raises: Refused for a name that there is not.
    """
    known = {bench.name: bench for bench in BENCHES}
    if unknown := [name for name in names if name not in known]:
        raise Refused("UNKNOWN_BENCH", f"no bench {', '.join(unknown)}", f"there are: {', '.join(known)}")
    return tuple(known[name] for name in names) or tuple(bench for bench in BENCHES if not bench.long)


def machine() -> dict[str, Any]:
    """Where the figures come from: they mean little elsewhere, their ratios more."""
    return {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}


app = typer.Typer(add_completion=False)


@app.command()
def main(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which; none: all but the long ones.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds: shows that it works, not how fast.")] = False,
    only_list: Annotated[bool, typer.Option("--list", help="Names and what they measure.")] = False,
    to: Annotated[Path | None, typer.Option("--json", help="Also write every value to this file.")] = None,
) -> None:
    """Measured figures of dynamig, each as a ratio against something named that was measured in turn with it."""
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    errors = Console(stderr=True, soft_wrap=True)
    if only_list:
        for bench in BENCHES:
            console.print(f"{bench.name:16} {bench.title}{' (long: name it)' if bench.long else ''}", highlight=False)
        return
    try:
        benches = chosen(names or ())
    except Refused as refused:
        errors.print(f"[red]error:[/red] {escape(str(refused))}", highlight=False)
        raise typer.Exit(2) from refused
    results, failed = _run(benches, console, errors, quick=quick)
    if to is not None:
        to.write_text(json.dumps({"machine": machine(), "quick": quick, "benches": results}, indent=1))
    if failed:
        errors.print(f"[red]{len(failed)} of {len(benches)} failed:[/red] {', '.join(failed)}", highlight=False)
        raise typer.Exit(1)


def _run(
    benches: Sequence[Bench], console: Console, errors: Console, *, quick: bool
) -> tuple[dict[str, Any], list[str]]:
    """Reports by name, and the names of those that could not be made: one bench's failure is not the others'."""
    results: dict[str, Any] = {}
    failed: list[str] = []
    for bench in benches:
        begun = time.monotonic()
        try:
            report = bench.run(quick=quick)
        except DynamigError as error:
            errors.print(f"[red]{bench.name}:[/red] {escape(str(error))}", highlight=False)
            failed.append(bench.name)
            continue
        title = f"{bench.title} ({bench.name}, {time.monotonic() - begun:.0f} s{', quick' if quick else ''})"
        console.print(drawn(title, report), highlight=False)
        results[bench.name] = plain(report)
    return results, failed


if __name__ == "__main__":
    app(prog_name="python -m bench")
