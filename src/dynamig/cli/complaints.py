"""What is said of pods that have devices: what kubelets complain of while those are not made, and what the bridge to
Slurm has told them, bad news only. Pure, from API objects.

A driver that is dead or hangs reports nothing; the kubelet that asks it does, at once. Seen with Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dynamig.cli.holdings import Holding, HoldingState, Name
from dynamig.cli.view import GpuView
from dynamig.protocol import names

Object = Mapping[str, Any]

NOT_PREPARED = "FailedPrepareDynamicResources"
"""Reason of the event (pkg/kubelet/events/event.go of Kubernetes 1.37)."""


def unprepared(claims: Iterable[Object]) -> set[str]:
    """Namespaces with a claim that a pod has, that is allocated, and of which no driver has said anything."""
    statuses = ((c["metadata"]["namespace"], c.get("status") or {}) for c in claims)
    return {ns for ns, s in statuses if s.get("allocation") and s.get("reservedFor") and not s.get("devices")}


def complaints(events: Iterable[Object], pods: Sequence[Object] | None) -> dict[Name, str]:
    """The last complaint about each pod. `pods`: None if they may not be read; else an earlier pod of the same name is
    told apart."""
    uids = None if pods is None else {p["metadata"].get("uid") for p in pods}
    about = ((e.get("involvedObject") or {}, e) for e in sorted(events, key=_when) if e.get("reason") == NOT_PREPARED)
    return {
        (pod.get("namespace", ""), pod.get("name", "")): str(event.get("message", ""))
        for pod, event in about
        if pod.get("kind") == "Pod" and (uids is None or pod.get("uid") in uids)
    }


def _when(event: Object) -> str:
    """The event's last time; RFC 3339 of one API server sorts as text."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp", ""))


def warnings(pods: Iterable[Object]) -> dict[Name, str]:
    """What the bridge has told each pod, unless all is well with it."""
    conditions = (
        ((p["metadata"]["namespace"], p["metadata"]["name"]), c)
        for p in pods
        for c in (p.get("status") or {}).get("conditions") or ()
    )
    return {
        pod: str(c.get("message", ""))
        for pod, c in conditions
        if c["type"] == names.CONDITION and c.get("reason") not in names.NO_TROUBLE
    }


def with_complaints(
    views: Iterable[GpuView], complained: Mapping[Name, str], warned: Mapping[Name, str]
) -> list[GpuView]:
    """The views, with what the bridge says as the reason of devices, else what kubelets say of those only allocated."""
    return [replace(v, holdings=tuple(_with_reason(h, complained, warned) for h in v.holdings)) for v in views]


def _with_reason(holding: Holding, complained: Mapping[Name, str], warned: Mapping[Name, str]) -> Holding:
    if holding.reason or holding.state is HoldingState.LEAVING:
        return holding
    told = [warned, complained] if holding.state is HoldingState.ALLOCATED else [warned]
    words = (said.get((holding.namespace, pod), "") for said in told for pod in holding.pods)
    return replace(holding, reason=next(filter(None, words), ""))
