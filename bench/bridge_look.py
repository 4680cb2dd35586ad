"""What one look of the bridge costs, on fakes: the picture of the world, and what is decided on it.

Clusters of nodes with eight H100, three fifths of their slices in use, and pods that wait. Every set that waits is
asked about every GPU in each look, so this stands against the allocator alone: the best of all nodes for each such pod,
one after the other, on nodes that are already read. What Slurm and the API server would need is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from typing import TypeVar

from bench.fake_cluster import CLASS, GPUS, IDS, MIG_CLASS, FakeCluster, joined, node_names, published, wants
from bench.figures import Figure, Report, series
from bench.quiet import only_warnings
from dynamig.bridge import look
from dynamig.bridge.world import World
from dynamig.dra.allocate import (
    Allocation,
    DeviceId,
    NodeDevices,
    best_node,
    offers_by_node,
    read_claim,
    read_class,
)
from dynamig.protocol import names

T = TypeVar("T")
MIX = ("1g.10gb", "1g.10gb", "2g.20gb", "1g.10gb", "3g.40gb")
PER_NODE = 14
"""Pods on each node: about three fifths of its 56 compute slices."""

WAITING = (1, 50)


def report(*, quick: bool) -> Report:
    return report_of((2,) if quick else (2, 20), rounds=3 if quick else 9)


def report_of(sizes: Sequence[int], rounds: int) -> Report:
    figures: list[Figure] = []
    with only_warnings():
        for nodes in sizes:
            for waiting in WAITING:
                figures += _figures(filled(nodes), waiting, rounds)
    note = f"nodes x {GPUS} H100, {PER_NODE} pods on each; `first`: nothing was read before; the others: a look later"
    return Report(tuple(figures), (note,))


def filled(nodes: int) -> FakeCluster:
    """Filled by the bridge itself, node by node, so that nothing depends on how many there are."""
    parts = []
    for number, name in enumerate(node_names(nodes)):
        part = FakeCluster([name], first_id=1 + number * IDS)
        part.arrive(islice(cycle(MIX), PER_NODE))
        part.settle()
        parts.append(part)
    return joined(parts)


def _figures(cluster: FakeCluster, waiting: int, rounds: int) -> Iterator[Figure]:
    size = f"{len(cluster.nodes)} nodes, {waiting} waiting"
    profiles = list(islice(cycle(MIX), waiting))
    cluster.arrive(profiles)
    alone = Allocator(cluster)
    rows: dict[str, list[float]] = {"world": [], "decide": [], "alone": []}
    for _ in range(rounds + 1):
        spent, world = timed(partial(look.world, **cluster.seen()))
        rows["world"].append(spent)
        rows["decide"].append(timed(partial(_all_of, cluster, world))[0])
        rows["alone"].append(timed(lambda: alone.best_for(profiles))[0])
    floor = series(f"the allocator alone, {size}", "ms", rows["alone"][1:], scale=1e3)
    first = series(f"first look, {size}", "ms", [rows["world"][0] + rows["decide"][0]], scale=1e3)
    yield Figure(first, floor)
    for part in ("world", "decide"):
        yield Figure(series(f"{part}, {size}", "ms", rows[part][1:], scale=1e3), floor)


def _all_of(cluster: FakeCluster, world: World) -> int:
    return sum(len(actions) for actions in cluster.decided(world))


def timed(act: Callable[[], T]) -> tuple[float, T]:
    """Seconds, and the result."""
    begun = time.perf_counter()
    result = act()
    return time.perf_counter() - begun, result


class Allocator:
    """The same nodes with the same devices held, for the allocator without a bridge."""

    def __init__(self, cluster: FakeCluster) -> None:
        claims = cluster.world().claims.values()
        held = frozenset(
            DeviceId(d.driver, d.pool, d.device) for c in claims for d in c.view.devices_of(names.DRIVER_NAME)
        )
        self._nodes = {n: NodeDevices(n, offers_by_node(published(n).slices)[n]).occupied(held) for n in cluster.nodes}
        self._classes = {MIG_CLASS: read_class(CLASS)}
        self._claims = {p: read_claim({"metadata": {"namespace": "ns", "name": p}, "spec": wants(p)}) for p in MIX}

    def best_for(self, profiles: Sequence[str]) -> int:
        """Places for the profiles, one after the other, each beside those before; nothing of it stays."""
        nodes, placed = dict(self._nodes), 0
        for profile in profiles:
            found = best_node(nodes.values(), [self._claims[profile]], self._classes)
            if isinstance(found, Allocation):
                nodes[found.node] = nodes[found.node].changed(hold=found.held)
                placed += 1
        return placed
