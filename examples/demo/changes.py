"""What happened between two snapshots, one sentence a change. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dynamig.cli.draw import profile, ranges
from dynamig.cli.view import Holding, HoldingState
from examples.demo.seen import PodSeen, Snapshot

Key = tuple[str, str, str, str]


def changes(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Pods first, then devices; only what concerns somebody who watches."""
    for pod in after.pods:
        yield from _of_pod(before.pod(pod.name), pod)
    for gone in before.pods:
        if after.pod(gone.name) is None:
            yield f"{gone.name} is gone"
    yield from _of_devices(before, after)


def _of_pod(before: PodSeen | None, now: PodSeen) -> Iterator[str]:
    if now.waits and now.waits != (before.waits if before else ""):
        yield f'{now.name} waits; the scheduler says: "{now.waits.partition(" preemption:")[0]}"'
    if now.node and not (before and before.node):
        yield f"{now.name} is scheduled to {now.node}"
    if now.phase != (before.phase if before else "Pending"):
        yield f"{now.name} ends" if now.phase == "Terminating" else f"{now.name} is {now.phase}"


def _of_devices(before: Snapshot, after: Snapshot) -> Iterator[str]:
    was = {_key(h): h for h in before.holdings}
    now = {_key(h): h for h in after.holdings}
    for key, holding in now.items():
        earlier = was.get(key)
        if earlier is None or earlier.state is not holding.state:
            yield from _of_device(holding)
    for key, holding in was.items():
        if key not in now:
            yield (
                f"{place(holding)}: empty again, {profile(holding)} is destroyed"
                if holding.profile
                else (f"{place(holding)}: given back")
            )


def _of_device(holding: Holding) -> Iterator[str]:
    who = " and ".join(holding.pods) or holding.claim
    match holding.state:
        case HoldingState.READY if holding.profile:
            yield f"{place(holding)}: {holding.profile} is cut for {who}: {holding.uuid}"
        case HoldingState.READY:
            yield f"{place(holding)}: the whole GPU is ready for {who}: {holding.uuid}"
        case HoldingState.FAILED:
            yield f"{place(holding)}: {profile(holding)} for {who} failed: {holding.reason}"


def place(holding: Holding) -> str:
    """`n1/gpu-0, memory slices 0-3`."""
    taken = holding.memory_slices
    if holding.profile is None or not taken:
        return holding.pool
    return f"{holding.pool}, memory slice{'s' if len(taken) > 1 else ''} {ranges(taken)}"


def _key(holding: Holding) -> Key:
    return holding.namespace, holding.claim, holding.pool, holding.device
