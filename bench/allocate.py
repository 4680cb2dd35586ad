"""The allocator against Kubernetes' own, on the same cluster, in the same run.

The cluster: nodes with eight H100 as this driver publishes them (one pool per GPU), each GPU filled at random and
then thinned to nine tenths. Kubernetes' allocator (1.37.2) runs as `tests/integration/oracle`; both read the same
slices, hold the same devices and get the same claims.

| figure | Kubernetes | here |
| --- | --- | --- |
| a node that fits, that is full | one Allocate call on one node | `allocate`, first fit, a question not asked before |
| all nodes | every node asked, one after the other | the best of all; one node has changed since the last time |
| worst case | seven 1g on one GPU where six are free on each of eight | the same |
| filling | claim after claim until nothing fits, first fit | the same claims, the best of all nodes for each |

Kubernetes keeps nothing between pods, so it has no "asked before". Wall-clock time, one thread each; whether a node
fits must be the same on both sides, else there is no report. Results: docs/decisions/0009.
"""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.figures import Figure, Report, series
from dynamig.dra import gpu_pool, resource_slices
from dynamig.dra.allocate import (
    Allocation,
    Claim,
    DeviceClass,
    DeviceId,
    NodeDevices,
    Occupancy,
    Policy,
    allocate,
    best_node,
    offers_by_node,
    read_claim,
    read_class,
)
from dynamig.mig import GpuUuid
from tests.integration.oracle.oracle import Oracle, build
from tests.unit.dra.gpus import facts

Object = dict[str, Any]
DRIVER, GPUS, SHARE, SEED = "gpu.nvidia.com", 8, 0.9, 20261129
A = f"device.attributes['{DRIVER}']"
CLASS = {
    "metadata": {"name": "mig"},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}' && {A}.type == 'mig'"}}]},
}
MIX = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb")


def slices_of(node: str) -> list[Object]:
    slices: list[Object] = []
    for n in range(GPUS):
        pool = gpu_pool(
            node, replace(facts(), number=n, uuid=GpuUuid(f"GPU-{node}-{n}"), pci_bus_id=f"0000:{n:02x}:00.0")
        )
        slices += resource_slices(pool, driver=DRIVER, node=node, generation=1)
    return slices


def request(name: str, profile: str, count: int = 1) -> Object:
    selector = {"cel": {"expression": f"{A}.profile == '{profile}'"}}
    return {"name": name, "exactly": {"deviceClassName": "mig", "count": count, "selectors": [selector]}}


def claim(*requests: Object, match: bool = False, name: str = "c") -> Object:
    devices: Object = {"requests": list(requests)}
    if match:
        devices["constraints"] = [{"matchAttribute": f"{DRIVER}/parentUUID"}]
    return {"metadata": {"name": name, "namespace": "d"}, "spec": {"devices": devices}}


WORKLOADS: dict[str, list[Object]] = {
    "1g.10gb": [claim(request("r", "1g.10gb"))],
    "3g.40gb": [claim(request("r", "3g.40gb"))],
    "two claims": [claim(request("r", "1g.10gb")), claim(request("r", "2g.20gb"), name="e")],
    "4 x 1g, count": [claim(request("r", "1g.10gb", 4), match=True)],
    "4 x 1g, requests": [claim(*(request(f"r{i}", "1g.10gb") for i in range(4)), match=True)],
}
WORST = [claim(*(request(f"r{i}", "1g.10gb") for i in range(7)), match=True)]


@dataclass
class Cluster:
    nodes: list[Occupancy]
    held: list[DeviceId]
    classes: dict[str, DeviceClass]

    @staticmethod
    def of(count: int) -> Cluster:
        devices = [NodeDevices(name, offers_by_node(slices_of(name))[name]) for name in names(count)]
        return Cluster([one.occupied() for one in devices], [], {"mig": read_class(CLASS)})

    def filled(self, share: float, rng: random.Random) -> Cluster:
        """Random maximal packings of all GPUs, thinned to the share of devices."""
        held = [device for node in self.nodes for device in _packed(node, rng)]
        rng.shuffle(held)
        return self.holding(held[: int(share * len(held))])

    def holding(self, held: Sequence[DeviceId]) -> Cluster:
        taken = frozenset(held)
        return Cluster([one.node.occupied(taken) for one in self.nodes], list(held), self.classes)


def names(count: int) -> list[str]:
    return [f"node-{i:04d}" for i in range(count)]


def _packed(node: Occupancy, rng: random.Random) -> Iterator[DeviceId]:
    while free := [i for i in range(len(node.node.ids)) if node.free >> i & 1]:
        device = node.node.ids[rng.choice(free)]
        node = node.changed(hold=[device])
        yield device


def given(cluster: Cluster, workloads: dict[str, list[Object]], **more: Any) -> Object:
    """The same for the oracle."""
    held = [one._asdict() for one in cluster.held]
    nodes = [one.node.name for one in cluster.nodes]
    return {
        "slices": slices_of("NODE"),
        "nodes": nodes,
        "classes": [CLASS],
        "held": held,
        "workloads": workloads,
        "timeoutMs": 60_000,
        **more,
    }


