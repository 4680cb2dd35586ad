"""Pods that come, wait for a while, run and go: one stream of them for every way to place them.

A queue with little patience: whoever does not run within `PATIENCE` of the mean life leaves and counts as not served.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

MEAN_LIFE_S = 3600.0
PATIENCE = 0.05


@dataclass(frozen=True, slots=True)
class Arrival:
    """`at`: seconds; `life`: seconds that it runs, once it does."""

    at: float
    profile: str
    life: float


class Placing(Protocol):
    """A cluster and a way to place pods in it. Pods are told apart by number."""

    def arrive(self, pod: int, profile: str) -> None: ...
    def finish(self, pod: int) -> None: ...
    def give_up(self, pod: int) -> None: ...
    def settle(self, now: float) -> Collection[int]:
        """All pods that run, once everything has come to rest after what was just told."""
        ...


def arrivals(mix: Mapping[str, int], at_once: int, number: int, per_life: float, seed: int) -> list[Arrival]:
    """`at_once` pods at the beginning, then Poisson arrivals, `per_life` of them in a mean life; exponential lives."""
    chance, now, found = random.Random(seed), 0.0, list[Arrival]()
    for i in range(at_once + number):
        now += chance.expovariate(per_life / MEAN_LIFE_S) if i >= at_once else 0.0
        (profile,) = chance.choices(list(mix), list(mix.values()))
        found.append(Arrival(now, profile, chance.expovariate(1 / MEAN_LIFE_S)))
    return found


def served(placing: Placing, pods: Sequence[Arrival]) -> frozenset[int]:
    """Numbers of the pods that ran."""
    ran: set[int] = set()
    events: list[tuple[float, int, str, int]] = [(one.at, i, "arrive", i) for i, one in enumerate(pods)]
    heapq.heapify(events)
    order = count(len(pods))
    while events:
        now, _, what, pod = heapq.heappop(events)
        if what == "arrive":
            placing.arrive(pod, pods[pod].profile)
            heapq.heappush(events, (now + PATIENCE * MEAN_LIFE_S, next(order), "give up", pod))
        elif what == "finish":
            placing.finish(pod)
        elif pod not in ran:
            placing.give_up(pod)
        else:
            continue
        for started in sorted(set(placing.settle(now)) - ran):
            ran.add(started)
            heapq.heappush(events, (now + pods[started].life, next(order), "finish", started))
    return frozenset(ran)
