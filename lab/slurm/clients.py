"""Slurm's own commands, run by somebody in the control plane's machine."""

from __future__ import annotations

from collections.abc import Sequence

from dynamig.errors import Unavailable
from lab import machines
from lab.spec import CONTROL, Layout

AT_HOME = 'cd && exec "$@"'
"""sbatch takes the folder it runs in for the job's; homes exist in every machine, each with its own."""


def run_as(layout: Layout, user: str, argv: Sequence[str], stdin: str | None = None) -> str:
    """Standard output. Raises Unavailable, with the command's last words, if it fails."""
    return machines.run_inside(layout, CONTROL, as_user(user, argv), stdin=stdin)


def as_user(user: str, argv: Sequence[str]) -> list[str]:
    """The command line, inside the machine, that runs `argv` as the user and in his home."""
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env", "--"]
    return [*become, "sh", "-c", AT_HOME, "sh", *argv]


def job_id(parsable: str) -> int:
    """From the output of `sbatch --parsable`: the id, and behind a semicolon the cluster's name, if there are some."""
    number = parsable.strip().partition(";")[0]
    if not number.isdigit():
        raise Unavailable("NO_JOB", f"sbatch said {parsable[:100]!r}")
    return int(number)
