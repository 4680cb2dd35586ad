"""The call log, DIR/trace: one JSON object a line, which clients append (emulator/src/trace.c).

What is not a whole line, as after a full disk, is left out, with a warning of the module's logger.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dynamig.errors import Refused
from dynamig.testing.emulator.node import files_of

_log = logging.getLogger(__name__)

_LATEST = 2**40
"""Seconds that still are a date."""
_BEGINS = '{"t":'
"""How a line begins (emulator/src/trace.c). No text inside one can: quotes are left out of those."""


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One line of the call log. `time`: seconds since the epoch; `us`: microseconds; handles as trace.c spells them."""

    time: float
    pid: int
    call: str
    args: Mapping[str, Any]
    result: int
    us: int


def parse_line(line: str, place: str) -> TracedCall | None:
    """The call of the line, or behind a torn one in it, which the next line follows at once. `place` is for people."""
    at = max(line.rfind(_BEGINS), 0)
    call = _parsed(line[at:])
    if at > 0 or call is None:
        _log.warning("%s is torn, as a full disk leaves it: a call is missing", place)
    return call


def _parsed(text: str) -> TracedCall | None:
    try:
        record = json.loads(text)
        call = TracedCall(record["t"], record["pid"], record["call"], record["args"], record["result"], record["us"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    numbers = type(call.time) in (float, int) and 0 <= call.time < _LATEST
    numbers = numbers and all(type(n) is int for n in (call.pid, call.result, call.us))
    return call if numbers and isinstance(call.call, str) and isinstance(call.args, dict) else None


def read(directory: Path) -> list[TracedCall]:
    """All calls, oldest first; empty if the node keeps no trace."""
    if not (path := directory / "trace").exists():
        return []
    with files_of(directory), path.open(errors="replace") as lines:
        parsed = (parse_line(line, f"{path}: line {number}") for number, line in enumerate(lines, 1))
        return [call for call in parsed if call is not None]


def follow(directory: Path, poll: float) -> Iterator[TracedCall]:
    """Calls as they happen, from now on, without end; in whatever file the trace is by then."""
    path = _kept(directory)
    with files_of(directory):
        lines = path.open("rb")
    lines.seek(0, os.SEEK_END)
    return _calls(path, lines, poll)


def _calls(path: Path, lines: IO[bytes], poll: float) -> Iterator[TracedCall]:
    kept = b""
    try:
        while True:
            kept += lines.readline()
            if kept.endswith(b"\n"):
                call, kept = parse_line(kept.decode(errors="replace"), f"{path}: a line"), b""
                if call is not None:
                    yield call
            elif fresh := _begun_anew(path, lines):
                lines.close()
                lines, kept = fresh, b""
            else:
                time.sleep(poll)
    finally:
        lines.close()


def _begun_anew(path: Path, lines: IO[bytes]) -> IO[bytes] | None:
    """The trace from its beginning, if it is another file than the one that was read to its end, or was cut short."""
    try:
        now, then = path.stat(), os.fstat(lines.fileno())
        anew = (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino) or then.st_size < lines.tell()
        return path.open("rb") if anew else None
    except FileNotFoundError:
        return None  # somebody has removed it; it may come back


def clear(directory: Path) -> None:
    """An empty file takes the place of the log, so that who follows it can tell, and misses nothing of the new one."""
    path = _kept(directory)
    with files_of(directory):
        path = path.resolve()
        fresh = path.with_name(path.name + ".new")
        fresh.write_bytes(b"")
        os.chown(fresh, path.stat().st_uid, path.stat().st_gid)
        shutil.copymode(path, fresh)
        fresh.replace(path)


def _kept(directory: Path) -> Path:
    if not (path := directory / "trace").exists():
        raise Refused("NO_TRACE", f"{directory} keeps no trace", f"touch {path}: clients then write to it")
    return path
