"""`dynamig bridge`: pods of Slurm namespaces get their slices through Slurm."""

from __future__ import annotations

import signal
import socket
import uuid
from pathlib import Path
from typing import Annotated

import typer

from dynamig.cli.output import log_as_json
from dynamig.protocol import names

app = typer.Typer(help="The bridge between Kubernetes and Slurm: one leads, others stand by.", no_args_is_help=True)

Config = Annotated[Path, typer.Option("--config", help="The bridge's YAML file.")]


@app.command("run")
def run(config: Config = Path("/etc/dynamig/bridge.yaml")) -> None:
    """Run the bridge in the foreground until SIGTERM."""
    # Here, so that the other commands, a node's driver among them, do not load the allocator and its CEL parser.
    from dynamig import slurm
    from dynamig.bridge.config import load
    from dynamig.bridge.service import Bridge
    from dynamig.kube import connect
    from dynamig.kube.leader import REQUEST_SECONDS, ApiLeaseObject, Elector

    loaded = load(config)
    log_as_json()
    at = loaded.slurm
    jobs = slurm.ExternalJobs(slurm.connect(at.url, at.user, slurm.token_file(at.token_file)))
    client = connect(loaded.kubeconfig)
    for_lease = connect(loaded.kubeconfig, timeout=REQUEST_SECONDS)
    elector = Elector(
        ApiLeaseObject(for_lease, loaded.namespace, names.BRIDGE_LEASE), f"{socket.gethostname()}_{uuid.uuid4()}"
    )
    bridge = Bridge(loaded, client, jobs, elector)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: bridge.stop())
    bridge.run()


@app.callback()
def _group() -> None:
    """With one command only, typer would take `run` for an argument."""
