"""How often Slurm gives a hold a GPU without a place for it, and what is served in spite of that.

Simulated clusters of five nodes with eight H100: the bridge's own decisions over Slurm in memory, beside a bridge that
asks for the least cost and looks at the pick afterwards, and beside what serves pods without Slurm: kube-scheduler's
first fit, and the place that closes the fewest others. All see the same pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product

from bench.churn import PATIENCE, Arrival, Placing, arrivals, served
from bench.figures import Figure, Report, series
from bench.first_fit_order import MIXES, by_id
from bench.placings import PROFILE, Bridge, Counts, FewestLost, FirstFit, Naive
from bench.quiet import only_warnings
from tests.unit.mig.models import H100

NODES, GPUS, SLICES = 5, 8, 8
LOADS = (0.7, 0.9, 1.1)
"""Of all memory slices."""

CHOSEN = ("1g and 4g", "1g 2g 3g", "1g 2g 3g 4g", "with double memory", "with whole GPUs")
SEED = 20261129


def report(*, quick: bool) -> Report:
    return report_of(CHOSEN[2:3], (0.9,) if quick else (0.9, 1.1), 40 if quick else 80)


def report_of(mixes: Sequence[str], loads: Sequence[float], number: int) -> Report:
    cells = list(product(mixes, loads, (number,)))
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(_cell, cells))
    figures = [figure for load in loads for figure in _figures(load, [o for o in found if o.load == load])]
    return Report(tuple(figures), _notes(mixes, number))


@dataclass(frozen=True)
class Outcome:
    """Of one mix at one load. `shares`: of the memory slices asked for, those served, by way of placing."""

    load: float
    bridge: Counts
    naive: Counts
    shares: Mapping[str, float]


def _cell(cell: tuple[str, float, int]) -> Outcome:
    mix, load, number = cell
    weights = _profiles(mix)
    mean = sum(weight * PROFILE[p].size for p, weight in weights.items()) / sum(weights.values())
    per_life = load * NODES * GPUS * SLICES / mean
    pods = arrivals(weights, round(per_life), number, per_life, SEED)
    bridge, naive = Bridge(NODES), Naive(NODES)
    ways: dict[str, Placing] = {
        "bridge": bridge,
        "naive": naive,
        "first fit": FirstFit(NODES),
        "fewest lost": FewestLost(NODES),
    }
    with only_warnings():
        shares = {name: _share(placing, pods, number) for name, placing in ways.items()}
    return Outcome(load, bridge.counts, naive.counts, shares)


def _share(placing: Placing, pods: Sequence[Arrival], number: int) -> float:
    """Of what the last `number` pods ask for."""
    ran, sizes = served(placing, pods), [PROFILE[p.profile].size for p in pods]
    counted = range(len(pods) - number, len(pods))
    return sum(sizes[i] for i in counted if i in ran) / sum(sizes[i] for i in counted)


def _profiles(mix: str) -> dict[str, int]:
    """Weights by the profile's name."""
    return {H100.profile(id).name: weight for id, weight in by_id(MIXES[mix]).items()}


def _figures(load: float, found: Sequence[Outcome]) -> Iterator[Figure]:
    at = f"load {load}"
    naive = series(f"a naive bridge's wrong picks, {at}", "per hold", [o.naive.wrong / o.naive.holds for o in found])
    for what, values in (
        ("wrong picks", [o.bridge.wrong / o.bridge.holds for o in found]),
        ("ballast jobs", [o.bridge.ballast / o.bridge.holds for o in found]),
    ):
        yield Figure(series(f"{what}, {at}", "per hold", values), naive)
    ours = series(f"slices served, {at}", "share", [o.shares["bridge"] for o in found])
    for name, told in (
        ("first fit", "kube-scheduler's first fit"),
        ("fewest lost", "the fewest lost, without Slurm"),
        ("naive", "a naive bridge"),
    ):
        yield Figure(ours, series(f"{told}, {at}", "share", [o.shares[name] for o in found]))


def _notes(mixes: Sequence[str], number: int) -> tuple[str, ...]:
    return (
        f"{NODES} nodes x {GPUS} H100; one value for each mix: {', '.join(mixes)}; {number} pods after a full start",
        f"queueing with little patience: a pod that does not run within {PATIENCE} of the mean life leaves, not served",
        "wrong pick: a hold that ran on a GPU without a place that it pays for, and was cancelled",
    )
