"""`dynamig driver`: the node driver itself, and questions to a running one."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from rich.table import Table
from rich.text import Text

from dynamig.cli.output import Json, show
from dynamig.driver import control
from dynamig.driver.config import load
from dynamig.driver.recovery import describe
from dynamig.driver.service import Driver

app = typer.Typer(help="The DRA driver of this node.", no_args_is_help=True)

Config = Annotated[Path, typer.Option("--config", help="The driver's YAML file.")]
Socket = Annotated[Path | None, typer.Option("--socket", help="The running driver's socket, instead of --config.")]


@app.command("run")
def run(config: Config = Path("/etc/dynamig/driver.yaml")) -> None:
    """Run the driver in the foreground until SIGTERM."""
    loaded = load(config)
    _log_as_json()
    driver = Driver(loaded)
    server = control.ControlServer(
        loaded.socket, {"status": lambda: status_body(driver), "plan": lambda: plan_body(driver)}
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: driver.stop())
    server.start()
    finished = driver.run()
    server.close()
    raise typer.Exit(0 if finished else 70)


@app.command("status")
def status(config: Config = Path("/etc/dynamig/driver.yaml"), socket: Socket = None, json: Json = False) -> None:
    """How the running driver is, and what it offers of each GPU."""
    body = control.ask(_socket(config, socket), "status")
    show(body, _status_table(body), as_json=json)


@app.command("plan")
def plan(config: Config = Path("/etc/dynamig/driver.yaml"), socket: Socket = None, json: Json = False) -> None:
    """What recovery would do now; nothing is done."""
    body = control.ask(_socket(config, socket), "plan")
    lines = [f"- {a}" for a in body["actions"]] + [f"! quarantined: {q}" for q in body["quarantined"]]
    show(body, Text("\n".join(lines) or "nothing to do: journal, hardware and CDI files agree"), as_json=json)


def status_body(driver: Driver) -> Mapping[str, Any]:
    state = driver.status()
    return {
        "node": state.node,
        "ready": state.ready,
        "registered": state.registered,
        "published": state.published,
        "bootId": state.boot_id,
        "gpus": [
            {
                "pool": o.pool.name,
                "uuid": o.reading.uuid,
                "product": o.reading.product_name,
                "minor": o.reading.minor,
                "migMode": o.reading.mig_mode.value,
                "devices": len(o.pool.devices),
                "note": o.why,
                "foreign": [str(i) for i in state.foreign.get(o.reading.uuid, ())],
            }
            for o in state.offers
        ],
        "claims": [
            {"claim": str(r.ref), "state": r.state.value, "devices": [d.device for d in r.devices]}
            for r in state.records
        ],
    }


def plan_body(driver: Driver) -> Mapping[str, Sequence[str]]:
    planned = driver.plan()
    return {
        "actions": [describe(a) for a in planned.actions],
        "quarantined": [f"{gpu}: {i}" for gpu, found in planned.quarantined.items() for i in found],
    }


def _socket(config: Path, socket: Path | None) -> Path:
    if socket is not None:
        return socket
    return load(config).socket


def _status_table(body: Mapping[str, Any]) -> Table:
    words = (
        "ready"
        if body["ready"]
        else "not ready: " + ("slices not published yet" if body["registered"] else "not registered with the kubelet")
    )
    table = Table(title=f"driver on {body['node']}: {words}", box=None, title_justify="left", pad_edge=False)
    for column in ("POOL", "PRODUCT", "MINOR", "MIG", "DEVICES", "NOTE"):
        table.add_column(column)
    for gpu in body["gpus"]:
        note = "; ".join([n for n in (gpu["note"], *gpu["foreign"]) if n])
        table.add_row(gpu["pool"], gpu["product"], str(gpu["minor"]), gpu["migMode"], str(gpu["devices"]), note)
    return table


def _log_as_json() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(sort_keys=False),
        ]
    )
