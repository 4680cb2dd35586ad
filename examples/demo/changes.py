"""What happened between two snapshots, one sentence a change. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dynamig.cli.holdings import Holding, HoldingState
from dynamig.cli.words import profile, ranges
from examples.demo.seen import PodSeen, Snapshot

Key = tuple[str, str, str, str]


def changes(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """What is given back first, then pods, then what is handed out; only what concerns somebody who watches.

    One look shows what happened in some time, and the order within it is not seen. Told this way round, no line says
    that somebody has what another one still holds.
    """
    yield from _given_back(before, after)
    for gone in before.pods:
        if after.pod(gone.name) is None:
            yield f"{gone.name} is gone"
    for pod in after.pods:
        yield from _of_pod(before.pod(pod.name), pod)
    yield from _handed_out(before, after)


def _of_pod(before: PodSeen | None, now: PodSeen) -> Iterator[str]:
    if now.waits and now.waits != (before.waits if before else ""):
        yield f'{now.name} waits; the scheduler says: "{now.waits.partition(" preemption:")[0]}"'
    if now.node and not (before and before.node):
        yield f"{now.name} is scheduled to {now.node}"
    if now.phase != (before.phase if before else "Pending"):
        yield f"{now.name} ends" if now.phase == "Terminating" else f"{now.name} is {now.phase}"


def _given_back(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Devices that are gone, or must be: another claim has one ready in their place.

    A driver makes a device only where the hardware is empty, and may report that before the API server has let go of
    the claim that was there. That one was told of when its successor came, and is not told of again.
    """
    now = {_key(h) for h in after.holdings}
    for holding in before.holdings:
        if not _replaced(holding, before) and (_key(holding) not in now or _replaced(holding, after)):
            ends = f"empty again, {holding.profile} is destroyed" if holding.profile else "given back"
            yield f"{place(holding)}: {ends}"


def _replaced(holding: Holding, by: Snapshot) -> bool:
    """Another claim has a ready device on memory slices of this one."""
    return any(
        other.state is HoldingState.READY
        and (other.namespace, other.claim) != (holding.namespace, holding.claim)
        and other.pool == holding.pool
        and set(other.memory_slices) & set(holding.memory_slices)
        for other in by.holdings
    )


def _handed_out(before: Snapshot, after: Snapshot) -> Iterator[str]:
    was = {_key(h): h.state for h in before.holdings}
    for holding in after.holdings:
        if was.get(_key(holding)) is not holding.state:
            yield from _of_device(holding)


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
