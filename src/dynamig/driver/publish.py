"""Keeps the node's ResourceSlices as they must be: one pool per GPU, a whole new generation at each change.

A reader takes a pool as complete only when it sees all slices of the newest generation; a change rewrites every
slice of its pool with the next generation, so no mixture is ever complete. Unchanged pools are not written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from dynamig.dra import Pool, resource_slices, same_content
from dynamig.protocol.ports import Slices

log = structlog.get_logger(__name__)

ApiSlice = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """What to do to the API: `writes` in order, each with the slice it replaces; then `deletes`, by name."""

    writes: tuple[tuple[ApiSlice, ApiSlice | None], ...]
    deletes: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.writes or self.deletes)


def plan_slices(
    pools: Iterable[Pool],
    published: Sequence[ApiSlice],
    *,
    driver: str,
    node: str,
    keep_pools: Collection[str] = (),
) -> SlicePlan:
    """From what is published to what is wanted. `keep_pools`: left as they are, for GPUs that could not be read:
    what is held must stay published, or the allocator counts it as free."""
    writes: list[tuple[ApiSlice, ApiSlice | None]] = []
    expected: set[str] = set()
    for pool in pools:
        present = [s for s in published if s["spec"]["pool"]["name"] == pool.name]
        wanted = _wanted(pool, present, driver, node)
        expected |= {s["metadata"]["name"] for s in wanted}
        by_name = {s["metadata"]["name"]: s for s in present}
        if not _is_published(wanted, by_name):
            writes += [(s, by_name.get(s["metadata"]["name"])) for s in wanted]
    deletes = tuple(
        s["metadata"]["name"]
        for s in published
        if s["metadata"]["name"] not in expected and s["spec"]["pool"]["name"] not in keep_pools
    )
    return SlicePlan(tuple(writes), deletes)


def _wanted(pool: Pool, present: Sequence[ApiSlice], driver: str, node: str) -> tuple[dict[str, Any], ...]:
    newest = max((int(s["spec"]["pool"]["generation"]) for s in present), default=0)
    return resource_slices(pool, driver=driver, node=node, generation=newest + 1)


def _is_published(wanted: Sequence[ApiSlice], present: Mapping[str, ApiSlice]) -> bool:
    """Every wanted slice is there with this content, all of one generation."""
    found = [present.get(s["metadata"]["name"]) for s in wanted]
    if any(f is None for f in found):
        return False
    generations = {f["spec"]["pool"]["generation"] for f in found if f is not None}
    return len(generations) == 1 and all(
        f is not None and same_content(dict(f), dict(w)) for f, w in zip(found, wanted, strict=True)
    )


def publish(slices: Slices, pools: Iterable[Pool], *, driver: str, node: str, keep_pools: Collection[str] = ()) -> bool:
    """What is wanted is published; True if anything had to be written."""
    plan = plan_slices(pools, slices.published(), driver=driver, node=node, keep_pools=keep_pools)
    for wanted, present in plan.writes:
        slices.write(wanted, present)
    for name in plan.deletes:
        slices.delete(name)
    if plan:
        log.info("slices_published", written=len(plan.writes), deleted=list(plan.deletes))
    return bool(plan)
