"""What pods are told: one thing a look, once for each change. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dynamig.bridge.actions import Tell
from dynamig.bridge.sets import ClaimSet
from dynamig.bridge.world import PodRef, PodView
from dynamig.errors import DynamigError, Refused
from dynamig.protocol import names


def news(said: Iterable[Tell]) -> tuple[Tell, ...]:
    """Of all that the sets of one look say, what is to be written. A pod of several sets hears what is wrong with one
    before that another is paid for; and nothing that its condition says already."""
    chosen: dict[PodRef, Tell] = {}
    for tell in sorted(said, key=lambda t: t.reason == names.PAID):
        for pod in tell.of.pods:
            chosen.setdefault(pod.ref, replace(tell, of=replace(tell.of, pods=(pod,))))
    return tuple(tell for tell in chosen.values() if not _says(tell.of.pod, tell))


def passive(pods: Iterable[PodView], error: DynamigError) -> tuple[Tell, ...]:
    """To pods that wait for a bridge that may not, or cannot, do anything in Slurm."""
    waiting = [p for p in pods if p.gated and not p.deleting]
    if isinstance(error, Refused):
        reason, message = "BridgePassive", f"the bridge may not act in Slurm: {error}"
    else:
        reason, message = "SlurmUnavailable", f"Slurm cannot be asked: {error}"
    return news(Tell(ClaimSet(p.ref.uid, (p,), ()), reason, message) for p in waiting)


def _says(pod: PodView, tell: Tell) -> bool:
    return pod.told is not None and (pod.told.reason, pod.told.message) == (tell.reason, tell.message)
