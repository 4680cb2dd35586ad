"""Which memory slices of a GPU somebody can still get, by the counters that the scheduler adds up. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from dynamig.cli.holdings import Holding, HoldingState
from dynamig.dra import PublishedDevice, PublishedPool
from dynamig.dra.names import memory_slice_of
from dynamig.dra.read import PublishedTaint
from dynamig.protocol import names

WITHDRAWING = ("NoSchedule", "NoExecute")
"""Taint effects that keep new claims away; others only inform (resource.k8s.io/v1 DeviceTaintEffect)."""

Counters = dict[str, dict[str, Fraction]]
"""Counter set -> counter -> amount."""


def reachable(pool: PublishedPool, devices: Iterable[PublishedDevice], holdings: Iterable[Holding]) -> frozenset[int]:
    """Memory slices on which at least one of `devices` fits beside `holdings`, all those in the pool."""
    left = _left(pool, holdings)
    return frozenset(s for d in devices if not withdrawn(d) and _fits(d, left) for s in d.memory_slices)


def withdrawn(device: PublishedDevice) -> bool:
    return any(map(keeps_away, device.taints))


def keeps_away(taint: PublishedTaint) -> bool:
    """New claims do not get the device. Slurm's taint is none of these: the bridge allocates what has it."""
    return taint.effect in WITHDRAWING and taint.key != names.MANAGED_TAINT


def _fits(device: PublishedDevice, left: Counters) -> bool:
    return all(
        amount <= left.get(group, {}).get(counter, 0)
        for group, counters in device.consumes.items()
        for counter, amount in counters.items()
    )


def _left(pool: PublishedPool, holdings: Iterable[Holding]) -> Counters:
    left = {group: dict(counters) for group, counters in pool.counters.items()}
    devices = {d.name: d for d in pool.devices}
    for holding in holdings:
        if holding.state is HoldingState.ADMIN:
            continue
        if known := devices.get(holding.device):
            _take(left, known.consumes)
        else:
            _take(left, _slices_of(holding, pool))
    return left


def _slices_of(holding: Holding, pool: PublishedPool) -> Counters:
    """What a device that is not published any more certainly takes: its memory slices, of its GPU's counter sets."""
    groups = {group for d in pool.devices if d.gpu == holding.gpu for group in d.consumes}
    taken = set(holding.memory_slices)
    return {g: {c: Fraction(1) for c in pool.counters.get(g, {}) if memory_slice_of(c) in taken} for g in groups}


def _take(left: Counters, consumed: Mapping[str, Mapping[str, Fraction]]) -> None:
    for group, counters in consumed.items():
        for counter, amount in counters.items():
            if counter in left.get(group, {}):
                left[group][counter] -= amount
