"""Start, stop and look at daemons, and run commands inside a machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
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
HUNG_S = 20.0
"""How long a daemon that has been up for a while may take to be ready again before it counts as hung."""


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


def ensure(layout: Layout, daemon: Daemon, cancel: Cancel, tell: Callable[[str], None]) -> None:
    """The daemon runs as it should, and is ready. One that runs but does not get ready is started anew, once.

    `tell` hears why it is not ready yet.
    Raises: Unavailable with the end of its log if it ends or does not get ready in time.
    """
    if (record := running(layout, daemon.name)) is not None:
        patience = max(HUNG_S, daemon.ready_s - processes.age(record))
        if record.digest == daemon.digest() and not_ready(daemon, record, patience, cancel, tell) is None:
            return
        stop(daemon, record)
    record = start(layout, daemon)
    if reason := not_ready(daemon, record, daemon.ready_s, cancel, tell):
        raise Unavailable("NOT_READY", f"{daemon.name} {reason}{tail(layout, daemon.name)}", "`lab logs` shows more")


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


def not_ready(
    daemon: Daemon, record: Record, seconds: float, cancel: Cancel, tell: Callable[[str], None]
) -> str | None:
    """Wait for it to be ready; None if it is, else why not, as the end of a sentence."""
    ended = False

    def why_not() -> str | None:
        nonlocal ended
        ended = not processes.alive(record.identity)
        reason = None if ended else probe(daemon.probe, record)
        tell(reason or "")
        return reason

    reason = wait_for(why_not, seconds, cancel)
    return "has ended" if ended else reason and f"is not ready after {seconds:.0f} s: {reason}"


def tail(layout: Layout, name: str) -> str:
    """The end of a daemon's log as the end of a sentence."""
    path = layout.log(name)
    lines = path.read_text(errors="replace").splitlines()[-LOG_TAIL:] if path.exists() else []
    return "".join(f"\n    {line[:300]}" for line in [f"; the end of {path}:", *lines]) if lines else ""


def enter_command(layout: Layout, machine: str) -> list[str]:
    """Prefix that runs a command inside a machine. Raises Unavailable if the machine is not up."""
    pid, _ = _machine_identity(layout, machine)
    return ["nsenter", "--mount", "--pid", "--target", str(pid), "--"]


def run_inside(
    layout: Layout, machine: str, argv: Sequence[str], *, stdin: str | None = None, timeout_s: float = 120
) -> str:
    """Standard output of a command inside a machine."""
    return run([*enter_command(layout, machine), *argv], stdin=stdin, env=clean_env(), timeout_s=timeout_s)


def _machine_identity(layout: Layout, machine: str) -> tuple[int, int]:
    record = running(layout, machine_name(machine))
    if record is None:
        raise Unavailable("MACHINE_DOWN", f"machine {machine} is not up", "python -m lab up")
    return record.identity.pid, record.identity.start


def tail_follow(path: Path, lines: int, follow: bool) -> None:
    """Print the end of a file, and with `follow` what is added to it, until interrupted."""
    subprocess.run(["tail", "-n", str(lines), *(["-F"] if follow else []), str(path)], check=False)
