"""What the bridge remembers of its drains, in Slurm itself: for which outages a node was drained, and which of those
drains an administrator ended. Pure.

It stands in the node's Extra, beside what pods hold there: written by whoever leads, it outlives every bridge, and is
lost only together with the drain (a slurmctld that starts without its state). An outage is known by its GPU and its
beginning: a GPU that was well in between is another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.slurm_jobs import SlurmNode
from dynamig.protocol.times import from_rfc3339, to_rfc3339

DRAINED_FOR = "drainedFor"
OVERRULED = "overruled"

Mark = tuple[GpuUuid, int]
"""An outage: the GPU, and since when; an index that no GPU has is out since the epoch."""

Marks = frozenset[Mark]
NONE: Marks = frozenset()


@dataclass(frozen=True, slots=True)
class DrainMemory:
    """`drained`: outages for which a drain of ours stood at the last look; `overruled`: those whose drain somebody
    ended, or made his own: the node is not drained for them again."""

    drained: Marks = NONE
    overruled: Marks = NONE

    def to_extra(self) -> dict[str, Any]:
        """The keys that it has in our part of Extra; none if there is nothing to remember."""
        parts = {DRAINED_FOR: self.drained, OVERRULED: self.overruled}
        return {key: {gpu: to_rfc3339(since) for gpu, since in sorted(m)} for key, m in parts.items() if m}


NOTHING = DrainMemory()


def is_ours(slurm: SlurmNode) -> bool:
    """Whether the node is drained, and the reason that stands there is one of ours."""
    return slurm.drained and slurm.reason.startswith(names.DRAINED)


def memory_of(slurm: SlurmNode) -> DrainMemory:
    """What stands in Extra; nothing where Extra is no JSON object, or not as we write it."""
    ours = (slurm.extra or {}).get(names.EXTRA_KEY)
    told: Mapping[str, Any] = ours if isinstance(ours, Mapping) else {}
    return DrainMemory(_read(told.get(DRAINED_FOR)), _read(told.get(OVERRULED)))


def next_memory(slurm: SlurmNode, now: Marks) -> DrainMemory:
    """What is to be remembered. `now`: the outages of the node's GPUs.

    A drain of ours that is not there any more was ended by somebody, and one that has another's reason, for a drain or
    a DOWN, was made his own.
    """
    if not now:
        return NOTHING
    before = memory_of(slurm)
    if is_ours(slurm):
        return DrainMemory(now - before.overruled, before.overruled & now)
    return DrainMemory(NONE, (before.overruled | before.drained) & now)


def _read(told: Any) -> Marks:
    try:
        return frozenset((GpuUuid(str(gpu)), int(from_rfc3339(since))) for gpu, since in (told or {}).items())
    except (ValueError, TypeError, AttributeError):  # other people write there too
        return NONE
