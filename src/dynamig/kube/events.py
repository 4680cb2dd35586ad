"""Events on pods: what users find in `kubectl describe`. One per reason and message; said again, it is renewed."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import structlog
from lightkube import Client
from lightkube.types import PatchType

from dynamig.errors import Conflict, Refused
from dynamig.kube.client import Event, translated
from dynamig.protocol.times import to_rfc3339

log = structlog.get_logger(__name__)

LONGEST_NAME = 253
"""Characters of an object's name (DNS subdomain, RFC 1123)."""


def write_event(
    client: Client, namespace: str, pod: str, uid: str, reason: str, message: str, *, component: str, warning: bool
) -> None:
    """The pod has this event. An event is no fact that anybody decides by: one that is refused, as in a namespace that
    is being deleted, is logged and left out."""
    name, now = _name(pod, uid, reason, message), to_rfc3339(time.time())
    body: dict[str, Any] = {
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod, "uid": uid},
        "reason": reason,
        "message": message,
        "type": "Warning" if warning else "Normal",
        "source": {"component": component},
        "reportingComponent": component,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        with translated(f"event on pod {namespace}/{pod}"):
            client.create(Event(**body))
    except Conflict:
        _renew(client, namespace, name, now)
    except Refused as refused:
        log.warning("event_refused", pod=f"{namespace}/{pod}", code=refused.code, error=str(refused))


def _renew(client: Client, namespace: str, name: str, now: str) -> None:
    try:
        with translated(f"event {namespace}/{name}"):
            client.patch(Event, name, {"lastTimestamp": now}, namespace=namespace, patch_type=PatchType.MERGE)
    except Refused as refused:  # it has expired just now
        log.warning("event_refused", event=f"{namespace}/{name}", code=refused.code, error=str(refused))


def _name(pod: str, uid: str, reason: str, message: str) -> str:
    digest = hashlib.sha256("\0".join((uid, reason, message)).encode()).hexdigest()[:16]
    return f"{pod[: LONGEST_NAME - len(digest) - 1].rstrip('.-')}.{digest}"
