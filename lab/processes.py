"""Which process is ours, and how it is stopped.

Rule of the file: a process is only ever signalled through a pidfd, after its start time has been compared with the
recorded one while the pidfd was held. A pid that was reused in between can therefore never be hit.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dynamig.errors import Refused, Unavailable

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
AFTER_KILL_S = 20.0
"""How long a killed process may take to vanish (a pid namespace with many containers needs a second or two)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for ever: `start` is field 22 of /proc/PID/stat (clock ticks since the boot named by `boot`)."""

    pid: int
    start: int
    boot: str


@dataclass(frozen=True, slots=True)
class Record:
    """What is on disk about a daemon that was started: who it is, what it was made from, and when (Unix seconds)."""

    name: str
    identity: Identity
    digest: str
    since: float
    machine: str | None
    is_machine: bool


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that the lab needs (proc_pid_stat(5))."""

    state: str
    session: int
    start: int


def parse_stat(text: str) -> Stat:
    """The command name stands in brackets and may hold brackets and blanks itself, so the last one counts."""
    fields = text.rpartition(")")[2].split()
    return Stat(state=fields[0], session=int(fields[3]), start=int(fields[19]))


def read_stat(pid: int) -> Stat | None:
    """None if there is no such process (any more)."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return parse_stat(Path(f"/proc/{pid}/stat").read_text())
    return None


def alive(identity: Identity) -> bool:
    """A zombie is not alive: it holds nothing but its pid."""
    stat = read_stat(identity.pid)
    return (
        stat is not None
        and stat.start == identity.start
        and stat.state not in "ZX"
        and BOOT_ID.read_text().strip() == identity.boot
    )


def read_record(path: Path) -> Record | None:
    """The record at `path`; None if there is none. Raises Refused if the file is not a record."""
    try:
        data = json.loads(path.read_text())
        identity = Identity(int(data["pid"]), int(data["start"]), str(data["boot"]))
        return Record(
            name=path.stem,
            identity=identity,
            digest=str(data["digest"]),
            since=float(data["since"]),
            machine=data["machine"],
            is_machine=bool(data["is_machine"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise Refused("BAD_RECORD", f"{path} is not a daemon's record: {error}", "remove the file") from error


@contextmanager
def held(identity: Identity) -> Iterator[int | None]:
    """A pidfd of exactly this process for the block, or None if it is gone."""
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield handle if alive(identity) else None
    finally:
        os.close(handle)


def send(identity: Identity, number: signal.Signals) -> bool:
    """Signal the process; False if it is gone already."""
    with held(identity) as handle:
        if handle is None:
            return False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
            return True
        return False


def wait_gone(identity: Identity, seconds: float) -> bool:
    """True once the process has ended; False if it still runs after `seconds`. It need not be our child."""
    with held(identity) as handle:
        if handle is None:
            return True
        waiter = select.poll()
        waiter.register(handle, select.POLLIN)
        return bool(waiter.poll(seconds * 1000))


def stop(name: str, identity: Identity, grace_s: float) -> None:
    """The process has ended: TERM first, KILL after `grace_s` seconds (0: KILL at once).

    Raises: Unavailable if even KILL does not end it (a process stuck in the kernel); asking again may help.
    """
    if grace_s > 0:
        send(identity, signal.SIGTERM)
        send(identity, signal.SIGCONT)  # a stopped process would not see TERM
        if wait_gone(identity, grace_s):
            return
    send(identity, signal.SIGKILL)
    if not wait_gone(identity, AFTER_KILL_S):
        raise Unavailable(
            "WILL_NOT_DIE", f"{name} (pid {identity.pid}) survives SIGKILL", "see /proc/PID/stack, try again"
        )


def session_members(identity: Identity) -> tuple[Identity, ...]:
    """Processes in the session that the daemon leads, itself excepted: its children, also after it has died.

    The kernel does not hand out a pid again while it names a session, so members of a session with our number are
    ours unless another process leads it now.
    """
    leader = read_stat(identity.pid)
    if leader is not None and leader.start != identity.start:
        return ()
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := read_stat(int(entry.name))) is not None:
            member = Identity(int(entry.name), stat.start, identity.boot)
            if stat.session == identity.pid and member.pid != identity.pid and stat.state not in "ZX":
                members.append(member)
    return tuple(members)


def stop_session(name: str, identity: Identity, grace_s: float) -> None:
    """The daemon and everything it started in its session have ended."""
    stop(name, identity, grace_s)
    if BOOT_ID.read_text().strip() != identity.boot:
        return
    for member in session_members(identity):
        stop(f"a child of {name}", member, 0)


def age(record: Record) -> float:
    """Seconds since the daemon was started."""
    return time.time() - record.since
