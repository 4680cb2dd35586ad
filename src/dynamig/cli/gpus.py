"""`dynamig gpus` and `dynamig ps`: the cluster's GPUs and who has what, from the API server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from dynamig.cli import draw, table, view
from dynamig.cli.holdings import STATES, Holding, Name, holding_json
from dynamig.cli.nodes import Reports, by_name
from dynamig.cli.output import Json, show
from dynamig.cli.waiting import is_over, waiting
from dynamig.errors import DynamigError, Refused
from dynamig.kube.client import (
    DeviceClass,
    Lease,
    Node,
    Pod,
    ResourceClaim,
    ResourceSlice,
    connect,
    plain,
    translated,
)
from dynamig.protocol import names

Object = Mapping[str, Any]

Kubeconfig = Annotated[
    str | None,
    typer.Option("--kubeconfig", envvar="KUBECONFIG", help="Default: $KUBECONFIG, else ~/.kube/config."),
]
Driver = Annotated[str, typer.Option("--driver-name", help="DRA driver whose GPUs to show.")]
NodeName = Annotated[str | None, typer.Option("--node", help="Only this node.")]

NEXT_STEPS = {
    "API_UNAVAILABLE": "try `kubectl get --raw /readyz` with the same kubeconfig",
    "FORBIDDEN": "the user needs the verb list on resourceslices and resourceclaims of resource.k8s.io",
    "NOT_FOUND": "resource.k8s.io/v1 is served by Kubernetes 1.34 and newer",
}


def gpus(
    kubeconfig: Kubeconfig = None, driver_name: Driver = names.DRIVER_NAME, node: NodeName = None, json: Json = False
) -> None:
    """Every GPU as a bar of memory slices: who holds which, what is free.

    A block is one device of a claim, with its profile; `whole` is the full GPU. Dots are free memory slices.

    The block of a ready device is solid; one that is only allocated is broken, a failed one has exclamation marks,
    one that leaves has arrows.

    Dashes are memory slices that nobody holds and on which nothing that is published fits any more.

    Crosses are withdrawn: an instance of unknown owner is there; nothing is cut on it and nothing destroyed.

    A bar of one block that names a Slurm job: a native job has the whole GPU. Behind a pod stands the job that pays.

    A holder that is not ready has its state behind it: `dynamig ps --help` explains the words.

    In a pipe each GPU is one line of columns, nothing cut. Exit status 1 if there is no GPU.
    """
    views = _chosen(_read(kubeconfig).views(driver_name), driver_name, node, as_json=json)
    show([view.gpu_json(v) for v in views], lambda page: draw.gpus(views, page), as_json=json)


def ps(
    kubeconfig: Kubeconfig = None, driver_name: Driver = names.DRIVER_NAME, node: NodeName = None, json: Json = False
) -> None:
    cluster = _read(kubeconfig)
    waits = cluster.waiting(driver_name) if node is None else []
    views = cluster.views(driver_name)
    if not waits:
        views = _chosen(views, driver_name, node, as_json=json)
    body = [holding_json(h) for h in (*(h for v in views for h in v.holdings), *waits)]
    if body:
        show(body, lambda page: table.holdings(views, waits, page), as_json=json)
    else:
        show(body, Text(f"no claim has a device{f' on node {node}' if node else ''}, and none waits"), as_json=json)


ps.__doc__ = (
    "Every device that a claim has, with its pod, state, UUID and the Slurm job that pays, where one does; and every "
    "claim that a pod waits for, with the reason of Slurm or of the scheduler.\n\nStates:\n\n"
    + "\n\n".join(f"{state.value}: {meaning}." for state, meaning in STATES.items())
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """What was read. `pods`, `classes`: None if they may not be read."""

    slices: Sequence[Object]
    claims: Sequence[Object]
    reports: Reports
    pods: Sequence[Object] | None
    classes: Sequence[Object] | None

    def views(self, driver: str) -> Sequence[view.GpuView]:
        ending = {_name(p) for p in self.pods or () if p["metadata"].get("deletionTimestamp") or is_over(p)}
        return view.gpu_views(self.slices, self.claims, driver, self.reports, ending)

    def waiting(self, driver: str) -> Sequence[Holding]:
        return waiting(self.claims, self.pods, self.classes, driver, slurm=self._is_slurms(driver))

    def _is_slurms(self, driver: str) -> bool:
        devices = (d for s in self.slices if s["spec"]["driver"] == driver for d in s["spec"].get("devices") or ())
        return any(t["key"] == names.MANAGED_TAINT for d in devices for t in d.get("taints") or ())


def _name(obj: Object) -> Name:
    return (obj["metadata"]["namespace"], obj["metadata"]["name"])


def _read(kubeconfig: str | None) -> Cluster:
    with _advice():
        client = connect(_kubeconfig(kubeconfig))
        with translated("reading ResourceSlices and ResourceClaims"):
            slices = [plain(s) for s in client.list(ResourceSlice)]
            claims = [plain(c) for c in client.list(ResourceClaim, namespace="*")]
        leases = _if_allowed("Leases", lambda: client.list(Lease, namespace=names.NAMESPACE))
        nodes = _if_allowed("Nodes", lambda: client.list(Node))
        pods = _if_allowed("Pods", lambda: client.list(Pod, namespace="*"))
        classes = _if_allowed("DeviceClasses", lambda: client.list(DeviceClass))
    reports = Reports(by_name(leases), by_name(nodes), datetime.now(UTC))
    return Cluster(slices, claims, reports, pods, classes)


def _if_allowed(what: str, read: Callable[[], Iterable[Any]]) -> list[Object] | None:
    """What makes the answer better and need not be readable to whoever looks at GPUs; None if it is not."""
    try:
        with translated(f"reading {what}"):
            return [plain(one) for one in read()]
    except Refused as refused:
        if refused.code != "FORBIDDEN":
            raise
        return None


def _chosen(views: Sequence[view.GpuView], driver: str, node: str | None, *, as_json: bool) -> Sequence[view.GpuView]:
    """Those on the node, if one is named. Raises Refused NO_GPU if there is none, after the empty list for programs."""
    found = [v for v in views if node in (None, v.node)]
    if found:
        return found
    if as_json:
        show([], Text(), as_json=True)
    if node is not None and views:
        there = ", ".join(sorted({v.node for v in views if v.node}))
        raise Refused("NO_GPU", f"no GPU is published by {driver} on node {node}", f"nodes with GPUs: {there}")
    on = f" on node {node}" if node else ""
    raise Refused("NO_GPU", f"no GPU is published by {driver}{on}", "does the driver run? `kubectl get resourceslices`")


@contextmanager
def _advice() -> Iterator[None]:
    """Errors leave with a next step for a person at a command line."""
    try:
        yield
    except DynamigError as error:
        if advice := NEXT_STEPS.get(error.code):
            raise type(error)(error.code, error.what, advice) from error
        raise


def _kubeconfig(given: str | None, home: Callable[[], Path] = Path.home) -> Path:
    """The first file of a list such as $KUBECONFIG holds that exists, as kubectl skips missing ones."""
    paths = [Path(p) for p in given.split(os.pathsep) if p] if given else [home() / ".kube/config"]
    for path in paths:
        if path.exists():
            return path
    listed = ", ".join(map(str, paths))
    raise Refused("BAD_KUBECONFIG", f"no kubeconfig: {listed} does not exist", "give --kubeconfig or set KUBECONFIG")
