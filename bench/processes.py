"""Processes that are started for a bench: how long until they say a word, and how much memory they have then."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dynamig.errors import Unavailable

KIB_PER_MIB = 1024
LIBRARIES = (
    "google.protobuf",
    "grpc",
    "httpx2",
    "lightkube",
    "msgspec",
    "pydantic",
    "pynvml",
    "rich",
    "structlog",
    "typer",
    "yaml",
)
"""Those of our dependencies that a driver imports; a unit test sees to it."""

SAYS_READY = "ready"


@dataclass(frozen=True, slots=True)
class Said:
    """A process that has printed the awaited word. `seconds`: since before it was started."""

    pid: int
    seconds: float
    lines: tuple[str, ...]


@contextmanager
def started(argv: Sequence[str], word: str, *, env: Mapping[str, str] | None = None) -> Iterator[Said]:
    """The process has printed a line with `word`; it is killed when the block ends.

    Raises: Unavailable with what it printed, if it ended before that.
    """
    begun = time.perf_counter()
    process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield _listen(process, word.encode(), begun)
    finally:
        process.kill()
        process.communicate()


def _listen(process: subprocess.Popen[bytes], word: bytes, begun: float) -> Said:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.decode(errors="replace").rstrip())
        if word in line:
            return Said(process.pid, time.perf_counter() - begun, tuple(lines))
    raise Unavailable("BENCH_FAILED", "\n".join(lines[-20:]) or "the process ended without a word", str(process.args))


def importing(*modules: str) -> list[str]:
    """A Python process that imports the modules, says that it is ready, and waits."""
    statements = [*(f"import {module}" for module in modules), f"print({SAYS_READY!r}, flush=True)", "input()"]
    return [sys.executable, "-c", "\n".join(statements)]


def rss_mib(pid: int) -> float:
    """Resident memory of a process, pages shared with others included. Source: proc_pid_status(5), VmRSS."""
    return _memory(Path(f"/proc/{pid}/status"), "VmRSS")


def private_mib(pid: int) -> float:
    """Memory that the process alone has: what the machine gets back when it ends. Source: smaps_rollup."""
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    return _memory(rollup, "Private_Clean") + _memory(rollup, "Private_Dirty")


def _memory(path: Path, field: str) -> float:
    try:
        text = path.read_text()
    except OSError as error:
        raise Unavailable("NO_PROCESS", f"{path}: {error.strerror}", "it ended while it was measured") from error
    line = next(line for line in text.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / KIB_PER_MIB


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used so far, all threads. Source: proc_pid_stat(5), fields 14 and 15."""
    user, system = _stat(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def age_seconds(pid: int) -> float:
    """How long a process has been there. Source: proc_pid_stat(5), field 22."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(_stat(pid)[19]) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the third on: the second, the name, may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError as error:
        raise Unavailable("NO_PROCESS", f"process {pid}: {error.strerror}", "it ended while it was measured") from error
