"""ResourceSlices: legal on each Kubernetes version, the same every time, and compared by what matters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dynamig.dra import Pool, Taint, gpu_pool, resource_slices, same_content
from dynamig.errors import Refused
from dynamig.mig import Geometry
from tests.unit.dra import golden
from tests.unit.dra.gpus import facts
from tests.unit.mig.models import BY_HAND, profile

Slice = dict[str, Any]
NOT_NOW = Taint("dynamig.io/slurm", "managed", "NoSchedule")


def published(pool: Pool, kubernetes: tuple[int, int] = (1, 37)) -> tuple[Slice, ...]:
    return resource_slices(pool, driver="gpu.nvidia.com", node="n1", generation=3, kubernetes=kubernetes)


def many_placements(count: int) -> Geometry:
    """`count` partitions on 16 memory slices."""
    profiles = [
        profile(f"{i}x", i, i, i, 10, (1, 1, 0, 0, 0, 0), 16, tuple(range(16)), 1) for i in range(1, count // 16 + 1)
    ]
    return Geometry(tuple(profiles))


@pytest.mark.parametrize("kubernetes", golden.VERSIONS)
def test_golden(kubernetes: tuple[int, int]) -> None:
    """What one H100 is published as. If a change is meant, run `python -m tests.unit.dra.golden`."""
    assert golden.path(kubernetes).read_text(encoding="utf-8") == golden.text(kubernetes)


def test_counters_and_devices_are_apart_from_1_35() -> None:
    for version in ((1, 35), (1, 36), (1, 37)):
        first, second = published(gpu_pool("n1", facts()), version)
        assert "devices" not in first["spec"]
        assert "sharedCounters" not in second["spec"]
    (both,) = published(gpu_pool("n1", facts()), (1, 34))
    assert {"devices", "sharedCounters"} < set(both["spec"])


def test_names_begin_with_the_index_and_pools_agree() -> None:
    slices = published(gpu_pool("n1", facts(number=12)))
    assert [s["metadata"]["name"] for s in slices] == [
        "00-gpu.nvidia.com-n1-gpu-12",
        "01-gpu.nvidia.com-n1-gpu-12",
    ]
    assert {str(s["spec"]["pool"]) for s in slices} == {
        "{'name': 'n1/gpu-12', 'generation': 3, 'resourceSliceCount': 2}"
    }


@pytest.mark.parametrize("geometry", [None, *BY_HAND.values(), many_placements(144)])
@pytest.mark.parametrize("taints", [False, True])
def test_limits_of_a_slice(geometry: Geometry | None, taints: bool) -> None:
    """C-47, for the GPU with most placements and beyond; k8s.io/kubernetes v1.37.2 resource/validation."""
    pool = gpu_pool("n1", facts(geometry=geometry))
    pool = replace(pool, devices=tuple(replace(d, taints=(NOT_NOW,) * taints) for d in pool.devices))
    slices = published(pool)
    names = [d["name"] for s in slices for d in s["spec"].get("devices", [])]
    assert names == [device.name for device in pool.devices]
    for one in slices:
        spec = one["spec"]
        assert spec["pool"]["resourceSliceCount"] == len(slices)
        assert ("devices" in spec) != ("sharedCounters" in spec)
        advanced = any("consumesCounters" in d or "taints" in d for d in spec.get("devices", []))
        assert len(spec.get("devices", [])) <= (64 if advanced else 128)
        assert all(0 < len(group["counters"]) <= 32 for group in spec.get("sharedCounters", []))
        assert all(len(d.get("consumesCounters", [])) <= 2 for d in spec.get("devices", []))


def test_a_pool_of_145_devices_takes_four_slices() -> None:
    assert [
        len(s["spec"].get("devices", [])) for s in published(gpu_pool("n1", facts(geometry=many_placements(144))))
    ] == [
        0,
        64,
        64,
        17,
    ]


def test_1_34_takes_one_slice_or_refuses() -> None:
    (one,) = published(gpu_pool("n1", facts(geometry=many_placements(96))), (1, 34))
    assert len(one["spec"]["devices"]) == 97
    with pytest.raises(Refused) as refusal:
        published(gpu_pool("n1", facts(geometry=many_placements(144))), (1, 34))
    assert refusal.value.code == "SLICE_TOO_LARGE"
    assert "145 devices" in refusal.value.what


def test_kubernetes_without_the_api_is_refused() -> None:
    with pytest.raises(Refused, match="has no resource"):
        published(gpu_pool("n1", facts()), (1, 33))


def test_taints_by_version() -> None:
    note = Taint("dynamig.io/note", "", "None")
    pool = gpu_pool("n1", facts(geometry=None), taints={"gpu-0": (NOT_NOW, note)})
    effects = [{"key": "dynamig.io/slurm", "value": "managed", "effect": "NoSchedule"}]
    assert published(pool, (1, 34))[0]["spec"]["devices"][0]["taints"] == effects
    effects.append({"key": "dynamig.io/note", "effect": "None"})
    assert published(pool, (1, 35))[0]["spec"]["devices"][0]["taints"] == effects


def test_too_many_taints() -> None:
    taints = tuple(Taint(f"example.com/t{i}", "", "NoSchedule") for i in range(5))
    pool = gpu_pool("n1", facts(), taints={"gpu-0": taints})
    assert published(pool, (1, 37))
    with pytest.raises(Refused, match="n1/gpu-0/gpu-0 has 5 taints"):
        published(pool, (1, 34))


def test_names_that_are_too_long() -> None:
    with pytest.raises(Refused, match="pool name"):
        published(gpu_pool("n" * 250, facts()))
    with pytest.raises(Refused, match="ResourceSlice name"):
        published(gpu_pool("n" * 240, facts()))


def test_attribute_kinds() -> None:
    pool = gpu_pool("n1", facts())
    odd = replace(pool.full_gpu, attributes={"yes": True, "n": 1, "s": "1.2.3"})
    (one,) = published(replace(pool, devices=(odd,), counters={}))
    attributes = one["spec"]["devices"][0]["attributes"]
    assert attributes == {"yes": {"bool": True}, "n": {"int": 1}, "s": {"string": "1.2.3"}}


# What the server adds or rewrites, and what a change of ours looks like.


def wanted() -> Slice:
    return published(gpu_pool("n1", facts(), taints={"gpu-0": (NOT_NOW,)}))[1]


def server_adds_metadata(one: Slice) -> None:
    one["metadata"] |= {"uid": "u", "resourceVersion": "7", "generation": 2, "managedFields": [{}]}


def server_adds_time(one: Slice) -> None:
    one["spec"]["devices"][-1]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"


def other_generation(one: Slice) -> None:
    one["spec"]["pool"]["generation"] = 99


def other_spelling(one: Slice) -> None:
    one["spec"]["devices"][0]["capacity"]["memory"]["value"] = str(9984 << 20)
    one["spec"]["devices"][0]["consumesCounters"][0]["counters"]["decoders"]["value"] = "1000m"


def empty_fields(one: Slice) -> None:
    one["spec"] |= {"sharedCounters": [], "nodeSelector": None}
    one["spec"]["devices"][0]["taints"] = []


@pytest.mark.parametrize(
    "edit", [server_adds_metadata, server_adds_time, other_generation, other_spelling, empty_fields]
)
def test_the_same_content(edit: Callable[[Slice], None]) -> None:
    server = copy.deepcopy(wanted())
    edit(server)
    assert server != wanted()
    assert same_content(server, wanted())


def other_count(one: Slice) -> None:
    one["spec"]["pool"]["resourceSliceCount"] = 3


def other_order(one: Slice) -> None:
    one["spec"]["devices"].reverse()


def other_taint(one: Slice) -> None:
    one["spec"]["devices"][-1]["taints"][0]["value"] = "1"


def no_taint(one: Slice) -> None:
    del one["spec"]["devices"][-1]["taints"]


def other_capacity(one: Slice) -> None:
    one["spec"]["devices"][0]["capacity"]["memory"]["value"] = "9983Mi"


def other_version(one: Slice) -> None:
    one["spec"]["devices"][0]["attributes"]["driverVersion"] = {"version": "580.82.8"}


def string_instead_of_version(one: Slice) -> None:
    one["spec"]["devices"][0]["attributes"]["driverVersion"] = {"string": "580.82.7"}


def other_name(one: Slice) -> None:
    one["metadata"]["name"] = "02-x"


def other_node(one: Slice) -> None:
    one["spec"]["nodeName"] = "n2"


def attribute_gone(one: Slice) -> None:
    del one["spec"]["devices"][0]["attributes"]["brand"]


@pytest.mark.parametrize(
    "edit",
    [
        other_count,
        other_order,
        other_taint,
        no_taint,
        other_capacity,
        other_version,
        string_instead_of_version,
        other_name,
        other_node,
        attribute_gone,
    ],
)
def test_other_content(edit: Callable[[Slice], None]) -> None:
    server = copy.deepcopy(wanted())
    edit(server)
    assert not same_content(server, wanted())


def test_labels_that_we_want_must_be_there() -> None:
    ours = wanted()
    ours["metadata"]["labels"] = {"dynamig.io/part": "driver"}
    assert not same_content(wanted(), ours)
    server = copy.deepcopy(ours)
    server["metadata"]["labels"]["added-by"] = "someone"
    assert same_content(server, ours)
