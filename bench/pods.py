"""How much longer a pod takes to run because it has a claim.

On the lab, in turn: a pod with a claim for one 1g partition, and the same pod without. Times are those at which the
API server's watch streams tell of a stage, counted from just before the pod is created. Each pod, and its claim,
is gone before the next one is made.
"""

from __future__ import annotations

from lightkube import Client

from bench import pod_objects
from bench.cluster import ready_lab
from bench.figures import Figure, Report, Series, series
from bench.pod_objects import create_pod, delete_pod
from bench.sightings import ALLOCATED, BOUND, CLAIM_GONE, HELD, POD_GONE, PREPARED, RUNNING, Sightings
from dynamig.kube.client import connect

WITHIN_S = 170.0
"""A pod whose first prepare failed is tried again by the kubelet after about 80 s; such a pod counts as it is."""

KUBELET_RETRY_S = 45.0
"""A pod that took longer than the kubelet's call may last was tried more than once."""

WARM_UP = 1

CREATED = "created"
STEPS = ((CREATED, ALLOCATED), (ALLOCATED, BOUND), (BOUND, HELD), (HELD, PREPARED), (HELD, RUNNING))


def report(*, quick: bool) -> Report:
    rounds = 4 if quick else 20
    lab = ready_lab()
    client = connect(lab.admin_kubeconfig)
    rows: dict[str, list[float]] = {}
    with pod_objects.namespace(client) as namespace:
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
    created = create_pod(client, namespace, name, claim=claim)
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
    begun = delete_pod(client, namespace, name)
    gone = sightings.wait(name, POD_GONE, within=WITHIN_S)
    if claim:
        gone = max(gone, sightings.wait(name, CLAIM_GONE, within=WITHIN_S))
    return gone - begun
