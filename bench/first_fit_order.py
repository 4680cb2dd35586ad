"""How well does first fit pack, for different orders of the placements of a profile?

    python bench/first_fit_order.py [--best] [--requests N] [--seeds N]

kube-scheduler takes the first device that fits, so the order in which a driver publishes devices is the only
placement policy there is without a scheduler plugin. Two experiments on the 7-slice family, both
deterministic:

1. **Filling** (exact, no chance): requests of a demand mix arrive at one empty GPU and stay. Expected
   memory slices granted until the first request is refused, for an order of the placements, as a share of
   the best that any policy reaches which knows the mix, computed by recursion over all states. With
   `--best` also the best order found for that mix.
2. **Churn** (simulated): requests arrive at four GPUs, live for an exponential time and are refused when
   nothing fits. Share of the requested memory slices that was served, and of the requests for four slices
   or more, over several seeds; every policy sees the same arrivals.

`ascending` is the order in which NVML lists placements. `fewest lost` is no order: it chooses with
`dynamig.mig.fewest_lost` at each arrival, as a scheduler that scores could. Results: docs/decisions/0003.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product
from statistics import mean

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

Layout = frozenset[Partition]
Choose = Callable[[Layout, GiProfileId], Partition | None]
Orders = Mapping[GiProfileId, Sequence[Partition]]
Mix = Mapping[GiProfileId, int]

GPUS, LOADS, LARGE = 4, (0.7, 1.0), 4
NAMES = {"1g": 19, "1g+me": 20, "1gx2": 15, "2g": 14, "3g": 9, "4g": 5, "7g": 0}

MIXES: dict[str, dict[str, int]] = {
    "1g and 4g": {"1g": 12, "4g": 2},
    "1g and 3g": {"1g": 12, "3g": 2},
    "2g and 4g": {"2g": 4, "4g": 2},
    "1g 2g 3g": {"1g": 8, "2g": 3, "3g": 2},
    "1g 2g 3g 4g": {"1g": 8, "2g": 3, "3g": 2, "4g": 1},
    "with double memory": {"1g": 6, "1gx2": 4, "2g": 2, "3g": 2, "4g": 1},
    "with whole GPUs": {"1g": 10, "2g": 2, "3g": 1, "7g": 1},
    "all alike": {"1g": 1, "1gx2": 1, "2g": 1, "3g": 1, "4g": 1, "7g": 1},
}
"""Weights of the arrivals. Not measured anywhere: chosen to set pairs of profiles against each other."""


def seven_slices() -> Geometry:
    """Profiles of the 7-slice family by size and starts, as nvidia-smi prints them; nothing else matters
    here.
    """
    shapes = {
        "1g": (1, 1, range(7)),
        "1g+me": (1, 1, range(7)),
        "1gx2": (1, 2, (0, 2, 4, 6)),
        "2g": (2, 2, (0, 2, 4)),
        "3g": (3, 4, (0, 4)),
        "4g": (4, 4, (0,)),
        "7g": (7, 8, (0,)),
    }
    return Geometry(
        tuple(
            GiProfile(
                GiProfileId(NAMES[name]),
                NvmlProfile(0),
                name,
                compute,
                MiB(1),
                Engines(ofa_engines=int(name in ("1g+me", "7g"))),
                1 if name == "1g+me" else len(starts),
                tuple(Placement(start, size) for start in starts),
            )
            for name, (compute, size, starts) in shapes.items()
        )
    )


TABLE = Table(seven_slices())


def by_profile(every: Iterable[Partition]) -> Orders:
    every = list(every)
    return {one.id: [p for p in every if p.profile == one.id] for one in TABLE.geometry.profiles}


PUBLISHED = by_profile(first_fit_order(TABLE.geometry))
ASCENDING = by_profile(sorted(TABLE.options))


def first_fit_by(by: Orders, live: Layout, profile: GiProfileId) -> Partition | None:
    possible = set(TABLE.possible(live))
    return next((p for p in by[profile] if p in possible), None)


# 1. Filling


def granted(mix: Mix, candidates: Callable[[Layout, GiProfileId], Iterable[Partition]]) -> float:
    """Expected slices granted to an empty GPU until a refusal, if each time the best of the candidates is
    taken.
    """
    total = sum(mix.values())
    known: dict[Layout, float] = {}

    def rest(live: Layout) -> float:
        if live not in known:
            known[live] = sum(
                weight
                / total
                * max((p.placement.size + rest(live | {p}) for p in candidates(live, profile)), default=0)
                for profile, weight in mix.items()
            )
        return known[live]

    return rest(frozenset())


def by_policy(choose: Choose, live: Layout, profile: GiProfileId) -> Iterator[Partition]:
    if (found := choose(live, profile)) is not None:
        yield found


def anything(live: Layout, profile: GiProfileId) -> Iterator[Partition]:
    return (p for p in TABLE.possible(live) if p.profile == profile)


def best_order(mix: Mix) -> tuple[float, Orders]:
    """The best order found for the mix, starting from the published and the ascending one."""
    return max((_improved(mix, start) for start in (PUBLISHED, ASCENDING)), key=lambda found: found[0])


def _improved(mix: Mix, start: Orders) -> tuple[float, Orders]:
    """All orders of one profile at a time, until none helps."""
    best: Orders = {id: start[id] for id in mix}
    most, improved = _granted_by_masks(mix, best), True
    while improved:
        improved = False
        for profile in mix:
            for order in permutations(start[profile]):
                tried = {**best, profile: order}
                if (result := _granted_by_masks(mix, tried)) > most + 1e-9:
                    best, most, improved = tried, result, True
    return most, best


def _granted_by_masks(mix: Mix, by: Orders) -> float:
    """As `granted` for an order, by memory slices alone: the mixes above ask for no media extensions."""
    total = sum(mix.values())
    masks = [(weight / total, [(p.placement.mask, p.placement.size) for p in by[id]]) for id, weight in mix.items()]
    known: dict[int, float] = {}

    def rest(used: int) -> float:
        if used not in known:
            known[used] = 0.0
            for weight, places in masks:
                for mask, size in places:
                    if not used & mask:
                        known[used] += weight * (size + rest(used | mask))
                        break
        return known[used]

    return rest(0)


# 2. Churn


@dataclass(frozen=True)
class Arrival:
    at: float
    until: float
    profile: GiProfileId
    size: int


def arrivals(mix: Mix, count: int, load: float, seed: int) -> Iterator[Arrival]:
    """Poisson arrivals with exponential lives (mean 1), asking for `load` times what the GPUs have."""
    chance = random.Random(seed)
    sizes = {id: TABLE.geometry.profile(id).size for id in mix}
    mean_size = sum(weight * sizes[id] for id, weight in mix.items()) / sum(mix.values())
    now = 0.0
    for _ in range(count):
        now += chance.expovariate(load * GPUS * TABLE.geometry.memory_slices / mean_size)
        (profile,) = chance.choices(list(mix), list(mix.values()))
        yield Arrival(now, now + chance.expovariate(1), profile, sizes[profile])


def served(requests: Iterable[Arrival], choose: Choose) -> tuple[float, float]:
    """Share of the slices granted, and of the large requests; GPUs are tried in order, as pools are."""
    live: list[Layout] = [frozenset()] * GPUS
    ends: list[tuple[float, int, Partition]] = []
    slices, large = [0, 0], [0, 0]
    for one in requests:
        while ends and ends[0][0] <= one.at:
            _, gpu, gone = heapq.heappop(ends)
            live[gpu] -= {gone}
        found = ((gpu, choose(live[gpu], one.profile)) for gpu in range(GPUS))
        gpu, partition = next(((g, p) for g, p in found if p is not None), (-1, None))
        if partition is not None:
            live[gpu] |= {partition}
            heapq.heappush(ends, (one.until, gpu, partition))
        for counts, amount in ((slices, one.size), (large, int(one.size >= LARGE))):
            counts[0] += amount * (partition is not None)
            counts[1] += amount
    return slices[0] / slices[1], large[0] / max(large[1], 1)


POLICIES: dict[str, Choose] = {
    "ascending": partial(first_fit_by, ASCENDING),
    "published": partial(first_fit_by, PUBLISHED),
    "fewest lost": partial(fewest_lost, TABLE),
}


def by_id(mix: Mapping[str, int]) -> Mix:
    return {GiProfileId(NAMES[name]): weight for name, weight in mix.items()}


def fill(best: bool) -> None:
    print("Filling one empty GPU: share of what the best policy for the mix is expected to grant before a refusal")
    print(f"{'mix':20}" + "".join(f"{name:>13}" for name in POLICIES) + "   ascending -> published")
    shares: dict[str, list[float]] = {name: [] for name in POLICIES}
    for name, weights in MIXES.items():
        mix = by_id(weights)
        optimum = granted(mix, anything)
        for policy, choose in POLICIES.items():
            shares[policy].append(granted(mix, partial(by_policy, choose)) / optimum)
        row = {policy: shares[policy][-1] for policy in POLICIES}
        print(
            f"{name:20}"
            + "".join(f"{share:13.3f}" for share in row.values())
            + f"   x {row['published'] / row['ascending']:.3f}"
        )
        if best:
            most, by = best_order(mix)
            starts = {TABLE.geometry.profile(id).name: [p.placement.start for p in by[id]] for id in mix}
            print(f"{'':20}best order for this mix: {most / optimum:.3f} {starts}")
    means = {policy: mean(many) for policy, many in shares.items()}
    print(
        f"{'mean':20}"
        + "".join(f"{share:13.3f}" for share in means.values())
        + f"   x {means['published'] / means['ascending']:.3f}"
    )
    print(f"{'worst':20}" + "".join(f"{min(many):13.3f}" for many in shares.values()))


def churn(count: int, seeds: int) -> None:
    print(f"\nChurn on {GPUS} GPUs, {seeds} x {count} requests: served slices / large requests")
    print(f"{'mix':20}{'load':>5}" + "".join(f"{name:>17}" for name in POLICIES))
    ratios: dict[str, list[float]] = {name: [] for name in POLICIES}
    for (name, weights), load in product(MIXES.items(), LOADS):
        row = {}
        for policy, choose in POLICIES.items():
            runs = [served(arrivals(by_id(weights), count, load, seed), choose) for seed in range(seeds)]
            row[policy] = tuple(mean(column) for column in zip(*runs, strict=True))
            ratios[policy].append(row[policy][0] / row["ascending"][0])
        print(f"{name:20}{load:5.1f}" + "".join(f"{a:10.3f} /{b:5.3f}" for a, b in row.values()))
    print(f"{'mean ratio':25}" + "".join(f"{mean(many):10.3f}       " for many in ratios.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Packing of first fit by order of placements.")
    parser.add_argument("--best", action="store_true", help="also search the best order of each mix (minutes)")
    parser.add_argument("--requests", type=int, default=1500, help="arrivals of a simulated run")
    parser.add_argument("--seeds", type=int, default=4, help="simulated runs of each cell")
    options = parser.parse_args()
    fill(options.best)
    churn(options.requests, options.seeds)


if __name__ == "__main__":
    main()
