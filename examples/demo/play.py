"""The story: who comes, what is done, what has to have happened before it goes on."""

from __future__ import annotations

import time

from dynamig.errors import Unavailable
from examples.demo import cast
from examples.demo.cast import NativeJob, Role
from examples.demo.desk import Desk
from examples.demo.evidence import Evidence
from examples.demo.screen import Screen
from examples.demo.seen import JobSeen, Moment, Snapshot, Visible, mine
from examples.demo.stage import Stage

WAITS_S = 3.0
"""How long those who wait are watched before somebody makes room."""


class Play:
    """`evidence` plays everything up to the last pod's end, and tells what was seen on the way."""

    def __init__(self, stage: Stage, screen: Screen) -> None:
        self._stage = stage
        self._screen = screen
        self._desk = Desk(stage, screen)
        self._number = 0

    def evidence(self) -> Evidence:
        self._native_jobs()
        self._notebook()
        self._sharing()
        self._whole_gpu()
        self._pod_waits()
        full = self._job_waits()
        later, pod_waited_s = self._native_job_ends()
        last, job_waited_s = self._pods_leave()
        ran = ((cast.TRAIN, last), (cast.SIMULATE, full), (cast.EVALUATE, last))
        looks = {job.name: self._desk.looks_of(_native(moment.api, job)) for job, moment in ran}
        return Evidence(full, later, last, self._all_leave(), pod_waited_s, job_waited_s, looks)

    # -- acts ----------------------------------------------------------------------------------------------------------

    def _native_jobs(self) -> None:
        self._act(
            "Slurm's own jobs",
            "Alice submits two jobs, each for a GPU. Slurm's prolog borrows them whole from the nodes' drivers.",
        )
        self._stage.create_namespace()
        for job in (cast.TRAIN, cast.SIMULATE):
            self._desk.submit(job)
        self._stage.until_lent(cast.TRAIN.name, cast.SIMULATE.name)
        self._end_act()

    def _notebook(self) -> None:
        self._act(
            "A notebook",
            "A student asks Kubernetes for profile 1g.10gb. A Slurm job pays for it; then the instance is made.",
        )
        self._enter(cast.NOTEBOOK)
        self._screen.line(f"Jupyter answers; its cell sees {listed(self._desk.notebook())}")
        self._end_act()

    def _sharing(self) -> None:
        self._act(
            "Two more on the same GPU",
            "Inference asks for 30 GiB, whatever the profile is called; embedding for much memory and little else.",
        )
        for role in (cast.INFERENCE, cast.EMBEDDING):
            self._enter(role)
            self._look_inside(role)
        self._end_act()

    def _whole_gpu(self) -> None:
        self._act("A whole GPU for a pod", "Training takes all shards of a GPU in Slurm, and the GPU itself.")
        self._enter(cast.TRAINING)
        self._look_inside(cast.TRAINING)
        self._desk.queue()
        self._end_act()

    def _pod_waits(self) -> None:
        self._act(
            "A pod waits for native jobs",
            "A pipeline wants three slices of one GPU, and no GPU is empty. It is told what Slurm says.",
        )
        self._desk.apply(cast.PIPELINE)
        self._until_told()
        self._end_act()

    def _job_waits(self) -> Moment:
        self._act(
            "A native job waits for pods",
            "Alice wants one more GPU. Slurm knows that pods have the rest: the job stands in the same queue.",
        )
        self._desk.submit(cast.EVALUATE)

        def waits(now: Snapshot) -> bool:
            job = now.native(cast.EVALUATE.name)
            return job is not None and job.held_back

        self._stage.until(f"{cast.EVALUATE.name} waits", waits)
        self._stage.watch_for(WAITS_S)
        self._desk.queue()
        self._end_act()
        self._until_told()
        return self._stage.moment()

    def _native_job_ends(self) -> tuple[Moment, float]:
        """Seconds from there until the pod that waited runs."""
        self._act(
            "A native job ends",
            "Simulate gives its GPU back. Pipeline was first in the queue: the GPU is cut in three for it.",
        )
        began = time.monotonic()
        self._desk.cancel(_native(self._stage.look(), cast.SIMULATE))
        self._stage.until_served(cast.PIPELINE.pod)
        waited_s = time.monotonic() - began
        self._look_inside(cast.PIPELINE)
        self._end_act()
        return self._stage.moment(), waited_s

    def _pods_leave(self) -> tuple[Moment, float]:
        """Seconds from there until the native job that waited runs."""
        self._act(
            "The pods of one GPU leave",
            "When the last instance is destroyed the GPU is whole again, and evaluate gets it.",
        )
        pods = [role.pod for role in cast.SHARING]
        began = time.monotonic()
        self._desk.delete("pod", *pods)
        self._stage.until_lent(cast.EVALUATE.name)
        waited_s = time.monotonic() - began
        self._stage.until("the pods gone", lambda now: not any(now.pod(name) for name in pods))
        self._stage.forget(*pods)
        self._stage.watch_for(WAITS_S)
        self._desk.queue()
        self._end_act()
        return self._stage.moment(), waited_s

    def _all_leave(self) -> Moment:
        self._act("All leave", "Instances end with their claims, holds with the instances, loans with the jobs.")
        self._desk.delete("pods,resourceclaims", "--all")
        self._desk.cancel(*(_native(self._stage.look(), job) for job in (cast.TRAIN, cast.EVALUATE)))

        def empty(now: Snapshot) -> bool:
            claims = [name for name in now.claims.values() if name.startswith(f"{cast.NAMESPACE}/")]
            return not now.pods and not claims and not any(map(mine, now.jobs))

        self._stage.until("all pods, claims and jobs gone", empty, [role.pod for role in cast.ROLES])
        self._screen.line("no pod, no claim and no job is left; looking at the GPUs and at the disks of the nodes")
        end = self._stage.settled()
        self._stage.tidy()
        return end

    # -- parts of acts -------------------------------------------------------------------------------------------------

    def _act(self, title: str, sentence: str) -> None:
        self._number += 1
        self._screen.act(self._number, title, sentence)

    def _end_act(self) -> None:
        """The screen has seen how it ended, and there was time to read."""
        self._stage.look()
        self._stage.watch_for(self._screen.reading_s)

    def _enter(self, role: Role) -> None:
        self._desk.apply(role)
        self._stage.until_served(role.pod)

    def _until_told(self) -> None:
        """The pod that waits has been told what Slurm says now."""
        name = cast.PIPELINE.pod

        def told(now: Snapshot) -> bool:
            pod, jobs = now.pod(name), now.paying(name)
            return pod is not None and bool(jobs) and all(j.held_back and j.reason in pod.waits for j in jobs)

        self._stage.until(f"{name} told why it waits", told, [name])

    def _look_inside(self, role: Role) -> None:
        for container in role.sees:
            where = f"{role.pod}/{container}" if len(role.sees) > 1 else role.pod
            self._screen.line(f"{where} sees {listed(self._desk.inside(role.pod, container))}")


def listed(inside: Visible) -> str:
    """What a container sees, in words."""
    if inside.mig:
        devices = ", ".join(f"{uuid} ({device.profile})" for uuid, device in inside.mig.items())
        return f"{len(inside.mig)} MIG device{'s' if len(inside.mig) > 1 else ''}: {devices}"
    return f"{len(inside.gpus)} full GPU{'s' if len(inside.gpus) != 1 else ''}: {', '.join(inside.gpus) or '-'}"


def _native(now: Snapshot, job: NativeJob) -> JobSeen:
    """Raises Unavailable if Slurm has ended it: it runs until somebody does."""
    found = now.native(job.name)
    if found is None:
        raise Unavailable("DEMO_STUCK", f"Slurm's job {job.name} has ended by itself", "its output is in alice's home")
    return found
