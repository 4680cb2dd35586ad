"""Only the recorded process is ever signalled; starting and stopping real (small) ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynamig.errors import Refused
from lab import processes
from lab.machines import SPAWN
from lab.processes import Identity, Record

Spawn = Callable[..., Record]


def test_stat_of_a_process_with_an_evil_name() -> None:
    fields = "S 1 42 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 1"
    stat = processes.parse_stat(f"42 (a) b (c) S) {fields}")
    assert (stat.state, stat.session, stat.start) == ("S", 77, 987654)


def order(folder: Path, *argv: str) -> dict[str, Any]:
    return {
        "record": str(folder / "d.json"),
        "log": str(folder / "d.log"),
        "argv": argv,
        "env": {"PATH": "/usr/bin:/bin", "WORD": "hello"},
        "join": None,
        "new": False,
        "note": {"digest": "x", "since": time.time(), "machine": None, "is_machine": False},
    }


def starter(what: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", str(SPAWN)]
    return subprocess.run(argv, input=json.dumps(what), capture_output=True, text=True, check=False, timeout=30)


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Start a process the way the lab does; it is killed at the end."""
    started: list[Record] = []

    def start(*argv: str) -> Record:
        done = starter(order(tmp_path, *argv))
        assert done.returncode == 0, done.stderr
        record = processes.read_record(tmp_path / "d.json")
        assert record is not None
        started.append(record)
        return record

    yield start
    for record in started:
        processes.stop_session("test", record.identity, 0)


def eventually(question: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not question() and time.monotonic() < deadline:
        time.sleep(0.02)
    return question()


def test_a_spawned_daemon_is_recorded_logs_and_leads_a_session(spawn: Spawn, tmp_path: Path) -> None:
    record = spawn("sh", "-c", 'echo "$WORD"; exec sleep 60')
    assert processes.alive(record.identity)
    assert os.getsid(record.identity.pid) == record.identity.pid
    assert eventually(lambda: (tmp_path / "d.log").read_text() == "hello\n")


def test_a_daemon_ignores_no_signal_because_its_starter_did(spawn: Spawn) -> None:
    status = Path(f"/proc/{spawn('sleep', '60').identity.pid}/status").read_text()
    (ignored,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    settable = sum(1 << (number - 1) for number in signal.valid_signals())  # 32 and 33 are the C library's own
    assert int(ignored, 16) & settable == 0


def test_a_program_that_is_not_there_is_an_error_of_the_start(tmp_path: Path) -> None:
    done = starter(order(tmp_path, "/no/such/program"))
    assert done.returncode == 1
    assert "/no/such/program" in done.stderr


def test_no_daemon_without_a_record(tmp_path: Path) -> None:
    """The record cannot be written: then nothing may run."""
    what = order(tmp_path, "sh", "-c", f"touch {tmp_path}/ran")
    (tmp_path / "d.json").mkdir()
    assert starter(what).returncode == 1
    time.sleep(0.3)
    assert not (tmp_path / "ran").exists()


def test_stop_ends_a_daemon_that_listens_to_term(spawn: Spawn) -> None:
    record = spawn("sleep", "60")
    began = time.monotonic()
    processes.stop("sleep", record.identity, grace_s=30)
    assert not processes.alive(record.identity)
    assert time.monotonic() - began < 10


def test_stop_kills_what_does_not_listen(spawn: Spawn, tmp_path: Path) -> None:
    record = spawn("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done")
    assert eventually(lambda: "deaf" in (tmp_path / "d.log").read_text())
    processes.stop("sh", record.identity, grace_s=0.2)
    assert not processes.alive(record.identity)


def test_stop_session_takes_the_children_too(spawn: Spawn) -> None:
    record = spawn("sh", "-c", "sleep 60 & sleep 60 & wait")
    assert eventually(lambda: len(processes.session_members(record.identity)) == 2)
    children = processes.session_members(record.identity)
    processes.send(record.identity, signal.SIGKILL)
    processes.wait_gone(record.identity, 10)
    processes.stop_session("sh", record.identity, 1)
    assert not any(processes.alive(child) for child in children)


@pytest.mark.parametrize("change", [{"start": 1}, {"boot": "another boot"}])
def test_a_reused_pid_is_never_signalled(spawn: Spawn, change: dict[str, Any]) -> None:
    record = spawn("sh", "-c", "sleep 60 & wait")
    assert eventually(lambda: len(processes.session_members(record.identity)) == 1)
    (child,) = processes.session_members(record.identity)
    stranger = replace(record.identity, **change)
    assert not processes.alive(stranger)
    assert not processes.send(stranger, signal.SIGKILL)
    processes.stop("stranger", stranger, grace_s=1)
    processes.stop_session("stranger", stranger, grace_s=1)
    assert processes.alive(record.identity)
    assert processes.alive(child)


def test_a_zombie_is_not_alive() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        stat = processes.read_stat(child.pid)
        assert stat is not None
        identity = Identity(child.pid, stat.start, processes.BOOT_ID.read_text().strip())
        assert processes.alive(identity)
        child.kill()
        assert processes.wait_gone(identity, 10)
        assert Path(f"/proc/{child.pid}").exists(), "not reaped yet, so there is a zombie to look at"
        assert not processes.alive(identity)


def test_records_absent_and_damaged(tmp_path: Path) -> None:
    assert processes.read_record(tmp_path / "none.json") is None
    (tmp_path / "bad.json").write_text('{"pid": 1}')
    with pytest.raises(Refused, match=r"bad\.json"):
        processes.read_record(tmp_path / "bad.json")
