"""Reading slices back: ours whole, others' as they are, incomplete ones with the reason."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from dynamig.dra import Taint, Version, gpu_pool, read_pools, resource_slices
from dynamig.errors import Refused
from dynamig.mig import Geometry, GiProfileId
from tests.unit.dra.gpus import facts
from tests.unit.mig.models import BY_HAND, profile

Slice = dict[str, Any]


def slices(generation: int = 1, **changes: object) -> list[Slice]:
    pool = gpu_pool("n1", facts(**changes))
    return list(resource_slices(pool, driver="gpu.nvidia.com", node="n1", generation=generation))


@pytest.mark.parametrize("model", BY_HAND)
@pytest.mark.parametrize("kubernetes", [(1, 34), (1, 37)])
def test_what_is_written_is_read(model: str, kubernetes: tuple[int, int]) -> None:
    taint = Taint("k", "v", "NoSchedule")
    pool = gpu_pool("n1", facts(geometry=BY_HAND[model]), taints={"gpu-0": (taint,)})
    written = resource_slices(pool, driver="gpu.nvidia.com", node="n1", generation=7, kubernetes=kubernetes)
    (read,) = read_pools(reversed(written))
    assert (read.driver, read.node, read.name, read.generation) == ("gpu.nvidia.com", "n1", "n1/gpu-0", 7)
    assert read.complete
    assert [d.name for d in read.devices] == [d.name for d in pool.devices]
    for seen, device in zip(read.devices, pool.devices, strict=True):
        assert seen.attributes == device.attributes
        assert seen.gpu == pool.gpu.uuid
        if device.partition is None:
            assert (seen.type, seen.profile, len(seen.memory_slices)) == (
                "gpu",
                None,
                BY_HAND[model].memory_slices,
            )
            assert [(t.key, t.value, t.effect) for t in seen.taints] == [("k", "v", "NoSchedule")]
        else:
            profile = BY_HAND[model].profile(device.partition.profile)
            placement = device.partition.placement
            assert (seen.type, seen.profile) == ("mig", profile.name)
            assert seen.memory_slices == tuple(range(placement.start, placement.end))
            assert seen.capacity["memory"] == profile.memory << 20


def test_pools_are_told_apart_and_sorted() -> None:
    pools = read_pools(slices(number=1) + slices(number=0))
    assert [pool.name for pool in pools] == ["n1/gpu-0", "n1/gpu-1"]
    assert read_pools([]) == ()


def test_devices_are_read_in_the_order_of_slice_names() -> None:
    ones = profile("1x", 1, 0, 1, 1, (1, 0, 0, 0, 0, 0), 16, tuple(range(16)), 1)
    many = Geometry(tuple(replace(ones, id=GiProfileId(id)) for id in range(9)))
    pool = gpu_pool("n1", facts(geometry=many))
    written = resource_slices(pool, driver="gpu.nvidia.com", node="n1", generation=1)
    assert len(written) == 4
    (read,) = read_pools(reversed(written))
    assert [device.name for device in read.devices] == [device.name for device in pool.devices]


def test_a_consumption_of_zero_takes_no_memory_slice() -> None:
    counters, devices = slices()
    devices["spec"]["devices"][0]["consumesCounters"][0]["counters"]["memory-slice-0"] = {"value": "0"}
    (pool,) = read_pools([counters, devices])
    assert pool.devices[0].memory_slices == (6,)


def test_the_newest_generation_counts() -> None:
    old, new = slices(generation=3), slices(generation=4, driver_version="590.1")
    (pool,) = read_pools(old + new)
    assert (pool.generation, pool.complete) == (4, True)
    assert pool.devices[0].attributes["driverVersion"] == "590.1.0"


def test_half_a_pool_is_incomplete_but_shown() -> None:
    _, devices = slices(generation=4)
    (pool,) = read_pools([*slices(generation=3), devices])
    assert not pool.complete
    assert pool.problem == "1 slices seen, 2 announced"
    assert len(pool.devices) == 26


def test_a_surplus_slice_makes_the_pool_incomplete() -> None:
    counters, devices = slices()
    again = copy.deepcopy(devices)
    again["metadata"]["name"] = "02-again"
    (pool,) = read_pools([counters, devices, again])
    assert pool.problem == "3 slices seen, 2 announced"


def test_a_device_published_twice_is_named() -> None:
    counters, devices = slices()
    devices["spec"]["devices"].append(devices["spec"]["devices"][0])
    (pool,) = read_pools([counters, devices])
    assert pool.problem == "published twice: gpu-0-mig-1g10gb-19-6"


def test_a_counter_that_is_not_there_is_named() -> None:
    counters, devices = slices()
    del counters["spec"]["sharedCounters"][0]["counters"]["memory-slice-6"]
    (pool,) = read_pools([counters, devices])
    assert pool.problem is not None
    assert "gpu-0-counter-set does not have: memory-slice-6" in pool.problem


def test_slices_of_another_shape() -> None:
    """As other drivers publish: qualified names, lists, no counters, no node, several GPUs in a pool."""
    device = {
        "name": "tpu-3",
        "attributes": {
            "tpu.example.com/type": {"string": "tpu"},
            "other.org/ports": {"ints": [1, 2]},
            "other.org/firmware": {"versions": ["1.0.0"]},
            "ok": {"bool": True},
        },
        "capacity": {"tpu.example.com/memory": {"value": "16Gi"}},
        "taints": [{"key": "k", "effect": "SomethingNew"}],
    }
    other = {
        "metadata": {"name": "x"},
        "spec": {
            "driver": "tpu.example.com",
            "allNodes": True,
            "pool": {"name": "all", "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    }
    (pool,) = read_pools([other])
    (read,) = pool.devices
    assert (pool.node, pool.complete, pool.counters) == (None, True, {})
    assert (read.type, read.profile, read.gpu, read.memory_slices) == ("tpu", None, None, ())
    assert read.attributes["other.org/ports"] == (1, 2)
    assert read.attributes["other.org/firmware"] == (Version("1.0.0"),)
    assert read.attributes["ok"] is True
    assert read.capacity == {"memory": 16 << 30}
    assert read.taints[0].effect == "SomethingNew"


def test_facts_do_not_come_from_the_name() -> None:
    counters, devices = slices()
    devices["spec"]["devices"][0]["name"] = "gpu-9-mig-7g999gb-0-0"
    (pool,) = read_pools([counters, devices])
    assert (pool.devices[0].profile, pool.devices[0].memory_slices) == ("1g.10gb", (6,))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"metadata": {"name": "s1"}}, "s1 has no driver or pool"),
        ({"metadata": {"name": "s1"}, "spec": {"driver": "d"}}, "s1 has no driver or pool"),
        ({"spec": {"driver": "d", "pool": None}}, "without a name has no driver or pool"),
    ],
)
def test_what_is_no_slice_is_refused_by_name(broken: Slice, said: str) -> None:
    with pytest.raises(Refused) as refusal:
        read_pools([broken])
    assert refusal.value.code == "BAD_SLICE"
    assert said in refusal.value.what


def test_a_bad_quantity_is_refused_with_its_device() -> None:
    counters, devices = slices()
    devices["spec"]["devices"][2]["capacity"]["memory"]["value"] = "many"
    with pytest.raises(Refused, match=r"01-gpu\.nvidia\.com-n1-gpu-0 device 'gpu-0-mig-1g10gb-19-5'.*many"):
        read_pools([counters, devices])
