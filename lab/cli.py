"""`python -m lab`: up, down, status, logs, start, stop, kill, kubectl, slurm, env."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dynamig.cli.output import survive_any_encoding
from dynamig.errors import DynamigError, Refused
from lab.commands import clean_env
from lab.components import DriverFiles
from lab.images import TOOL_IMAGE
from lab.lab import DEFAULT_GPUS, DEFAULT_NODES, Lab, Status, default_dir, take_down
from lab.machines import tail_follow
from lab.preflight import AS_ROOT, need_root
from lab.progress import Reporter
from lab.spec import CONTROL, gpus_per_node

app = typer.Typer(
    name="lab",
    help="Real etcd, Kubernetes, containerd and kubelets on this machine, in namespaces of their own.",
    no_args_is_help=True,
    add_completion=False,
)
PLAIN_WIDTH = 140
"""Columns where there is no terminal to ask."""

out = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
err = Console(stderr=True)

Dir = Annotated[
    Path | None,
    typer.Option("--dir", help="The lab's folder. Default: $DYNAMIG_LAB_DIR, else .lab in the repository."),
]
Daemon = Annotated[str, typer.Argument(metavar="NAME", help="A daemon, as `status` lists them.")]
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it (128 + SIGINT)."""


CONTINUES = "interrupted: `up` continues from here, `down` removes what is there"


