"""`dynamig driver`: the node driver itself, and questions to a running one."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dynamig.cli.output import Json, log_as_json, show
from dynamig.cli.status import (
    adopted_text,
    damaged_words,
    foreign_words,
    offered,
    quarantined_words,
    silent_words,
    status_text,
)
from dynamig.driver import control
from dynamig.driver.adoption import Adopted, may_adopt
from dynamig.driver.config import load
from dynamig.driver.recovery import describe
from dynamig.driver.service import Driver, LoanStatus
from dynamig.errors import Refused, Unavailable
from dynamig.protocol.device_map import map_to_json
from dynamig.protocol.loans import loan_to_json
from dynamig.protocol.outages import outages_to_json
from dynamig.slurm import gres

app = typer.Typer(help="The DRA driver of this node.", no_args_is_help=True)

Config = Annotated[Path, typer.Option("--config", help="The driver's YAML file.")]
Socket = Annotated[Path | None, typer.Option("--socket", help="The running driver's socket, instead of --config.")]
Job = Annotated[int, typer.Option("--job", help="SLURM_JOB_ID.")]
Sluid = Annotated[str, typer.Option("--sluid", help="SLURM_JOB_SLUID; tells the runs of a job apart.")]
Restart = Annotated[int, typer.Option("--restart", help="SLURM_JOB_RESTART_COUNT.")]

NOT_NOW, NO_DRIVER = 75, 69
"""Exit statuses of `lend` (sysexits: EX_TEMPFAIL, EX_UNAVAILABLE)."""

ANSWER, ASK_AGAIN = 10.0, 1.0
"""Seconds beyond the wait in which an answer must come; seconds between questions while no driver answers."""


@app.command("run")
def run(config: Config = Path("/etc/dynamig/driver.yaml")) -> None:
    """Run the driver in the foreground until SIGTERM."""
    loaded = load(config)
    log_as_json()
    driver = Driver(loaded)
    asks: dict[str, control.Ask] = {
        "status": lambda args, caller: status_body(driver),
        "plan": lambda args, caller: plan_body(driver),
        "release": lambda args, caller: driver.release(str(args["claim"])),
        "adopt": lambda args, caller: adopt_body(driver.adopt(str(args["claim"]))),
        **driver.loan_asks(),
    }
    server = control.ControlServer(loaded.socket, asks)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: driver.stop())
    server.start()
    finished = driver.run()
    sys.stdout.flush()
    os._exit(0 if finished else 70)  # threads that still hang in NVML must neither delay the end nor go on after it


@app.command("status")
def status(config: Config = Path("/etc/dynamig/driver.yaml"), socket: Socket = None, json: Json = False) -> None:
    """How the running driver is, and what it offers of each GPU."""
    body = control.ask(_socket(config, socket), "status")
    show(body, lambda page: status_text(body, page), as_json=json)


@app.command("plan")
def plan(config: Config = Path("/etc/dynamig/driver.yaml"), socket: Socket = None, json: Json = False) -> None:
    """What recovery would do now; nothing is done."""
    body = control.ask(_socket(config, socket), "plan")
    lines = [f"- {a}" for a in body["actions"]]
    lines += [f"! {word}: {what}" for word in ("quarantined", "damaged", "silent") for what in body[word]]
    lines += [f"! damaged: {what}" for what in body["damagedLoans"]]
    lines = lines or ["nothing to do: journal, hardware and CDI files agree"]
    lines += [f"= lent: {what}" for what in body["lent"]]
    show(body, Text("\n".join(lines)), as_json=json)


@app.command("release")
def release(
    claim: Annotated[str, typer.Argument(help="UID of the claim, as `dynamig driver status` shows it.")],
    config: Config = Path("/etc/dynamig/driver.yaml"),
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Destroy what a claim has that is over by the API server's word, when the kubelet has forgotten to ask for it."""
    control.ask(_socket(config, socket), "release", {"claim": claim})
    show({"released": claim}, Text(f"nothing of claim {claim} is on this node's GPUs any more"), as_json=json)


