"""K4 and C-07: counters allow exactly what the table allows, which is what NVML allows.

The scheduler's rule, as in allocator_incubating.go of Kubernetes 1.37: a device can be added if, for every
counter, what the allocated devices and the new one consume is at most the counter's value.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings

from dynamig.dra import Pool, gpu_pool, resource_slices
from dynamig.dra.quantity import parse
from dynamig.mig import Geometry, Partition, Table
from tests.property.test_mig_models import all_layouts
from tests.property.test_mig_random import geometries
from tests.unit.dra.gpus import facts
from tests.unit.mig.models import BY_HAND, RECORDED, recorded

MODELS = dict(BY_HAND)
if RECORDED.exists():
    MODELS |= recorded()


class Counters:
    """One GPU's counters read from the published JSON, as integer vectors."""

    def __init__(self, pool: Pool) -> None:
        slices = resource_slices(pool, driver="gpu.nvidia.com", node="n1", generation=1)
        (group,) = slices[0]["spec"]["sharedCounters"]
        self._names = list(group["counters"])
        self._total = self._vector(group["counters"])
        devices = [device for one in slices for device in one["spec"].get("devices", [])]
        consumed = {device["name"]: device["consumesCounters"] for device in devices}
        self._takes = {}
        for device in pool.devices:
            (use,) = consumed[device.name]
            assert use["counterSet"] == group["name"]
            self._takes[device.partition] = self._vector(use["counters"])

    def _vector(self, counters: dict[str, Any]) -> tuple[int, ...]:
        assert set(counters) <= set(self._names)
        return tuple(int(parse(counters.get(name, {"value": 0})["value"])) for name in self._names)

    def used(self, live: tuple[Partition | None, ...]) -> list[int]:
        return [sum(column) for column in zip(*map(self._takes.get, live), strict=True)] or [0] * len(self._total)

    def allow(self, used: list[int], new: Partition | None) -> bool:
        return all(u + n <= t for u, n, t in zip(used, self._takes[new], self._total, strict=True))


def pool_of(geometry: Geometry) -> Pool:
    return gpu_pool("n1", facts(geometry=geometry, memory=1000))


@pytest.mark.parametrize("model", MODELS)
def test_counters_allow_what_the_table_allows_on_every_reachable_set(model: str) -> None:
    table, counters = Table(MODELS[model]), Counters(pool_of(MODELS[model]))
    for live in table.valid():
        used = counters.used(live)
        possible = set(table.possible(live))
        for new in table.options:
            assert counters.allow(used, new) == (new in possible), (live, new)


@pytest.mark.parametrize("model", [name for name in MODELS if name != "Odd"])
def test_every_documented_set_can_be_allocated_and_nothing_else(model: str) -> None:
    counters = Counters(pool_of(MODELS[model]))
    layouts = set(map(frozenset, all_layouts(MODELS[model])))
    options = Table(MODELS[model]).options
    for one, other in combinations(options, 2):
        assert counters.allow(counters.used((one,)), other) == (frozenset({one, other}) in layouts)
    for live in layouts:
        used = counters.used(tuple(live))
        for new in options:
            assert counters.allow(used, new) == (new not in live and live | {new} in layouts)


@pytest.mark.parametrize("model", MODELS)
def test_the_full_gpu_and_any_partition_exclude_each_other(model: str) -> None:
    counters = Counters(pool_of(MODELS[model]))
    assert counters.allow(counters.used(()), None)
    for partition in Table(MODELS[model]).options:
        assert not counters.allow(counters.used((partition,)), None)
        assert not counters.allow(counters.used((None,)), partition)
    assert not counters.allow(counters.used((None,)), None)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(geometries())
def test_counters_of_made_up_gpus(geometry: Geometry) -> None:
    """Also where small profiles add up to more memory or engines than the largest one has."""
    table, counters = Table(geometry), Counters(pool_of(geometry))
    for live in table.valid():
        used = counters.used(live)
        possible = set(table.possible(live))
        assert {new for new in table.options if counters.allow(used, new)} == possible
        assert counters.allow(used, None) == (not live)
