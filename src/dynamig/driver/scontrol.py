"""slurmctld's word through `scontrol` on this node: the fence needs it where no slurmrestd and no token is at hand.

Only JSON is read: in the text form a job's name can say `JobState=COMPLETED`. Seen with 26.05.5: for an unknown job
and for a controller that nobody reaches alike, `scontrol --json show job N` exits 0 with no job and no error. So an
empty answer proves nothing; absence is read from the list of all jobs, which carries the time of an answering
controller in `last_update`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from dynamig.protocol.loans import Borrower, JobFacts, NodeFacts
from dynamig.protocol.seen import Found, Gone, Seen, Unknown
from dynamig.slurm import gres

T = TypeVar("T")

UNREADABLE = (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError, AttributeError)


class SlurmWord(Protocol):
    """What slurmctld says. No call takes longer than `within` seconds, or raises; no answer is Unknown."""

    def start_now(self, run: Borrower, *, within: float) -> bool:
        """The earliest start of a run that waits is now; False if slurmctld did not say that it is."""
        ...

    def job(self, job_id: int, *, within: float) -> Seen[JobFacts]: ...
    def node(self, name: str, *, within: float) -> Seen[NodeFacts]: ...
    def has_steps(self, job_id: int, node: str, *, within: float) -> Seen[bool]:
        """Whether a step of the job lives on this node, `node` to Slurm. The node itself is asked, not slurmctld.
        A step that is listed there lives, unless nobody stands behind it."""
        ...


class Scontrol:
    """`command`: argv to which `--json show ...` or `update ...` is added, such as ("/usr/bin/scontrol",)."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)

    def job(self, job_id: int, *, within: float) -> Seen[JobFacts]:
        """One job by its own id: for the id of an array, `scontrol` shows all tasks."""
        return self._seen(lambda: self._job(job_id, within / 2))

    def node(self, name: str, *, within: float) -> Seen[NodeFacts]:
        return self._seen(lambda: self._node(name, within))

    def has_steps(self, job_id: int, node: str, *, within: float) -> Seen[bool]:
        return self._seen(lambda: self._has_steps(job_id, node, within))

    def start_now(self, run: Borrower, *, within: float) -> bool:
        try:
            self._run(within, "update", f"JobId={run.sluid or run.job_id}", "StartTime=now")
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    def _job(self, job_id: int, within: float) -> Seen[JobFacts]:
        if (one := _find_job(self._ask(within, "job", str(job_id)), job_id)) is not None:
            return Found(one)
        everything = self._ask(within, "jobs")
        if (one := _find_job(everything, job_id)) is not None:
            return Found(one)
        if not _answered(everything):
            return Unknown("no slurmctld answered `scontrol show jobs`")
        return Gone(f"slurmctld knows no job {job_id}")

    def _node(self, name: str, within: float) -> Seen[NodeFacts]:
        answer = self._ask(within, "node", name)
        for node in answer["nodes"]:
            if node["name"] == name:
                return Found(NodeFacts(name, frozenset(node["state"]), used_gpus(node["gres"], node["gres_used"])))
        return Unknown(f"slurmctld shows no node {name}")

    def _has_steps(self, job_id: int, node: str, within: float) -> Seen[bool]:
        """Where slurmd's spool folder is not found, 26.05.5 lists no jobs, exits 0 and complains on stderr only."""
        said = self._run(within / 2, "--json", "listjobs", node)
        if said.stderr:
            return Unknown(f"scontrol listjobs: {said.stderr.decode(errors='replace').strip()}")
        if not any(job["job_id"] == job_id for job in _object(said.stdout)["jobs"]):
            return Found(False)
        return Found(not self._all_are_dead(job_id, node, within / 2))

    def _all_are_dead(self, job_id: int, node: str, within: float) -> bool:
        """Whether nobody stands behind any step that the list has. A slurmstepd that was killed, or whose node was,
        leaves its socket, and slurmd keeps it. What keeps us from asking proves nothing of a step that is listed."""
        try:
            return _all_refused(self._call(within, "--json", "listpids", str(job_id), node))
        except (OSError, subprocess.SubprocessError):
            return False

    def _ask(self, within: float, *what: str) -> Mapping[str, Any]:
        return _object(self._run(within, "--json", "show", *what).stdout)

    def _run(self, within: float, *args: str) -> subprocess.CompletedProcess[bytes]:
        done = self._call(within, *args)
        done.check_returncode()
        return done

    def _call(self, within: float, *args: str) -> subprocess.CompletedProcess[bytes]:
        """Whatever it exits with."""
        return subprocess.run(
            [*self._command, *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(within, 0.1),
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )

    def _seen(self, look: Callable[[], Seen[T]]) -> Seen[T]:
        """Whatever keeps us from reading an answer is no answer."""
        try:
            return look()
        except UNREADABLE as error:
            return Unknown(f"{self._command[0]}: {error}")


def _object(text: bytes) -> Mapping[str, Any]:
    answer = json.loads(text)
    if not isinstance(answer, dict):
        raise TypeError(f"scontrol answered {type(answer).__name__}")
    return answer


NOBODY_LISTENS = b"Unable to connect to slurmstepd: Connection refused"
"""What 26.05.5 prints for a step whose socket no process listens on: the kernel's word, ECONNREFUSED. A slurmstepd that
lives but is stopped, or too busy to answer, is waited for instead."""


def _all_refused(listpids: subprocess.CompletedProcess[bytes]) -> bool:
    """Whether `scontrol --json listpids JOB` says of every step that nobody listens, and nothing else. Seen: exit 1 and
    a line for each such step; pids of the other steps, if any lives, on standard output beside them."""
    complaints = listpids.stderr.splitlines()
    only_that = bool(complaints) and all(line.strip() == NOBODY_LISTENS for line in complaints)
    return only_that and listpids.returncode == 1 and not listpids.stdout.strip()


def _find_job(answer: Mapping[str, Any], job_id: int) -> JobFacts | None:
    for job in answer["jobs"]:
        if job["job_id"] == job_id:
            sluid = (job.get("step_id") or {}).get("sluid") or ""  # where data_parser v0.0.45 has it
            return JobFacts(frozenset(job["job_state"]), str(sluid), int(job["restart_cnt"]), _nodes(job))
    return None


def _nodes(job: Mapping[str, Any]) -> frozenset[str]:
    """`job_resources` is null unless the job runs or is suspended. Older data_parsers have a hostlist as text for the
    object of now: then it is not told."""
    nodes = (job.get("job_resources") or {}).get("nodes")
    allocated = nodes.get("allocation") if isinstance(nodes, dict) else None
    return frozenset(str(node["name"]) for node in allocated or ())


def _answered(answer: Mapping[str, Any]) -> bool:
    return not answer["errors"] and int(answer["last_update"]["number"]) > 0


def used_gpus(has: str, used: str) -> frozenset[int]:
    """Slurm indices in use. Raises ValueError where GPUs are counted without saying which (static EXTERNAL nodes)."""
    for record in gres.parse(used):
        if record.name == "gpu" and record.count and not gres.indices(record.where.removeprefix("IDX:")):
            raise ValueError(f"GPUs in use without their indices: {used}")
    return frozenset(gpu.index for gpu in gres.gpus(has, used) if gpu.taken)
