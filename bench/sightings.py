"""When each stage of a pod's life was first seen on the API server's watch streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from lightkube import Client

from dynamig.errors import Unavailable
from dynamig.kube.client import Pod, ResourceClaim, plain, translated
from dynamig.protocol import names

Stages = Iterator[str]

NOTED = "noted by the bridge"
ALLOCATED = "allocated"
VERIFIED = "verified"
UNGATED = "gate off"
BOUND = "bound"
HELD = "held"
PREPARED = "prepared"
RUNNING = "running"
SUCCEEDED = "succeeded"
DELETING = "being deleted"
POD_GONE = "pod gone"
CLAIM_GONE = "claim gone"


PHASES = {"Running": RUNNING, "Succeeded": SUCCEEDED}


def pod_stages(event: str, pod: Mapping[str, Any]) -> Stages:
    """What this event shows that the pod has reached."""
    if event == "DELETED":
        yield POD_GONE
    if pod["metadata"].get("deletionTimestamp"):
        yield DELETING
    if not any(g["name"] == names.GATE for g in pod["spec"].get("schedulingGates") or ()):
        yield UNGATED
    if pod["spec"].get("nodeName"):
        yield BOUND
    phase = pod.get("status", {}).get("phase")
    if phase in PHASES:
        yield PHASES[phase]


def claim_stages(event: str, claim: Mapping[str, Any]) -> Stages:
    """*held*: the bridge or our driver has begun; *prepared*: the driver has reported on the claim, which it does
    behind the kubelet's call, so that *running* may be seen before it."""
    if event == "DELETED":
        yield CLAIM_GONE
    meta, status = claim["metadata"], claim.get("status") or {}
    words = meta.get("annotations") or {}
    if names.HOLD in words:
        yield NOTED
    if status.get("allocation"):
        yield ALLOCATED
    if names.VERIFIED in words:
        yield VERIFIED
    if names.HELD in meta.get("finalizers", ()):
        yield HELD
    for device in status.get("devices") or ():
        for condition in device.get("conditions") or ():
            if condition["type"] == names.PREPARED and condition["status"] == "True":
                yield PREPARED


def pod_of(obj: Mapping[str, Any]) -> str:
    """The pod that an object belongs to: itself, or the owner of a generated claim."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner["kind"] == "Pod":
            return str(owner["name"])
    return str(obj["metadata"]["name"])


class Sightings:
    """Seconds of the monotonic clock at which (pod, stage) was first seen in `namespace`, from `watch` on."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._seen: dict[tuple[str, str], float] = {}
        self._changed = threading.Condition()
        self._failure: Exception | None = None

    def watch(self) -> None:
        """Both streams are followed, by threads that end with the process."""
        for resource, stages in ((Pod, pod_stages), (ResourceClaim, claim_stages)):
            threading.Thread(target=partial(self._follow, resource, stages), daemon=True).start()

    def when(self, pod: str, stage: str) -> float | None:
        """When it was reached, so far."""
        with self._changed:
            return self._seen.get((pod, stage))

    def wait(self, pod: str, stage: str, *, within: float) -> float:
        """When the pod reached the stage. Raises Unavailable if it does not within that many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or (pod, stage) in self._seen, timeout=within)
            if self._failure is not None:
                raise self._failure
            if (pod, stage) not in self._seen:
                reached = sorted(s for p, s in self._seen if p == pod)
                raise Unavailable("NOT_SEEN", f"pod {pod} not {stage} within {within:.0f} s: {reached}", "")
            return self._seen[pod, stage]

    def note(self, pod: str, stage: str, now: float) -> None:
        with self._changed:
            self._seen.setdefault((pod, stage), now)
            self._changed.notify_all()

    def _follow(self, resource: Any, stages: Callable[[str, Mapping[str, Any]], Stages]) -> None:
        try:
            with translated(f"watching {self._namespace}"):
                for event, obj in self._client.watch(resource, namespace=self._namespace):
                    now = time.monotonic()
                    found = plain(obj)
                    for stage in stages(event, found):
                        self.note(pod_of(found), stage, now)
        except Exception as error:  # noqa: BLE001 - a thread's failure belongs to who waits
            with self._changed:
                self._failure = error
                self._changed.notify_all()
