"""How much longer a pod takes to run because it has a claim.

On the lab, in turn: a pod with a claim for one 1g partition, and the same pod without. Times are those at which the
API server's watch streams tell of a stage, counted from just before the pod is created. Each pod, and its claim,
is gone before the next one is made.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightkube import Client
from lightkube.generic_resource import create_namespaced_resource

from bench.cluster import ready_lab
from bench.figures import Figure, Report, Series, series
from bench.sightings import ALLOCATED, BOUND, CLAIM_GONE, HELD, POD_GONE, PREPARED, RUNNING, Sightings
from dynamig.errors import Unavailable
from dynamig.kube.client import Namespace, Pod, connect, plain, seen, translated
from dynamig.protocol.seen import Found

Template = create_namespaced_resource("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates")
ServiceAccount = create_namespaced_resource("", "v1", "ServiceAccount", "serviceaccounts")

TEMPLATE = "one-slice"
PROFILE = "1g.10gb"
WITHIN_S = 170.0
"""A pod whose first prepare failed is tried again by the kubelet after about 80 s; such a pod counts as it is."""

KUBELET_RETRY_S = 45.0
"""A pod that took longer than the kubelet's call may last was tried more than once."""

ACCOUNT_S = 30.0
WARM_UP = 1

CREATED = "created"
STEPS = ((CREATED, ALLOCATED), (ALLOCATED, BOUND), (BOUND, HELD), (HELD, PREPARED), (HELD, RUNNING))


def report(*, quick: bool) -> Report:
    rounds = 4 if quick else 20
    lab = ready_lab()
    client = connect(lab.admin_kubeconfig)
    rows: dict[str, list[float]] = {}
    with _namespace(client) as namespace:
        sightings = Sightings(client, namespace)
        sightings.watch()
        for number in range(-WARM_UP, rounds):
            for kind in ("claim", "plain"):
                spans = _one_pod(client, sightings, namespace, f"{kind}-{number + WARM_UP}", claim=kind == "claim")
                if number >= 0:
                    for name, seconds in spans.items():
                        rows.setdefault(f"{kind}: {name}", []).append(seconds)
    return Report(_figures(rows), _notes(rows))


def _figures(rows: dict[str, list[float]]) -> tuple[Figure, ...]:
    def one(kind: str, name: str) -> Series:
        words = "without" if kind == "plain" else "with"
        return series(f"{name}, {words} claim", "s", rows[f"{kind}: {name}"])

    compared = ("created to running", f"created to {BOUND}", f"{BOUND} to running", "deleted to gone")
    steps = [Figure(one("claim", f"{first} to {then}")) for first, then in STEPS]
    return (*(Figure(one("claim", name), one("plain", name)) for name in compared), *steps)


def _notes(rows: dict[str, list[float]]) -> tuple[str, ...]:
    again = {kind: sum(s > KUBELET_RETRY_S for s in rows[f"{kind}: created to running"]) for kind in ("claim", "plain")}
    return (
        "seen on watch streams; `prepared` is the driver's report on the claim, written behind the kubelet's call",
        f"pods that needed a second try by the kubelet: {again['claim']} with claim, {again['plain']} without",
    )


def _one_pod(client: Client, sightings: Sightings, namespace: str, name: str, *, claim: bool) -> dict[str, float]:
    """Seconds between the stages of one pod's life; it is gone afterwards."""
    created = time.monotonic()
    with translated(f"pod {name}"):
        client.create(Pod(**_pod(namespace, name, claim=claim)))
    running = sightings.wait(name, RUNNING, within=WITHIN_S)
    bound = sightings.wait(name, BOUND, within=0)
    spans = {
        "created to running": running - created,
        f"created to {BOUND}": bound - created,
        f"{BOUND} to running": running - bound,
    }
    if claim:
        spans |= _claim_spans(sightings, name, created)
    return spans | {"deleted to gone": _delete(client, sightings, namespace, name, claim=claim)}


def _claim_spans(sightings: Sightings, name: str, created: float) -> dict[str, float]:
    at = {stage: sightings.wait(name, stage, within=WITHIN_S) for stage in (ALLOCATED, BOUND, HELD, PREPARED, RUNNING)}
    at[CREATED] = created
    return {f"{first} to {then}": at[then] - at[first] for first, then in STEPS}


def _delete(client: Client, sightings: Sightings, namespace: str, name: str, *, claim: bool) -> float:
    """Seconds until the pod is gone and, where it has one, its claim: then its partition can be had again."""
    begun = time.monotonic()
    with translated(f"pod {name}"):
        client.delete(Pod, name, namespace=namespace, grace_period=1)
    gone = sightings.wait(name, POD_GONE, within=WITHIN_S)
    if claim:
        gone = max(gone, sightings.wait(name, CLAIM_GONE, within=WITHIN_S))
    return gone - begun


@contextmanager
def _namespace(client: Client) -> Iterator[str]:
    """A namespace with the claim template, ready for pods; deleted afterwards."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    with translated(f"namespace {name}"):
        client.create(Namespace(**_named(name)))
    try:
        with translated(f"template {TEMPLATE}"):
            client.create(Template(**_template(name)))
        _wait_for_account(client, name)
        yield name
    finally:
        with translated(f"namespace {name}"):
            client.delete(Namespace, name)


def _named(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def _wait_for_account(client: Client, namespace: str) -> None:
    """Pods may be made: the API server refuses them until the namespace has its default service account."""
    end = time.monotonic() + ACCOUNT_S
    while not isinstance(
        seen("service account", lambda: plain(client.get(ServiceAccount, "default", namespace=namespace))), Found
    ):
        if time.monotonic() > end:
            raise Unavailable(
                "NO_ACCOUNT", f"{namespace}: no default service account in {ACCOUNT_S:.0f} s", "make lab-status"
            )
        time.sleep(0.1)


def _template(namespace: str) -> dict[str, Any]:
    selector = {"cel": {"expression": f"device.attributes['gpu.nvidia.com'].profile == '{PROFILE}'"}}
    request = {"name": "mig", "exactly": {"deviceClassName": "mig.nvidia.com", "selectors": [selector]}}
    return {
        "metadata": {"name": TEMPLATE, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def _pod(namespace: str, name: str, *, claim: bool) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "main",
        "image": "lab.local/tool:1",
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", "sleep 100000"],
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    if claim:
        spec["resourceClaims"] = [{"name": "devices", "resourceClaimTemplateName": TEMPLATE}]
        container["resources"] = {"claims": [{"name": "devices"}]}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
