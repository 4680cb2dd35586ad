"""How well does first fit pack, for different orders of the placements of a profile?

    python bench/first_fit_order.py [--requests N] [--seed N]

kube-scheduler takes the first device that fits, so the order in which a driver publishes devices is the only
placement policy there is without a scheduler plugin. This simulates it: claims of a demand mix arrive at a few
GPUs, live for a while, and are refused when nothing fits. Every order sees the same arrivals. Printed: the share
of the requested memory slices that was served, and the ratio to the ascending order in which NVML lists
placements.

`fewest lost, live` is no order: it chooses with `dynamig.mig.fewest_lost` at each arrival, as a scheduler
that scores could. It shows what is left to gain. `best of all` tries every order of one profile at a time, around the
published one, and keeps the best: it is fitted to the very arrivals it is measured on, so it is an upper bound.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from dynamig.mig import (
    Engines,
    Geometry,
    GiProfile,
    GiProfileId,
    MiB,
    NvmlProfile,
    Partition,
    Placement,
    Table,
    fewest_lost,
    first_fit_order,
)

GPUS = 4

H100 = Geometry(
    tuple(
        GiProfile(
            GiProfileId(id), NvmlProfile(0), name, compute, MiB(memory), Engines(ofa_engines=ofa), most,
            tuple(Placement(start, size) for start in starts),
        )
        for name, id, compute, memory, ofa, most, size, starts in (
            ("1g.10gb", 19, 1, 9984, 0, 7, 1, (0, 1, 2, 3, 4, 5, 6)),
            ("1g.10gb+me", 20, 1, 9984, 1, 1, 1, (0, 1, 2, 3, 4, 5, 6)),
            ("1g.20gb", 15, 1, 20096, 0, 4, 2, (0, 2, 4, 6)),
            ("2g.20gb", 14, 2, 20096, 0, 3, 2, (0, 2, 4)),
            ("3g.40gb", 9, 3, 40448, 0, 2, 4, (0, 4)),
            ("4g.40gb", 5, 4, 40448, 0, 1, 4, (0,)),
            ("7g.80gb", 0, 7, 81152, 1, 1, 8, (0,)),
        )
    )
)  # fmt: skip
"""Placements of the 7-slice family, as nvidia-smi prints them; all that matters here."""

MIXES: dict[str, dict[str, float]] = {
    "small and 4g": {"1g.10gb": 12, "4g.40gb": 2},
    "small and 3g": {"1g.10gb": 12, "3g.40gb": 2},
    "small, 2g, 3g, 4g": {"1g.10gb": 8, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1},
    "with double memory": {"1g.10gb": 6, "1g.20gb": 4, "2g.20gb": 2, "3g.40gb": 2, "4g.40gb": 1},
    "with whole GPUs": {"1g.10gb": 10, "2g.20gb": 2, "3g.40gb": 1, "7g.80gb": 1},
    "2g and 4g": {"2g.20gb": 4, "4g.40gb": 2},
}
"""Weights of the arrivals. Not measured anywhere: chosen to stress different pairs of profiles."""

Choose = Callable[[Sequence[Partition], GiProfileId], Partition | None]
Orders = Mapping[GiProfileId, Sequence[Partition]]


@dataclass(frozen=True)
class Arrival:
    at: float
    until: float
    profile: GiProfileId
    size: int


def arrivals(mix: Mapping[str, float], count: int, load: float, seed: int) -> list[Arrival]:
    """Poisson arrivals with exponential lives (mean 1), asking for `load` times what the GPUs have."""
    chance = random.Random(seed)
    profiles = [one for one in H100.profiles if one.name in mix]
    weights = [mix[one.name] for one in profiles]
    mean_size = sum(w * one.size for w, one in zip(weights, profiles, strict=True)) / sum(weights)
    rate = load * GPUS * H100.memory_slices / mean_size
    now, result = 0.0, []
    for _ in range(count):
        now += chance.expovariate(rate)
        (one,) = chance.choices(profiles, weights)
        result.append(Arrival(now, now + chance.expovariate(1), one.id, one.size))
    return result


def served(requests: Iterable[Arrival], choose: Choose) -> float:
    """Memory slices granted, as a share of those asked for; GPUs are tried in order, as pools are."""
    live: list[list[Partition]] = [[] for _ in range(GPUS)]
    ends: list[tuple[float, int, Partition]] = []
    asked = given = 0
    for one in requests:
        while ends and ends[0][0] <= one.at:
            _, gpu, gone = heapq.heappop(ends)
            live[gpu].remove(gone)
        asked += one.size
        for gpu in range(GPUS):
            if (found := choose(live[gpu], one.profile)) is not None:
                live[gpu].append(found)
                heapq.heappush(ends, (one.until, gpu, found))
                given += one.size
                break
    return given / asked


def first_fit_of(table: Table, orders: Orders) -> Choose:
    return lambda live, profile: next((p for p in orders[profile] if table.fits(live, p)), None)


def ascending(table: Table) -> Orders:
    return {one.id: sorted(one.partitions()) for one in table.geometry.profiles}


def descending(table: Table) -> Orders:
    return {one.id: sorted(one.partitions(), reverse=True) for one in table.geometry.profiles}


def fewest_conflicts(table: Table) -> Orders:
    """By the number of partitions each excludes on an empty GPU; what the published order refines."""
    return {
        one.id: sorted(one.partitions(), key=lambda p: (len(table.conflicts(p)), p))
        for one in table.geometry.profiles
    }


def published(table: Table) -> Orders:
    order = first_fit_order(table.geometry)
    return {one.id: [p for p in order if p.profile == one.id] for one in table.geometry.profiles}


def best_of_all(table: Table, requests: Sequence[Arrival]) -> Orders:
    """Every permutation of each profile in turn, the other profiles as published (5,040 for 1g: sampled)."""
    best = dict(published(table))
    chance = random.Random(0)
    for profile in {one.profile for one in requests}:
        tries = list(permutations(best[profile]))
        tries = chance.sample(tries, min(len(tries), 120))
        best[profile] = max(
            [best[profile], *tries],
            key=lambda order: served(requests, first_fit_of(table, {**best, profile: order})),
        )
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=6000, help="arrivals per mix and load")
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--best", action="store_true", help="search for better orders too (minutes)")
    options = parser.parse_args()
    table = Table(H100)
    chosen: dict[str, Choose] = {
        "ascending": first_fit_of(table, ascending(table)),
        "descending": first_fit_of(table, descending(table)),
        "fewest conflicts": first_fit_of(table, fewest_conflicts(table)),
        "published": first_fit_of(table, published(table)),
        "fewest lost, live": lambda live, profile: fewest_lost(table, live, profile),
    }
    print(f"{GPUS} GPUs, {options.requests} requests per cell, seed {options.seed}; served share, ratio to ascending")
    print(f"{'mix':20} {'load':>4}  " + "  ".join(f"{name:>19}" for name in chosen))
    sums = dict.fromkeys(chosen, 0.0)
    cells = 0
    for name, mix in MIXES.items():
        for load in (0.7, 0.9, 1.2):
            requests = arrivals(mix, options.requests, load, options.seed)
            results = {policy: served(requests, choose) for policy, choose in chosen.items()}
            if options.best:
                results["best of all"] = served(requests, first_fit_of(table, best_of_all(table, requests)))
            base = results["ascending"]
            print(
                f"{name:20} {load:4.1f}  "
                + "  ".join(f"{share:9.3f} ({share / base:6.3f})" for share in results.values())
            )
            cells += 1
            for policy in chosen:
                sums[policy] += results[policy] / base
    print(f"{'mean ratio':20}       " + "  ".join(f"{total / cells:19.3f}" for total in sums.values()))


if __name__ == "__main__":
    main()
