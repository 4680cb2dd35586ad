"""Native jobs that watch the promise: on every node one waits for all GPUs, and looks at them each second that it runs.

A job's looks are those of `nvml-list`, a reader that shares no code with driver or model, and of `/proc`: which GPUs'
device files lie in another mount namespace, that is in a container. One look that finds a GPU instance on the job's
GPUs, or one of these GPUs in a container, is a violation: a pod that has a GPU whole leaves no instance to find. The
jobs are root's, because NVML shows GPU instances only to who may make them, and the kernel a process's root only to
whom it obeys: a plain user's job would see nothing, whatever there is.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dynamig.errors import Unavailable
from lab.lab import Lab
from lab.slurm.daemons import resume
from tests.e2e.cluster import until

USER = "root"
ID_TWICE = "Duplicate jobid"
"""The reason with which slurmctld 26.05.5 drains a node that still runs a job, forgotten in a crash of slurmctld, whose
id has been given out again. The second job is held (`launch failed requeued held`). A person ends both."""

LASTS_S = 3
"""Seconds that a job runs once it has started."""

STUCK_S = 80.0
"""Seconds that a job may be RUNNING: more than a prolog waits. slurmd killed before the script began leaves one so, and
so does a slurmctld that was thrown back to a time when it still ran."""

LOOKS = """#!/bin/sh
in_containers() {
  here=$(stat -Lc %i /proc/self/ns/mnt) || { echo unreadable; return; }
  stat -Lc '%i %n' /proc/[0-9]*/ns/mnt 2>/dev/null | while read -r space process; do
    [ "$space" = "$here" ] || for gpu in "${process%ns/mnt}"root/dev/nvidia[0-9]*; do
      [ ! -e "$gpu" ] || echo "${gpu##*/nvidia}"
    done
  done | sort -un | paste -sd, -
}
look() {
  list=$(nvml-list) || list=unreadable
  inside=$(in_containers)
  echo "LOOK $SLURM_JOB_ID $SLURM_JOB_GPUS $(date +%s) ${inside:-none} $list"
}
look
for second in $(seq {seconds}); do sleep 1; look; done
"""


@dataclass(frozen=True, slots=True)
class Look:
    """What a job saw at a time (seconds of the epoch). `instances`: GPU instances on GPUs of the job, as listed;
    `in_containers`: minors of those of its GPUs that were in a container."""

    node: str
    job: int
    at: int
    instances: tuple[str, ...] = ()
    in_containers: tuple[int, ...] = ()


class NativeJobs:
    """From `start` to `finish` one job for all GPUs is queued on each node, in a partition that yields to holds, and
    queued again when it has ended, or was turned away.

    These jobs make ids come twice when slurmctld is killed, so what a person does then is done here too."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._name = f"native-{uuid.uuid4().hex[:8]}"
        self._number = 0
        self._running_since: dict[str, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No job is queued any more, and none is left queued."""
        if self._thread.is_alive():
            self._stopping.set()
            self._thread.join()
            self._lab.slurm("scancel", f"--user={USER}")

    def finish(self, within: float = 150.0) -> list[Look]:
        """All looks, once each node's GPUs were looked at again: nothing keeps native jobs off any more."""
        begun = time.time()

        def looked_again() -> None:
            late = {look.node for look in self.looks() if look.at > begun}
            assert late == set(self._lab.nodes), f"native jobs run again on {late or 'no node'} only"

        until(looked_again, within=within, every=1.0, on_timeout=lambda: self._lab.slurm("squeue"))
        self.stop()
        return self.looks()

    def looks(self) -> list[Look]:
        return [look for node in self._lab.nodes for look in self._looks_on(node)]

    def _looks_on(self, node: str) -> Iterator[Look]:
        lines = self._lab.node(node).run("sh", "-c", f"cat ~{USER}/{self._name}-*.out 2>/dev/null || :").splitlines()
        for line in lines:
            if line.startswith("LOOK "):  # slurmstepd writes there too, of a job that is cancelled
                yield read_look(node, line)

    def _run(self) -> None:
        while not self._stopping.wait(0.5):
            try:
                self._see_to_it()
            except Unavailable:
                continue  # slurmctld is being killed: that is what the tests do

    def _see_to_it(self) -> None:
        queued = self._queue()
        for node in self._lab.nodes:
            mine = {name: job for name, job in queued.items() if name.startswith(f"{self._name}-{node}-")}
            for name, (job_id, state, reason) in mine.items():
                if "held" in reason or (state == "RUNNING" and self._is_stuck(name)):
                    self._lab.slurm("scancel", job_id)
            if not mine:
                self._submit(node)
        for node, reason in drained(self._lab).items():
            if reason.startswith(ID_TWICE):
                resume(self._lab.layout, node)

    def _queue(self) -> dict[str, tuple[str, str, str]]:
        """Job name to (id, state, reason) of what has not ended. Names, because ids are given out again."""
        lines = self._lab.slurm("squeue", "--noheader", f"--user={USER}", "--format=%j %A %T %r").splitlines()
        return {name: (job_id, state, reason) for name, job_id, state, reason in (li.split(" ", 3) for li in lines)}

    def _is_stuck(self, name: str) -> bool:
        return time.monotonic() - self._running_since.setdefault(name, time.monotonic()) > STUCK_S

    def _submit(self, node: str) -> None:
        self._number += 1
        name = f"{self._name}-{node}-{self._number}"
        gpus = next(spec.gpu_count for spec in self._lab.spec.nodes if spec.name == node)
        what = (f"--gres=gpu:{gpus}", f"--nodelist={node}", "--partition=low", "--time=5")
        script = LOOKS.replace("{seconds}", str(LASTS_S))
        self._lab.submit(script, *what, f"--job-name={name}", f"--output={name}.out", user=USER)


def drained(lab: Lab) -> dict[str, str]:
    """Nodes that are drained, and why."""
    lines = lab.slurm("sinfo", "--noheader", "--Node", "--list-reasons", "--format=%N %E").splitlines()
    return dict(line.split(" ", 1) for line in lines)


def read_look(node: str, line: str) -> Look:
    """Raises ValueError for a look at which the reader failed."""
    _, job, indices, at, inside, listed = line.split(" ", 5)
    gpus = _numbers(indices)
    found = [i for gpu in json.loads(listed)["gpus"] if gpu["minor"] in gpus for i in _instances(gpu)]
    in_containers = set[int]() if inside == "none" else gpus & _numbers(inside)
    return Look(node, int(job), int(at), tuple(found), tuple(sorted(in_containers)))


def _numbers(text: str) -> set[int]:
    return {int(number) for number in text.split(",")}


def _instances(gpu: dict[str, Any]) -> Iterator[str]:
    if gpu["mig_current"] and "gpu_instances" not in gpu:
        raise ValueError(f"the reader may not see what is on GPU {gpu['uuid']}")
    for instance in gpu.get("gpu_instances", ()):
        yield f"profile {instance['profile_id']} at {instance['start']} of {gpu['uuid']}"


def violations(looks: list[Look]) -> list[Look]:
    return [look for look in looks if look.instances or look.in_containers]