def one_by_one(cluster: Cluster, claims: list[Claim]) -> dict[str, list[float]]:
    """Microseconds per node, as the oracle tells them."""
    times: dict[str, list[float]] = {"fits": [], "noFit": []}
    for node in cluster.nodes:
        start = time.perf_counter()
        answer = allocate(node, claims, cluster.classes, Policy.FIRST_FIT)
        spent = (time.perf_counter() - start) * 1e6
        times["fits" if isinstance(answer, Allocation) else "noFit"].append(spent)
    return times


def best_of_all(cluster: Cluster, claims: list[Claim], rounds: int = 9) -> list[float]:
    """Milliseconds of a decision over all nodes when one of them has changed since the last one."""
    times = []
    nodes = list(cluster.nodes)
    best_node(nodes, claims, cluster.classes)
    for i in range(rounds):
        which = i % len(nodes)
        nodes[which] = nodes[which].node.occupied(cluster.held)
        start = time.perf_counter()
        best_node(nodes, claims, cluster.classes)
        times.append((time.perf_counter() - start) * 1e3)
    return times


def filling(cluster: Cluster, claims: list[Claim], order: list[int]) -> tuple[int, float]:
    """Claims that found room, and seconds."""
    nodes = {one.node.name: one for one in cluster.nodes}
    dead: set[int] = set()
    allocated = 0
    start = time.perf_counter()
    for which in order:
        if which in dead:
            continue
        match best_node(nodes.values(), [claims[which]], cluster.classes):
            case Allocation() as found:
                nodes[found.node] = nodes[found.node].changed(hold=found.held)
                allocated += 1
            case _:
                dead.add(which)
    return allocated, time.perf_counter() - start


def against(name: str, unit: str, ours: Sequence[float], theirs: Sequence[float]) -> Iterator[Figure]:
    if ours and theirs:
        yield Figure(series(f"{name}, here", unit, ours), series(f"{name}, Kubernetes", unit, theirs))


def workload_figures(cluster: Cluster, theirs: Object) -> Iterator[Figure]:
    for name, objects in WORKLOADS.items():
        claims, other = [read_claim(one) for one in objects], theirs[name]
        ours = one_by_one(cluster, claims)
        if len(ours["fits"]) != len(other["fits"]):
            raise AssertionError(f"{name}: {len(other['fits'])} nodes fit there and {len(ours['fits'])} here")
        yield from against(f"{name}: a node that fits", "us", ours["fits"], other["fits"])
        yield from against(f"{name}: a full node", "us", ours["noFit"], other["noFit"])
        yield from against(f"{name}: all nodes", "ms", best_of_all(cluster, claims), [other["allMs"]])


def worst_figures(oracle: Oracle) -> Iterator[Figure]:
    one = Cluster.of(1)
    at_six = [device for device in one.nodes[0].node.ids if device.device.endswith("-mig-1g10gb-19-6")]
    cluster = one.holding(at_six)
    theirs = oracle.run("bench", given(cluster, {"worst": WORST}), "-")["workloads"]["worst"]
    ours = one_by_one(cluster, [read_claim(one) for one in WORST])
    yield from against("worst case: one node", "us", ours["noFit"], theirs["noFit"])


def fill_figures(oracle: Oracle, empty: Cluster, rng: random.Random) -> Iterator[Figure]:
    profiles = [claim(request("r", profile)) for profile in MIX]
    order = [rng.randrange(len(MIX)) for _ in range(len(empty.nodes) * GPUS * 7)]
    theirs = oracle.run("bench", given(empty, {}, fill=profiles, order=order), "-")
    allocated, seconds = filling(empty, [read_claim(one) for one in profiles], order)
    there = theirs["fill"]
    yield from against("filling: claims a second", "1/s", [allocated / seconds], [there["perSecond"]])
    yield from against("filling: claims that found room", "claims", [allocated], [there["allocated"]])
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield from against("memory of the process", "MiB", [here], [theirs["maxRSSMiB"]])


def report(*, quick: bool) -> Report:
    oracle, rng, count = build(), random.Random(SEED), 20 if quick else 100
    empty = Cluster.of(count)
    cluster = empty.filled(SHARE, rng)
    theirs = oracle.run("bench", given(cluster, WORKLOADS), "-")["workloads"]
    figures = (
        *workload_figures(cluster, theirs),
        *worst_figures(oracle),
        *fill_figures(oracle, empty, rng),
    )
    return Report(figures, (f"{count} nodes x {GPUS} H100, {SHARE:.0%} of a random packing held; Kubernetes 1.37.2",))


def main() -> None:
    found = report(quick="--quick" in sys.argv[1:])
    print(*found.notes, sep="\n")
    for figure in found.figures:
        assert figure.against is not None
        ours, theirs = figure.series.median, figure.against.median
        print(
            f"{figure.series.name:<42} {ours:>12,.1f} {theirs:>12,.1f} {figure.series.unit:<7} {theirs / ours:10.2f}x"
        )


if __name__ == "__main__":
    main()
