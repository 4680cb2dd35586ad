"""Start, stop and look at daemons, and run commands inside a machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dynamig.errors import Unavailable
from lab import ports, processes
from lab.commands import clean_env, run
from lab.daemons import Daemon, machine_name
from lab.execute import Cancel, wait_for
from lab.probes import probe
from lab.processes import Record
from lab.spec import Layout

SPAWN = Path(__file__).parent / "spawn.py"
LOG_TAIL = 12


@dataclass(frozen=True, slots=True)
class Seen:
    """What a daemon is at this moment. `reason` is None when it is ready."""

    record: Record | None
    reason: str | None
    changed: bool = False
    """It was made from something else than it would be made from now."""

    @property
    def done(self) -> bool:
        return self.reason is None and not self.changed


def running(layout: Layout, name: str) -> Record | None:
    """The daemon's record, if the process is alive."""
    record = processes.read_record(layout.record(name))
    return record if record is not None and processes.alive(record.identity) else None


def look(layout: Layout, daemon: Daemon) -> Seen:
    record = running(layout, daemon.name)
    if record is None:
        return Seen(None, "not running")
    return Seen(record, probe(daemon.probe, record), changed=record.digest != daemon.digest())


def ensure(layout: Layout, daemon: Daemon, cancel: Cancel) -> None:
    """The daemon runs as it should, and is ready.

    Raises: Unavailable with the end of its log if it ends or does not get ready in time.
    """
    record = running(layout, daemon.name)
    if record is not None and record.digest != daemon.digest():
        stop(daemon, record)
        record = None
    if record is None:
        record = start(layout, daemon)
    await_ready(layout, daemon, record, cancel)


def start(layout: Layout, daemon: Daemon) -> Record:
    """The process runs and is recorded; it may not be ready yet."""
    if taken := ports.held(daemon.ports):
        who = "; ".join(f"port {port}: {holder}" for port, holder in taken.items())
        raise Unavailable("PORT_IN_USE", f"{daemon.name}: {who}", "stop it, or use another --base-port")
    order = {
        "record": str(layout.record(daemon.name)),
        "log": str(layout.log(daemon.name)),
        "argv": daemon.argv,
        "env": clean_env(**dict(daemon.env)),
        "join": None if daemon.makes_machine or daemon.machine is None else _machine_identity(layout, daemon.machine),
        "new": daemon.makes_machine,
        "note": {
            "digest": daemon.digest(),
            "since": time.time(),
            "machine": daemon.machine,
            "is_machine": daemon.makes_machine,
        },
    }
    run([sys.executable, "-I", str(SPAWN)], stdin=json.dumps(order))
    record = processes.read_record(layout.record(daemon.name))
    assert record is not None
    return record


def stop(daemon: Daemon, record: Record) -> None:
    """The process has ended; of a daemon on the host its children too."""
    if daemon.machine is None:
        processes.stop_session(daemon.name, record.identity, daemon.grace_s)
    else:
        processes.stop(daemon.name, record.identity, daemon.grace_s)


def await_ready(layout: Layout, daemon: Daemon, record: Record, cancel: Cancel) -> None:
    """Raises Unavailable, with the end of the log, if it ends or takes too long."""

    def why_not() -> str | None:
        if not processes.alive(record.identity):
            raise Unavailable("ENDED", f"{daemon.name} has ended{tail(layout, daemon.name)}", "`lab logs` shows more")
        return probe(daemon.probe, record)

    if reason := wait_for(why_not, daemon.ready_s, cancel):
        what = f"{daemon.name} is not ready after {daemon.ready_s:.0f} s: {reason}{tail(layout, daemon.name)}"
        raise Unavailable("NOT_READY", what, f"see {layout.log(daemon.name)}")


def tail(layout: Layout, name: str) -> str:
    """The end of a daemon's log as the end of a sentence."""
    path = layout.log(name)
    lines = path.read_text(errors="replace").splitlines()[-LOG_TAIL:] if path.exists() else []
    return "".join(f"\n    {line[:300]}" for line in [f"; the end of {path}:", *lines]) if lines else ""


def enter_command(layout: Layout, machine: str) -> list[str]:
    """Prefix that runs a command inside a machine. Raises Unavailable if the machine is not up."""
    pid, _ = _machine_identity(layout, machine)
    return ["nsenter", "--mount", "--pid", "--target", str(pid), "--"]


def run_inside(layout: Layout, machine: str, argv: Sequence[str], *, timeout_s: float = 120) -> str:
    """Standard output of a command inside a machine."""
    return run([*enter_command(layout, machine), *argv], env=clean_env(), timeout_s=timeout_s)


def _machine_identity(layout: Layout, machine: str) -> tuple[int, int]:
    record = running(layout, machine_name(machine))
    if record is None:
        raise Unavailable("MACHINE_DOWN", f"machine {machine} is not up", "python -m lab up")
    return record.identity.pid, record.identity.start


def tail_follow(path: Path, lines: int, follow: bool) -> None:
    """Print the end of a file, and with `follow` what is added to it, until interrupted."""
    subprocess.run(["tail", "-n", str(lines), *(["-F"] if follow else []), str(path)], check=False)
