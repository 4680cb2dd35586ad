"""What Slurm's daemons say about themselves, asked with Slurm's own commands from within their machine.

Each question takes the record of the daemon that it is about: its pid leads into the machine.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any

from dynamig.errors import Unavailable
from dynamig.slurm import gres
from lab.api import TIMEOUT_S
from lab.commands import clean_env, run
from lab.processes import Record

COMMAND_S = 10.0
TOKEN_S = 60
TAKES_JOBS = frozenset({"IDLE", "MIXED", "ALLOCATED"})
HARMLESS = frozenset({"COMPLETING", "PLANNED", "RESERVED"})
"""Further flags of a node that takes jobs. All others say that something is wrong with it, or that it is drained."""


def inside(record: Record, *argv: str) -> str:
    """Standard output of a command in the daemon's machine. Raises Unavailable if it fails or takes too long."""
    enter = ["nsenter", "--mount", "--pid", f"--target={record.identity.pid}", "--"]
    return run([*enter, *argv], env=clean_env(), timeout_s=COMMAND_S)


def munge_problem(record: Record) -> str | None:
    inside(record, "munge", "--no-input")
    return None


def controller_problem(record: Record) -> str | None:
    answer = inside(record, "scontrol", "ping")
    return None if " is UP" in answer else answer.strip()


def show_node(record: Record, node: str) -> Mapping[str, Any]:
    shown: Mapping[str, Any] = json.loads(inside(record, "scontrol", "--json", "show", "node", node))["nodes"][0]
    return shown


def node_problem(node: Mapping[str, Any], wanted: str, since: float) -> str | None:
    """Why a node does not take jobs by word of a slurmd that was started at `since`; None if it does."""
    states = set(node["state"])
    if not states & TAKES_JOBS or states - TAKES_JOBS - HARMLESS:
        return f"node is {'+'.join(node['state'])}: {node['reason'] or 'no reason given'}"
    if node["slurmd_start_time"]["number"] < int(since):
        return "this slurmd has not registered yet"
    if totals(node["gres"]) != totals(wanted):
        return f"node has GRES {node['gres']!r}, not {wanted!r}"
    return None


def totals(text: str) -> dict[str, int]:
    """Number of each kind of GRES: slurmctld adds types and sockets to what the configuration says."""
    records = gres.parse(text)
    return {record.name: gres.total(records, record.name) for record in records}


def token(text: str) -> str:
    """The token in the output of `scontrol token`."""
    name, _, value = text.strip().partition("=")
    if name != "SLURM_JWT":
        raise Unavailable("NO_TOKEN", f"scontrol token said {text[:60]!r}", "python -m lab status")
    return value


def rest_problem(record: Record, port: int) -> str | None:
    ours = token(inside(record, "scontrol", "token", "username=root", f"lifespan={TOKEN_S}"))
    headers = {"X-SLURM-USER-NAME": "root", "X-SLURM-USER-TOKEN": ours}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/slurm/v0.0.45/ping/", headers=headers)
        response = connection.getresponse()
        pings = json.loads(response.read())["pings"] if response.status == 200 else []
        return None if any(ping["responding"] for ping in pings) else f"ping: {response.status}, no controller"
    except (OSError, http.client.HTTPException) as error:
        return f"port {port}: {error}"
    finally:
        connection.close()
