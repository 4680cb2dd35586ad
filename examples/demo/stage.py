"""The lab under the demo: what is seen of it, and that nothing is left. Only this module and `desk` have effects."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from dynamig.cli.nodes import Reports, by_name
from dynamig.errors import DynamigError, Refused, Unavailable
from dynamig.kube.client import Lease, Pod, ResourceClaim, ResourceSlice, connect, plain, translated
from dynamig.protocol import names
from examples.demo import seen
from examples.demo.cast import NAMESPACE
from examples.demo.screen import Screen
from examples.demo.seen import Moment, NodeSeen, Snapshot, Visible, mine
from lab.lab import DEFAULT_GPUS, DEFAULT_NODES, Lab
from lab.spec import NodeSpec

PATIENCE_S = 120.0
"""A pod in the lab needs two seconds, Jupyter five more, a scheduler that backs off ten, and a busy machine more."""

PERIOD_S = 0.3
"""Between two looks."""

DISK_S = 20.0
"""The driver's last writes follow the end of the claim, and a loan's end that of the job."""


class Stage:
    """A lab that is up, seen through API server, squeue, NVML and disks. `look` tells the screen what changed."""

    def __init__(self, lab: Lab, screen: Screen) -> None:
        self.lab = lab
        self._screen = screen
        self._client = connect(lab.admin_kubeconfig)
        self._inside: dict[tuple[str, str], Visible] = {}

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(self) -> Snapshot:
        with translated("reading slices, claims, pods and leases"):
            slices = [plain(s) for s in self._client.list(ResourceSlice)]
            claims = [plain(c) for c in self._client.list(ResourceClaim, namespace="*")]
            pods = [plain(p) for p in self._client.list(Pod, namespace=NAMESPACE)]
            leases = [plain(one) for one in self._client.list(Lease, namespace=names.NAMESPACE)]
        jobs = self.lab.slurm_json("squeue")["jobs"]
        now = seen.snapshot(slices, claims, pods, jobs, Reports(by_name(leases), None, datetime.now(UTC)))
        self._screen.show(now)
        return now

    def until(
        self, what: str, true: Callable[[Snapshot], bool], pods: Iterable[str] = (), within_s: float = PATIENCE_S
    ) -> Snapshot:
        """The first snapshot of which it is true. Raises Unavailable that tells about the pods and where to look."""
        deadline = time.monotonic() + within_s
        while True:
            now = self.look()
            if true(now):
                return now
            ended = [p for name in pods if (p := now.pod(name)) and p.over]
            if ended:
                raise self._stuck(f"pod {ended[0].name} is {ended[0].phase}", now, [p.name for p in ended])
            if time.monotonic() > deadline:
                raise self._stuck(f"{what}: not within {within_s:.0f} s", now, pods)
            time.sleep(PERIOD_S)

    def until_served(self, *pods: str) -> Snapshot:
        """They run, claims and squeue say what they have."""

        def up(now: Snapshot) -> bool:
            return all(now.served(name) for name in pods)

        return self.until(f"{' and '.join(pods)} running", up, pods)

    def until_lent(self, *jobs: str) -> Snapshot:
        """The native jobs run, and the nodes' drivers report their loans."""

        def lent(now: Snapshot) -> bool:
            ids = {gpu.loan.borrower.job_id for gpu in now.gpus if gpu.loan}
            return all((job := now.native(name)) and job.running and job.job_id in ids for name in jobs)

        return self.until(f"{' and '.join(jobs)} running", lent)

    def watch_for(self, seconds: float) -> None:
        """Look on, so that what happens meanwhile is shown."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(PERIOD_S)

    def remember(self, pod: str, container: str, found: Visible) -> None:
        """What the container reported belongs to the next moments, until the pod is forgotten."""
        self._inside[pod, container] = found

    def forget(self, *pods: str) -> None:
        """What the containers of pods that ended reported is past."""
        self._inside = {key: value for key, value in self._inside.items() if key[0] not in pods}

    def moment(self) -> Moment:
        """All sides now, when nothing is on its way."""
        return Moment(self.look(), self._nodes(), dict(self._inside))

    def settled(self) -> Moment:
        """As `moment`, when the nodes' disks are clean or had time enough to be."""
        deadline = time.monotonic() + DISK_S
        while True:
            found = self.moment()
            used = any(n.cdi or n.journal or n.loans for n in found.nodes.values()) or any(map(mine, found.api.jobs))
            if not used or time.monotonic() > deadline:
                return found
            time.sleep(PERIOD_S)

    def _nodes(self) -> dict[str, NodeSeen]:
        return {name: self._node(name) for name in self.lab.nodes}

    def _node(self, name: str) -> NodeSeen:
        node = self.lab.node(name)
        state = node.dir / "dynamig"
        cdi = frozenset(path.stem.rpartition("_")[2] for path in (node.dir / "cdi").glob("*.json"))
        journal = frozenset(path.stem for path in (state / "claims").glob("*.json"))
        loans = {path.stem: int(json.loads(path.read_text())["job"]["id"]) for path in (state / "loans").glob("*.json")}
        return NodeSeen(seen.gpus_seen(node.nvml_list()), cdi, journal, loans)

    # -- before and after ----------------------------------------------------------------------------------------------

    def need_empty_gpus(self) -> None:
        """Raises Refused naming who is on the GPUs: the story needs all of them."""
        now = self.moment()
        used = sorted({f"{h.namespace}/{h.claim} on {h.pool}" for h in now.api.holdings})
        used += [f"Slurm job {job.job_id} of {job.user}" for job in now.api.jobs]
        used += [f"{gpu.pool}: withdrawn" for gpu in now.api.gpus if gpu.withdrawals]
        used += [f"{gpu.pool}: {gpu.problem}" for gpu in now.api.gpus if gpu.problem]
        used += [f"an instance on {uuid}" for uuid, gpu in now.gpus.items() if gpu.instances and not used]
        if used:
            raise Refused(
                "GPUS_IN_USE",
                f"the demo needs all GPUs of the lab empty, and there is {', '.join(used)}",
                "remove those, or use another lab: make demo SLURM_LAB=$(mktemp -d)/l",
            )

    def tidy(self) -> None:
        """Nothing of the demo's is left in Kubernetes and Slurm, whatever there was. Raises Unavailable if it stays."""
        now = self.look()
        if jobs := [str(job.job_id) for job in now.jobs if mine(job) and job.native]:
            self._screen.command(f"scancel {' '.join(jobs)}")
            self.lab.slurm("scancel", *jobs)
        if self._has_namespace():
            self._screen.command(f"kubectl delete namespace {NAMESPACE}")
            self.lab.kubectl("delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")

        def gone(now: Snapshot) -> bool:
            return not any(map(mine, now.jobs)) and not now.pods and not self._has_namespace()

        self.until(f"namespace {NAMESPACE} and its Slurm jobs gone", gone, [])

    def create_namespace(self) -> None:
        label = f"{names.SCHEDULER_LABEL}=slurm"
        self._screen.command(f"kubectl create namespace {NAMESPACE}")
        self.lab.kubectl("create", "namespace", NAMESPACE)
        self._screen.command(f"kubectl label namespace {NAMESPACE} {label}")
        self.lab.kubectl("label", "namespace", NAMESPACE, label)
        self.lab.kubectl("wait", "--for=create", f"--namespace={NAMESPACE}", "serviceaccount/default", "--timeout=60s")

    def _has_namespace(self) -> bool:
        return bool(self.lab.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found", "--output=name"))

    # -- when it does not go on ----------------------------------------------------------------------------------------

    def _stuck(self, what: str, now: Snapshot, pods: Iterable[str]) -> Unavailable:
        """The error for a step that does not happen: with the pods' events, the jobs and the logs to read."""
        about = tuple(pods)
        lines = [what, *(line for name in about for line in self._about(name, now))]
        lines += [f"Slurm job {j.job_id} ({j.name}): {j.state} {j.reason}" for j in now.jobs if mine(j)]
        lab = f"python -m lab kubectl --dir {self.lab.layout.root}"
        look = f"all is left as it is: {lab} describe pods -n {NAMESPACE}; read {' '.join(self._logs(about, now))}"
        return Unavailable("DEMO_STUCK", "\n  ".join(lines), look)

    def _logs(self, pods: Iterable[str], now: Snapshot) -> list[str]:
        """Of who is on: the driver and the kubelet of a pod's node, else the bridge."""
        nodes = {pod.node for name in pods if (pod := now.pod(name)) is not None}
        daemons = {d for n in nodes for d in ((f"driver-{n}", f"kubelet-{n}") if n else ("bridge",))}
        return [str(self.lab.log(daemon)) for daemon in sorted(daemons or {"bridge", "slurmctld"})]

    def _about(self, name: str, now: Snapshot) -> Iterable[str]:
        pod = now.pod(name)
        if pod is None:
            yield f"pod {name}: does not exist"
            return
        yield f"pod {name}: {pod.phase} on {pod.node or 'no node'}{f': {pod.waits}' if pod.waits else ''}"
        try:
            events = self.lab.kubectl_json(
                "get", "events", f"--namespace={NAMESPACE}", f"--field-selector=involvedObject.name={name}"
            )
        except DynamigError as error:
            yield f"  its events cannot be read: {error}"
            return
        yield from (_event(event) for event in events["items"] if event["type"] != "Normal")


def _event(event: Mapping[str, Any]) -> str:
    return f"  {event['reason']}: {event['message']}"


def need_lab_of_the_story(lab: Lab) -> None:
    """Raises Refused unless the lab has the nodes and GPUs that the story is written for."""
    wanted = tuple(NodeSpec(name, DEFAULT_GPUS) for name in DEFAULT_NODES)
    if lab.spec.nodes != wanted:
        have = ", ".join(f"{n.name} ({n.gpus})" for n in lab.spec.nodes)
        raise Refused(
            "OTHER_LAB",
            f"the demo is written for {len(wanted)} nodes with {DEFAULT_GPUS}; this lab has {have}",
            "use another lab: make demo SLURM_LAB=$(mktemp -d)/l",
        )
