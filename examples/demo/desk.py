"""What people do in the story, with the commands that they would use, and what they get back: kubectl, sbatch, HTTP."""

from __future__ import annotations

import json
import shlex
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dynamig.errors import Unavailable
from examples.demo import cast, seen
from examples.demo.cast import NAMESPACE, NativeJob, Role
from examples.demo.screen import Screen
from examples.demo.seen import GpuSeen, JobSeen, Visible
from examples.demo.stage import PATIENCE_S, PERIOD_S, Stage

MANIFESTS = Path(__file__).resolve().parents[1] / "manifests"
SHOWN_AS = "examples/manifests"
"""How the folder is written in commands, which a reader copies."""

SCRIPT = "#!/bin/sh\nwhile nvml-list; do sleep 1; done\n"
"""A native job: what NVML shows, every second, until it is ended."""

OUTPUT = "demo-%j.out"
QUEUE = "%i|%u|%j|%T|%R|%k"
"""squeue's fields: id, user, name, state, nodes or reason, comment."""

PATH = "/api/contents/gpus.ipynb?token=student"
"""Of the notebook, with what its cell printed, in Jupyter's REST interface."""

T = TypeVar("T")


class Desk:
    def __init__(self, stage: Stage, screen: Screen) -> None:
        self._stage = stage
        self._lab = stage.lab
        self._screen = screen

    # -- Kubernetes ----------------------------------------------------------------------------------------------------

    def apply(self, role: Role) -> None:
        self._screen.command(f"kubectl -n {NAMESPACE} apply -f {SHOWN_AS}/{role.manifest}")
        self._lab.kubectl("apply", f"--namespace={NAMESPACE}", f"--filename={MANIFESTS / role.manifest}")

    def delete(self, *what: str) -> None:
        """Told, not waited for."""
        self._screen.command(f"kubectl -n {NAMESPACE} delete {' '.join(what)}")
        self._lab.kubectl("delete", f"--namespace={NAMESPACE}", *what, "--wait=false")

    def inside(self, pod: str, container: str) -> Visible:
        """What NVML shows in the container, from its log: its command is `nvml-list`, then sleep."""
        argv = ("logs", f"--namespace={NAMESPACE}", pod, f"--container={container}")

        def read() -> Visible:
            return seen.visible(json.loads(self._lab.kubectl(*argv)))

        found = self._eventually(f"{pod}/{container} wrote no list of NVML's", read)
        self._stage.remember(pod, container, found)
        return found

    def notebook(self) -> Visible:
        """What the cell of the notebook printed, from Jupyter in its pod, over the node's network."""
        name, port = cast.HOME_PAGE
        pod = self._stage.until(f"{name} has an address", lambda now: bool((p := now.pod(name)) and p.address)).pod(
            name
        )
        assert pod is not None
        url = f"http://{pod.address}:{port}{PATH}"
        self._screen.command(f"curl {url}")
        found = self._eventually(f"{url} does not answer with the notebook's output", lambda: _cell_output(url))
        self._stage.remember(name, next(iter(cast.NOTEBOOK.sees)), found)
        return found

    # -- Slurm ---------------------------------------------------------------------------------------------------------

    def submit(self, job: NativeJob) -> None:
        argv = ("--gres=gpu:1", f"--job-name={job.name}", f"--comment={job.comment}", f"--output={OUTPUT}")
        self._screen.command(f"sbatch {shlex.join(argv[:-1])} …")
        self._lab.submit(SCRIPT, *argv, user=cast.USER)

    def cancel(self, *jobs: JobSeen) -> None:
        ids = [str(job.job_id) for job in jobs]
        self._screen.command(f"scancel {' '.join(ids)}")
        self._lab.slurm("scancel", *ids, user=cast.USER)

    def queue(self) -> None:
        """What squeue prints is on the screen."""
        self._screen.command("squeue -o '%i %u %j %T %R %k'")
        lines = self._lab.slurm("squeue", "--noheader", "--sort=i", "-o", QUEUE).splitlines()
        self._screen.queue([line.split("|", QUEUE.count("|")) for line in lines])

    def looks_of(self, job: JobSeen) -> tuple[GpuSeen, ...]:
        """What the native job's own calls of NVML showed of its GPU until now, the oldest first."""
        assert job.node is not None
        node = self._lab.node(job.node)
        path = f"~{cast.USER}/{OUTPUT.replace('%j', str(job.job_id))}"
        *whole, _ = node.run("sh", "-c", f"cat {path}").split("\n")  # the last line may be half written
        (index,) = job.gpus
        looks = [
            seen.gpus_seen(json.loads(line)) for line in whole if line.startswith("{")
        ]  # slurmstepd writes there too
        return tuple(sorted(gpus.values(), key=lambda gpu: gpu.minor)[index] for gpus in looks)

    # -- patience ------------------------------------------------------------------------------------------------------

    def _eventually(self, what: str, read: Callable[[], T]) -> T:
        """What `read` returns once it does not fail. Raises Unavailable with its last failure."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return read()
            except (OSError, ValueError, KeyError, IndexError, Unavailable) as error:
                if time.monotonic() > deadline:
                    raise Unavailable("DEMO_STUCK", f"{what} within {PATIENCE_S:.0f} s: {error!r}", "") from error
            self._stage.look()
            time.sleep(PERIOD_S)


def _cell_output(url: str) -> Visible:
    """Raises OSError, ValueError, KeyError or IndexError while there is none."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(url, timeout=5) as answer:
        found: dict[str, Any] = json.load(answer)
    outputs: Sequence[dict[str, Any]] = found["content"]["cells"][0]["outputs"]
    return seen.visible(json.loads(outputs[0]["text"]))