def main() -> None:
    survive_any_encoding(sys.stdout, sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a build server's stop is a Ctrl-C
    app()


@contextmanager
def told(interrupted: str = "") -> Iterator[None]:
    """Errors that are meant for people are shown as such; Ctrl-C says what is possible now, if something is."""
    try:
        yield
    except DynamigError as error:
        err.print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    except PermissionError as error:
        err.print(f"[red]error:[/red] {escape(str(error))}; {AS_ROOT}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        if interrupted:
            err.print(interrupted, highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


@app.command()
def up(
    directory: Dir = None,
    nodes: Annotated[
        str | None,
        typer.Option(help=f"Node names, comma separated. Default: {','.join(DEFAULT_NODES)}."),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(help="First of 100 ports. Default: the first free block of 20000-29999."),
    ] = None,
    gpus: Annotated[
        list[str] | None,
        typer.Option(help=f"Emulated GPUs: MODEL:N[,MODEL:N] for all nodes or NODE=MODEL:N. Default: {DEFAULT_GPUS}."),
    ] = None,
    without_driver: Annotated[bool, typer.Option(help="No GPUs, no dynamig.")] = False,
    without_slurm: Annotated[bool, typer.Option(help="Kubernetes only: no slurmctld, no slurmd.")] = False,
    slurm_hooks: Annotated[
        Path | None,
        typer.Option(help="Scripts for Slurm's nodes, laid out like deploy/slurm; drivers then lend GPUs."),
    ] = None,
    notebook: Annotated[bool, typer.Option("--notebook", help="Nodes have an image with Jupyter too.")] = False,
) -> None:
    """Bring the lab up, or continue from where it stands. Takes about 8 minutes the first time."""
    with told(CONTINUES):
        reporter = Reporter(out)
        names = nodes.split(",") if nodes else list(DEFAULT_NODES)
        wanted = gpus_per_node(names, gpus or [], DEFAULT_GPUS) if nodes or gpus else None
        lab = Lab.create(
            directory or default_dir(),
            nodes=wanted,
            base_port=base_port,
            with_driver=not without_driver,
            with_slurm=not without_slurm,
            slurm_hooks=slurm_hooks,
            notebook=notebook,
            reporter=reporter,
        )
        lab.up()
        reporter.line(f"[green]lab is up[/green] in {lab.layout.root}; try: python -m lab kubectl get nodes")


@app.command()
def down(
    directory: Dir = None,
    keep_logs: Annotated[bool, typer.Option(help="Leave the folder with the logs.")] = False,
) -> None:
    """Stop everything and remove the lab's folder. The caches stay."""
    with told(CONTINUES):
        need_root()
        reporter = Reporter(out)
        where = directory or default_dir()
        if take_down(where, reporter, keep_logs=keep_logs):
            reporter.line(f"lab in {where} is gone")
        else:
            reporter.line(f"no lab in {where}")


@app.command()
def status(
    directory: Dir = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON list: name, pid, since, ports, log, ready.")
    ] = False,
) -> None:
    """Ask every daemon whether it is ready. Exit status 1 if one is not."""
    with told():
        rows = Lab.open(directory or default_dir()).status()
        if as_json:
            data = [{**asdict(row), "log": str(row.log), "ready": row.reason is None} for row in rows]
            out.print_json(json.dumps(data))
        else:
            out.print(_table(rows))
        if any(row.reason is not None for row in rows):
            raise typer.Exit(1)


def _table(rows: list[Status]) -> Table:
    table = Table("daemon", "ready", "pid", "up for", "ports", "log", caption=f"logs in {rows[0].log.parent}")
    for row in rows:
        table.add_row(
            row.name,
            "[green]yes[/green]" if row.reason is None else f"[red]no:[/red] {escape(row.reason)}",
            str(row.pid or "-"),
            _duration(time.time() - row.since) if row.since else "-",
            "\n".join(map(str, row.ports)),
            row.log.name,
        )
    return table


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


@app.command()
def logs(
    name: Annotated[
        str | None, typer.Argument(help="A daemon, or build-kubernetes and the like; none: list them.")
    ] = None,
    directory: Dir = None,
    lines: Annotated[int, typer.Option("-n", help="How many of the last lines.")] = 50,
    follow: Annotated[bool, typer.Option("-f", help="Go on printing.")] = False,
) -> None:
    """Show a daemon's log, or where the logs are."""
    with told():
        lab = Lab.open(directory or default_dir())
        found = {path.stem: path for path in sorted(lab.layout.logs.glob("*.log"))}
        if name is None:
            for path in found.values():
                typer.echo(f"{path.stat().st_size:>10}  {path}")
        elif name in found:
            tail_follow(found[name], lines, follow)
        else:
            raise Refused("NO_LOG", f"no log of {name!r}", f"there are: {', '.join(found)}")


@app.command()
def start(name: Daemon, directory: Dir = None) -> None:
    """Start one daemon and whatever it needs."""
    with told(CONTINUES):
        Lab.open(directory or default_dir(), Reporter(out)).start(name)


@app.command()
def stop(name: Daemon, directory: Dir = None) -> None:
    """Stop one daemon (TERM, then KILL)."""
    with told():
        Lab.open(directory or default_dir(), Reporter(out)).stop(name)


@app.command()
def kill(
    name: Daemon,
    directory: Dir = None,
    number: Annotated[str, typer.Option("--signal", help="Name or number: KILL, HUP, 15.")] = "KILL",
) -> None:
    """Send a daemon a signal, as a crash or an operator would. `start` brings it back."""
    with told():
        Lab.open(directory or default_dir()).kill(name, signal_of(number))


def signal_of(text: str) -> signal.Signals:
    """`KILL`, `SIGKILL` or `9`. Raises Refused BAD_SIGNAL."""
    try:
        return signal.Signals(int(text)) if text.isdigit() else signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
    except (ValueError, KeyError) as error:
        raise Refused("BAD_SIGNAL", f"no signal {text!r}", "such as KILL, TERM, HUP, STOP, CONT") from error


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,  # keeps the `--` of `exec POD -- COMMAND`
        "help_option_names": [],
    },
    add_help_option=False,
)
def kubectl(context: typer.Context, directory: Dir = None) -> None:
    """kubectl as the lab's administrator; everything behind the word is its own."""
    with told():
        lab = Lab.open(directory or default_dir())
        environ = {**os.environ, "KUBECONFIG": str(lab.admin_kubeconfig)}
        os.execve(lab.kubectl_path, ["kubectl", *context.args], environ)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def slurm(
    context: typer.Context,
    directory: Dir = None,
    user: Annotated[str, typer.Option(help="root, slurm, dynamig or alice.")] = "root",
    machine: Annotated[str, typer.Option(help="The machine to run it in, such as n1.")] = CONTROL,
) -> None:
    """Run a command of Slurm, like squeue, in a machine of the lab; input and output are yours."""
    with told():
        argv = Lab.open(directory or default_dir()).slurm_command(context.args, user, machine)
        os.execvpe(argv[0], argv, clean_env())


@app.command()
def env(directory: Dir = None) -> None:
    """Print shell assignments: eval "$(python -m lab env)". Hints for a person go to stderr."""
    with told():
        lab = Lab.open(directory or default_dir())
        typer.echo(f"export DYNAMIG_LAB_DIR={lab.layout.root}")
        typer.echo(f"export KUBECONFIG={lab.admin_kubeconfig}")
        typer.echo(f'export PATH="{lab.kubectl_path.parent}:{Path(sys.prefix) / "bin"}:$PATH"')
        for hint in _hints(lab):
            typer.echo(hint, err=True)


def _hints(lab: Lab) -> Iterator[str]:
    """What one can do with the lab that its paths must be known for."""
    yield "kubectl and dynamig talk to the lab now: dynamig gpus, dynamig ps"
    if lab.spec.with_driver:
        name = lab.nodes[0]
        yield f"the driver of {name}: dynamig driver status --config {DriverFiles(lab.layout.node(name)).config}"
    yield f"a pod of your own: image {TOOL_IMAGE} (busybox, nvml-list), imagePullPolicy: Never"
