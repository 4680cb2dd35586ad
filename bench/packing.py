"""How well first fit packs with the order in which the driver publishes: `bench.first_fit_order` as figures.

Nothing is measured here: filling is exact and churn is simulated with fixed seeds, so every run finds the same.
"""

from __future__ import annotations

from functools import partial
from itertools import product

from bench import first_fit_order as packing
from bench.figures import Figure, Report, series

OURS, THEIRS = "published", "ascending"


def report(*, quick: bool) -> Report:
    requests, seeds = (300, 1) if quick else (1500, 4)
    filled = {policy: [_filled(mix, policy) for mix in packing.MIXES] for policy in (OURS, THEIRS)}
    churned = {policy: _churned(policy, requests, seeds) for policy in (OURS, THEIRS)}
    lost = min(a / b for a, b in zip(filled[OURS], filled[THEIRS], strict=True))
    return Report(
        (
            _figure("filling one GPU, of the best possible", filled),
            _figure("churn on four GPUs, slices served", {p: [slices for slices, _ in churned[p]] for p in churned}),
            _figure("churn, requests for 4 slices or more", {p: [large for _, large in churned[p]] for p in churned}),
        ),
        (
            f"one value for each of {len(packing.MIXES)} demand mixes (churn: each load and seed as well)",
            f"filling, worst mix for the published order: x {lost:.3f}; tables: python -m bench.first_fit_order",
        ),
    )


def _figure(name: str, by_policy: dict[str, list[float]]) -> Figure:
    return Figure(
        series(f"{name}, published order", "share", by_policy[OURS]),
        series("ascending placements", "share", by_policy[THEIRS]),
    )


def _filled(name: str, policy: str) -> float:
    mix = packing.by_id(packing.MIXES[name])
    candidates = partial(packing.by_policy, packing.POLICIES[policy])
    return packing.granted(mix, candidates) / packing.granted(mix, packing.anything)


def _churned(policy: str, requests: int, seeds: int) -> list[tuple[float, float]]:
    """(share of the slices, share of the large requests) that was served, for every mix, load and seed."""
    choose = packing.POLICIES[policy]
    return [
        packing.served(packing.arrivals(packing.by_id(weights), requests, load, seed), choose)
        for weights, load, seed in product(packing.MIXES.values(), packing.LOADS, range(seeds))
    ]
