"""The lab under the demo: the only module with effects on it. Everything is done with kubectl, as a user would."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dynamig.errors import DynamigError, Refused, Unavailable
from dynamig.kube.client import Pod, ResourceClaim, ResourceSlice, connect, plain, translated
from examples.demo import seen
from examples.demo.cast import NAMESPACE
from examples.demo.screen import Screen
from examples.demo.seen import Moment, NodeSeen, Snapshot, Visible
from lab.lab import DEFAULT_GPUS, DEFAULT_NODES, Lab
from lab.spec import NodeSpec

MANIFESTS = Path(__file__).resolve().parents[1] / "manifests"
SHOWN_AS = "examples/manifests"
"""How the folder is written in commands, which a reader copies."""

PATIENCE_S = 60.0
"""A pod in the lab needs about a second, and a scheduler that backs off ten."""

PERIOD_S = 0.2
"""Between two looks."""

DISK_S = 10.0
"""The driver's last writes follow the end of the claim."""


class Stage:
    """A lab that is up, seen through API server, NVML and disks. `look` tells the screen what changed."""

    def __init__(self, lab: Lab, screen: Screen) -> None:
        self._lab = lab
        self._screen = screen
        self._client = connect(lab.admin_kubeconfig)
        self._inside: dict[tuple[str, str], Visible] = {}

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(self) -> Snapshot:
        with translated("reading slices, claims and pods"):
            slices = [plain(s) for s in self._client.list(ResourceSlice)]
            claims = [plain(c) for c in self._client.list(ResourceClaim, namespace="*")]
            pods = [plain(p) for p in self._client.list(Pod, namespace=NAMESPACE)]
        now = seen.snapshot(slices, claims, pods)
        self._screen.show(now)
        return now

    def until(
        self, what: str, true: Callable[[Snapshot], bool], pods: Iterable[str], within_s: float = PATIENCE_S
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

    def until_running(self, pods: Iterable[str]) -> Snapshot:
        names = tuple(pods)

        def up(now: Snapshot) -> bool:
            return all(now.served(name) for name in names)

        return self.until(f"{' and '.join(names)} running", up, names)

    def watch_for(self, seconds: float) -> None:
        """Look on, so that what happens meanwhile is shown."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(PERIOD_S)

    def inside(self, pod: str, container: str) -> Visible:
        """What NVML shows in the container, from its log: its command is `nvml-list`, then sleep."""
        deadline = time.monotonic() + PATIENCE_S
        argv = ("logs", f"--namespace={NAMESPACE}", pod, f"--container={container}")
        while not (text := self._lab.kubectl(*argv)).endswith("\n"):
            if time.monotonic() > deadline:
                raise self._stuck(f"{pod}/{container}: no line in its log", self.look(), [pod])
            time.sleep(PERIOD_S)
        try:
            found = seen.visible(json.loads(text))
        except (ValueError, KeyError) as error:
            raise Unavailable("BAD_OUTPUT", f"{pod}/{container} wrote no list of NVML's: {text[:200]!r}", "") from error
        self._inside[pod, container] = found
        return found

    def moment(self) -> Moment:
        """All sides now, when nothing is on its way."""
        return Moment(self.look(), self._nodes(), dict(self._inside))

    def settled(self) -> Moment:
        """As `moment`, when the nodes' disks are clean or had time enough to be."""
        deadline = time.monotonic() + DISK_S
        while True:
            found = self.moment()
            if time.monotonic() > deadline or not any(node.cdi or node.journal for node in found.nodes.values()):
                return found
            time.sleep(PERIOD_S)

    def _nodes(self) -> dict[str, NodeSeen]:
        return {name: self._node(name) for name in self._lab.nodes}

    def _node(self, name: str) -> NodeSeen:
        node = self._lab.node(name)
        cdi = frozenset(path.stem.rpartition("_")[2] for path in (node.dir / "cdi").glob("*.json"))
        journal = frozenset(path.stem for path in (node.dir / "dynamig/claims").glob("*.json"))
        return NodeSeen(seen.gpus_seen(node.nvml_list()), cdi, journal)

    # -- acting --------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """An empty namespace of the demo's, whatever an earlier run left."""
        if self._has_namespace():
            self._screen.line(f"namespace {NAMESPACE} is left from an earlier run: removing it")
            self.remove()
        self._lab.kubectl("create", "namespace", NAMESPACE)
        self._lab.kubectl("wait", "--for=create", f"--namespace={NAMESPACE}", "serviceaccount/default", "--timeout=60s")

    def need_empty_gpus(self) -> None:
        """Raises Refused naming who is on the GPUs: the story needs all of them."""
        now = self.moment()
        used = sorted({f"{h.namespace}/{h.claim} on {h.pool}" for h in now.api.holdings})
        used += [f"{gpu.pool}: withdrawn" for gpu in now.api.gpus if gpu.withdrawals]
        used += [f"{gpu.pool}: {gpu.problem}" for gpu in now.api.gpus if gpu.problem]
        used += [f"an instance on {uuid}" for uuid, gpu in now.gpus.items() if gpu.instances and not used]
        if used:
            raise Refused(
                "GPUS_IN_USE",
                f"the demo needs all GPUs of the lab empty, and there is {', '.join(used)}",
                "remove those, or use another lab: DYNAMIG_LAB_DIR=$(mktemp -d)/l make demo",
            )

    def apply(self, manifest: str) -> None:
        self._screen.command(f"kubectl -n {NAMESPACE} apply -f {SHOWN_AS}/{manifest}")
        self._lab.kubectl("apply", f"--namespace={NAMESPACE}", f"--filename={MANIFESTS / manifest}")

    def delete(self, *what: str) -> None:
        """Told, not waited for."""
        self._screen.command(f"kubectl -n {NAMESPACE} delete {' '.join(what)}")
        self._lab.kubectl("delete", f"--namespace={NAMESPACE}", *what, "--wait=false")

    def forget(self, pod: str) -> None:
        """What the containers of a pod that ended reported is past."""
        self._inside = {key: value for key, value in self._inside.items() if key[0] != pod}

    def remove(self) -> None:
        """The namespace is gone, with all that was in it."""
        self._screen.command(f"kubectl delete namespace {NAMESPACE}")
        self._lab.kubectl("delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")
        deadline = time.monotonic() + PATIENCE_S
        while self._has_namespace():
            now = self.look()
            if time.monotonic() > deadline:
                raise self._stuck(f"namespace {NAMESPACE} does not end", now, [p.name for p in now.pods])
            time.sleep(PERIOD_S)
        self._screen.line(f"namespace {NAMESPACE} is gone")

    def _has_namespace(self) -> bool:
        return bool(self._lab.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found", "--output=name"))

    # -- when it does not go on ----------------------------------------------------------------------------------------

    def _stuck(self, what: str, now: Snapshot, pods: Iterable[str]) -> Unavailable:
        """The error for a step that does not happen: with the pods' events and the logs to read."""
        names = tuple(pods)
        lines = [what, *(line for name in names for line in self._about(name, now))]
        lab = f"python -m lab kubectl --dir {self._lab.layout.root}"
        look = f"all is left as it is: {lab} describe pods -n {NAMESPACE}; read {' '.join(self._logs(names, now))}"
        return Unavailable("DEMO_STUCK", "\n  ".join(lines), look)

    def _logs(self, names: Iterable[str], now: Snapshot) -> list[str]:
        """Of who is on: the scheduler for a pod without a node, else the driver and the kubelet of the node."""
        nodes = {pod.node for name in names if (pod := now.pod(name)) is not None}
        daemons = {d for n in nodes for d in ((f"driver-{n}", f"kubelet-{n}") if n else ("kube-scheduler",))}
        return [str(self._lab.log(daemon)) for daemon in sorted(daemons or {"kube-controller-manager"})]

    def _about(self, name: str, now: Snapshot) -> Iterable[str]:
        pod = now.pod(name)
        if pod is None:
            yield f"pod {name}: does not exist"
            return
        yield f"pod {name}: {pod.phase} on {pod.node or 'no node'}"
        try:
            events = self._lab.kubectl_json(
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
            "use another lab: DYNAMIG_LAB_DIR=$(mktemp -d)/l make demo",
        )