@app.command("adopt")
def adopt(
    claim: Annotated[str, typer.Argument(help="UID or NAMESPACE/NAME of a claim that a pod of this node uses.")],
    config: Config = Path("/etc/dynamig/driver.yaml"),
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Say that the instances at a claim's places are that claim's, when its record was lost while its pod runs."""
    body = control.ask(_socket(config, socket), "adopt", {"claim": claim})
    show(body, adopted_text(body), as_json=json)


@app.command("lend")
def lend(
    job: Job,
    gpus: Annotated[str, typer.Option("--gpus", help="Slurm's GPU indices, such as 0,1 (SLURM_JOB_GPUS).")],
    sluid: Sluid = "",
    restart: Restart = 0,
    wait: Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for what will end.")] = 0.0,
    config: Config = Path("/etc/dynamig/driver.yaml"),
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Borrow GPUs for a native Slurm job, all or none: for Slurm's prolog.

    Exit status: 0 lent; 75 not lent now; 69 no driver answers; 1 refused, waiting cannot help.
    """
    args = {"job": job, "sluid": sluid, "restart": restart, "gpus": _indices(gpus)}
    try:
        body = _lend(_socket(config, socket), args, wait)
    except Unavailable as error:
        Console(stderr=True).print(f"not lent: {error}", highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(NO_DRIVER if error.code == "NO_DRIVER" else NOT_NOW) from None
    show(body, Text("\n".join(f"lent {loan['gpu']} to Slurm job {job}" for loan in body)), as_json=json)


def _lend(socket: Path, args: Mapping[str, Any], wait: float) -> Any:
    """Asked again while no driver answers, until the time is over: it may be starting anew."""
    until = time.monotonic() + wait
    while True:
        left = max(0.0, until - time.monotonic())
        try:
            return control.ask(socket, "lend", {**args, "wait": left}, timeout=left + ANSWER)
        except Unavailable as error:
            if error.code != "NO_DRIVER" or time.monotonic() + ASK_AGAIN > until:
                raise
        time.sleep(ASK_AGAIN)


@app.command("give-back")
def give_back(
    job: Job,
    sluid: Sluid = "",
    restart: Restart = 0,
    everything: Annotated[
        bool, typer.Option("--all", help="By hand: every run of the job, nothing of it lives.")
    ] = False,
    config: Config = Path("/etc/dynamig/driver.yaml"),
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Give back what a native Slurm job has borrowed: for Slurm's epilog. A job that has nothing: nothing to do."""
    args = {"job": job, "sluid": sluid, "restart": restart, "all": everything}
    body = control.ask(_socket(config, socket), "give-back", args)
    lines = "\n".join(f"{loan['gpu']} is given back" for loan in body)
    show(body, Text(lines or f"Slurm job {job} had nothing"), as_json=json)


@app.command("map")
def device_map(config: Config = Path("/etc/dynamig/driver.yaml"), socket: Socket = None, json: Json = False) -> None:
    """Which GPU Slurm means by which index on this node, and what gres.conf must say of its shards."""
    body = control.ask(_socket(config, socket), "map")
    lines = [f"{index}  {gpu}" for index, gpu in body["gpus"].items()]
    lines.append(f"({body['source']}; in Slurm this node is {body['slurmNode']})")
    lines += [f"! {body['trouble']}"] if body["trouble"] else []
    lines += ["", "gres.conf, after the lines of these GPUs:", *body["gresConf"]] if body["gresConf"] else []
    show(body, Text("\n".join(lines)), as_json=json)


def _indices(text: str) -> list[int]:
    """`0,2` or `0-2`. Raises Refused INVALID."""
    try:
        return sorted(gres.indices(text))
    except ValueError as error:
        raise Refused("INVALID", f"--gpus {text!r} is no list of indices", "as SLURM_JOB_GPUS has it: 0,1") from error


def status_body(driver: Driver) -> Mapping[str, Any]:
    state = driver.status()
    return {
        "node": state.node,
        "ready": not state.why_not_ready,
        "whyNotReady": state.why_not_ready,
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
                "offered": offered(o),
                "leftOut": list(o.reading.left_out),
                "foreign": [foreign_words(i, o) for i in state.foreign.get(o.reading.uuid, ())],
            }
            for o in state.offers
        ],
        "outages": outages_to_json(state.outages),
        "claims": [
            {"claim": str(r.ref), "state": r.state.value, "devices": [d.device for d in r.devices]}
            for r in state.records
        ],
        "slurm": None if state.loans is None else _slurm_body(state.loans),
    }


def _slurm_body(state: LoanStatus) -> Mapping[str, Any]:
    return {
        "deviceMap": None if state.device_map is None else map_to_json(state.device_map),
        "trouble": state.trouble,
        "loans": [{**loan_to_json(loan), "why": why} for loan, why in state.loans.items()],
        "damagedLoans": dict(state.damaged),
    }


def plan_body(driver: Driver) -> Mapping[str, Sequence[str]]:
    planned, state = driver.plan(), driver.status()
    offers = {o.reading.uuid: o for o in state.offers}
    return {
        "actions": [describe(a) for a in planned.actions],
        "quarantined": [
            quarantined_words(gpu, i, offers.get(gpu), may_adopt(gpu, i, state.records))
            for gpu, found in planned.quarantined.items()
            for i in found
        ],
        "damaged": [damaged_words(uid, path) for uid, path in planned.unreadable.items()],
        "lent": _lent_lines(state.loans),
        "damagedLoans": _damaged_loans(state.loans),
        "silent": silent_words(state.outages, state.offers),
    }


def adopt_body(adopted: Adopted) -> Mapping[str, Any]:
    devices = [
        {"pool": d.pool, "device": d.device, "uuid": d.gpu if d.live is None else d.live.mig_uuid}
        for d in adopted.record.devices
    ]
    return {"claim": str(adopted.record.ref), "fresh": adopted.fresh, "devices": devices, "kept": adopted.kept}


def _lent_lines(state: LoanStatus | None) -> Sequence[str]:
    if state is None:
        return ()
    return [
        f"{loan.gpu} to {loan.borrower}, until its epilog gives it back: {why}" for loan, why in state.loans.items()
    ]


def _damaged_loans(state: LoanStatus | None) -> Sequence[str]:
    damaged = {} if state is None else state.damaged
    return [f"{gpu} is lent to nobody knows whom: {path} cannot be read" for gpu, path in damaged.items()]


def _socket(config: Path, socket: Path | None) -> Path:
    if socket is not None:
        return socket
    return load(config).socket
