"""Run a program and wait for it: with its output in the error when it fails, and with an end when the lab gives up."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dynamig.errors import Unavailable
from lab.execute import Cancel

TAIL = 15
"""Lines of a failed program's output that its error shows."""

DIE_WITH_ME = ("setpriv", "--pdeathsig", "KILL")
"""Prefix for every program: it ends when the lab is killed, and so cannot act behind the back of the next one.

Source: prctl(2), PR_SET_PDEATHSIG; what counts is the thread that started it, and that thread waits for it here.
"""


def run(
    argv: Sequence[str],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 120,
) -> str:
    """Standard output of a program that takes seconds. It ends with the lab, if that is killed meanwhile.

    Raises: Unavailable, with the program's last words, if it fails.
    """
    try:
        done = subprocess.run(
            [*DIE_WITH_ME, *argv],
            input=stdin,
            env=env,
            cwd=cwd,
            timeout=timeout_s,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable("TOO_SLOW", f"{' '.join(argv[:4])} took more than {timeout_s:.0f} s") from error
    if done.returncode != 0:
        raise failed(argv, done.returncode, (done.stderr or done.stdout).splitlines())
    return done.stdout


def run_long(
    argv: Sequence[str],
    on_line: Callable[[str], None],
    cancel: Cancel,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path,
) -> None:
    """A program that takes minutes has succeeded; each line it wrote went to `log` and to `on_line`.

    Raises: Unavailable if it fails, Cancelled if the lab gives up.
    """
    tail: deque[str] = deque(maxlen=TAIL)
    with (
        log.open("a") as file,
        subprocess.Popen(
            [*DIE_WITH_ME, *argv],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        stopper = cancel.on_set(process.kill)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                file.flush()
                tail.append(line.rstrip())
                on_line(line.rstrip())
        finally:
            stopper()
    cancel.check()
    if process.returncode != 0:
        raise failed(argv, process.returncode, [*tail, f"(all of it: {log})"])


def failed(argv: Sequence[str], status: int, lines: Sequence[str]) -> Unavailable:
    words = "\n    ".join(lines[-TAIL:])
    return Unavailable("COMMAND_FAILED", f"`{' '.join(argv[:6])}` ended with status {status}:\n    {words}")


def clean_env(**more: str) -> dict[str, str]:
    """The little that a daemon needs from the caller's environment, so that labs behave alike everywhere."""
    keep = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **keep, **more}
