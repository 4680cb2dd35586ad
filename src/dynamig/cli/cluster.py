"""What `dynamig gpus` and `ps` read from the API server, and what of it the user need not be allowed to read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightkube import Client

from dynamig.cli import view
from dynamig.cli.asked import Asked
from dynamig.cli.complaints import NOT_PREPARED, complaints, unprepared, warnings, with_complaints
from dynamig.cli.holdings import Holding, Name
from dynamig.cli.nodes import Object, Reports, by_name
from dynamig.cli.unclaimed import unclaimed
from dynamig.cli.waiting import is_over, waiting, with_users
from dynamig.errors import DynamigError, Refused
from dynamig.kube.client import (
    DeviceClass,
    DeviceTaintRule,
    Event,
    Lease,
    Namespace,
    Node,
    Pod,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
    connect,
    plain,
    translated,
)
from dynamig.protocol import names

NEXT_STEPS = {
    "API_UNAVAILABLE": "try `kubectl get --raw /readyz` with the same kubeconfig",
    "NOT_FOUND": "resource.k8s.io/v1 is served by Kubernetes 1.34 and newer",
}
SEES_ALL = (
    "`dynamig ps -n NAMESPACE` shows what is in a namespace of yours; for the whole cluster an administrator binds you"
    " the ClusterRole dynamig-viewer"
)
SEES_NAMESPACE = "the user needs the right to list resourceclaims there, which Kubernetes' ClusterRole view has"


@dataclass(frozen=True, slots=True)
class Cluster:
    """What was read; `claims` and what is about them are of one namespace or of all. None: it may not be read."""

    claims: Sequence[Object]
    slices: Sequence[Object] | None
    reports: Reports
    classes: Sequence[Object] | None
    pods: Sequence[Object] | None
    templates: Sequence[Object] | None
    events: Sequence[Object]
    rules: Sequence[Object]

    def views(self, driver: str) -> Sequence[view.GpuView]:
        ending = {_name(p) for p in self.pods or () if p["metadata"].get("deletionTimestamp") or is_over(p)}
        found = view.gpu_views(self.slices, self.claims, driver, self.reports, ending, self.rules)
        views = with_users(found, self.pods or ())
        return with_complaints(views, complaints(self.events, self.pods), warnings(self.pods or ()))

    def waiting(self, driver: str) -> Sequence[Holding]:
        """By namespace, claim and pod."""
        asked, slurm = Asked(driver, self.classes), self._is_slurms(driver)
        found = waiting(self.claims, self.pods, asked, slurm=slurm)
        found += unclaimed(self.pods or (), self.claims, self.templates, asked, slurm=slurm)
        return sorted(found, key=lambda h: (h.namespace, h.claim, h.pods))

    def _is_slurms(self, driver: str) -> bool:
        specs = (s["spec"] for s in self.slices or ())
        devices = (d for spec in specs if spec["driver"] == driver for d in spec.get("devices") or ())
        return any(t["key"] == names.MANAGED_TAINT for d in devices for t in d.get("taints") or ())


def _name(obj: Object) -> Name:
    return (obj["metadata"]["namespace"], obj["metadata"]["name"])


def read(kubeconfig: str | None, namespace: str | None = None) -> Cluster:
    """All of the cluster, or what a namespace has and as much of the rest as the user may read.

    Raises Refused FORBIDDEN without the right to list claims there; for the whole cluster also without that to list
    ResourceSlices.
    """
    with _advice(namespace):
        return _read(connect(_kubeconfig(kubeconfig)), namespace)


def _read(client: Client, namespace: str | None) -> Cluster:
    """Pods come before what they name, so that what is made meanwhile is not missed."""
    where = namespace or "*"
    slices = _slices(client, namespace)
    pods = _if_allowed("Pods", lambda: client.list(Pod, namespace=where))
    templates = _if_allowed("ResourceClaimTemplates", lambda: client.list(ResourceClaimTemplate, namespace=where))
    with translated("reading ResourceClaims"):
        claims = [plain(c) for c in client.list(ResourceClaim, namespace=where)]
    leases = _if_allowed("Leases", lambda: client.list(Lease, namespace=names.NAMESPACE))
    nodes = _if_allowed("Nodes", lambda: client.list(Node))
    if namespace is not None and not (claims or pods):
        _check_there(client, namespace)
    return Cluster(
        claims=claims,
        slices=slices,
        reports=Reports(by_name(leases), by_name(nodes), datetime.now(UTC)),
        classes=_if_allowed("DeviceClasses", lambda: client.list(DeviceClass)),
        rules=_if_allowed("DeviceTaintRules", lambda: client.list(DeviceTaintRule), absent=True) or (),
        pods=pods,
        templates=templates,
        events=[e for ns in sorted(unprepared(claims)) for e in _events(client, ns)],
    )


def _check_there(client: Client, namespace: str) -> None:
    """Lists of a namespace that does not exist are empty. Raises Refused NO_NAMESPACE, unless nobody may look."""
    try:
        with translated(f"reading namespace {namespace}"):
            client.get(Namespace, namespace)
    except Refused as refused:
        if refused.code == "NOT_FOUND":
            raise Refused("NO_NAMESPACE", f"there is no namespace {namespace}", "`kubectl get namespaces`") from refused
        if refused.code != "FORBIDDEN":
            raise


def _slices(client: Client, namespace: str | None) -> list[Object] | None:
    if namespace is not None:
        return _if_allowed("ResourceSlices", lambda: client.list(ResourceSlice))
    with translated("reading ResourceSlices"):
        return [plain(s) for s in client.list(ResourceSlice)]


def _events(client: Client, namespace: str) -> list[Object]:
    fields: dict[str, Any] = {"reason": NOT_PREPARED}
    return _if_allowed("Events", lambda: client.list(Event, namespace=namespace, fields=fields)) or []


def _if_allowed(what: str, listed: Callable[[], Iterable[Any]], *, absent: bool = False) -> list[Object] | None:
    """What makes the answer better and need not be readable to whoever looks at GPUs; None if it is not. `absent`: nor
    need the API server know of such things."""
    try:
        with translated(f"reading {what}"):
            return [plain(one) for one in listed()]
    except Refused as refused:
        if refused.code != "FORBIDDEN" and not (absent and refused.code == "NOT_FOUND"):
            raise
        return None


@contextmanager
def _advice(namespace: str | None) -> Iterator[None]:
    """Errors leave with a next step for a person at a command line."""
    steps = NEXT_STEPS | {"FORBIDDEN": SEES_NAMESPACE if namespace else SEES_ALL}
    try:
        yield
    except DynamigError as error:
        if advice := steps.get(error.code):
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
