"""Pools: which devices a GPU is offered as, and what they say."""

from __future__ import annotations

import pytest

from dynamig.dra import Taint, Version, gpu_pool
from dynamig.dra.limits import ATTRIBUTES_AND_CAPACITIES
from dynamig.errors import Refused
from dynamig.mig import Geometry, GiProfileId, Partition, Placement
from tests.unit.dra.gpus import facts
from tests.unit.mig.models import BY_HAND, H100, ODD, profile

POOL = gpu_pool("n1", facts())
DEVICE = POOL.device("gpu-0-mig-1g10gb-me-20-4")


def test_a_partition_device() -> None:
    assert DEVICE.partition == Partition(GiProfileId(20), Placement(4, 1))
    assert DEVICE.attributes == {
        "type": "mig",
        "profile": "1g.10gb+me",
        "parentUUID": "GPU-6f1b2c3d-0000-4000-8000-00000000000a",
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": "9.0.0",
        "driverVersion": "580.82.7",
        "cudaDriverVersion": "13.0.0",
        "resource.kubernetes.io/pciBusID": "0000:01:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
        "resource.kubernetes.io/numaNode": 0,
    }
    assert isinstance(DEVICE.attributes["driverVersion"], Version)
    assert DEVICE.capacity == {
        "memory": "9984Mi",
        "multiprocessors": "16",
        "copyEngines": "1",
        "decoders": "1",
        "encoders": "0",
        "jpegEngines": "1",
        "ofaEngines": "1",
    }
    assert DEVICE.consumes == {
        "memory": "9984Mi",
        "multiprocessors": "16",
        "copy-engines": "1",
        "decoders": "1",
        "jpeg-engines": "1",
        "ofa-engines": "1",
        "memory-slice-4": "1",
    }


def test_the_full_gpu_is_last_has_the_uuid_and_takes_everything() -> None:
    full = POOL.devices[-1]
    assert full is POOL.full_gpu
    assert (full.name, full.partition, full.attributes["type"]) == ("gpu-0", None, "gpu")
    assert full.attributes["uuid"] == POOL.gpu.uuid
    assert not {"parentUUID", "profile"} & set(full.attributes)
    assert full.capacity["memory"] == "81559Mi"
    assert full.consumes == {name: value for name, value in POOL.counters.items() if value != "0"}
    assert all("uuid" not in device.attributes for device in POOL.devices[:-1])


def test_what_is_not_known_has_no_attribute() -> None:
    pool = gpu_pool("n1", facts(pcie_root=None, numa_node=None, cuda_compute_capability=""))
    unknown = ("Root", "numa", "Capability")
    assert not [name for device in pool.devices for name in device.attributes if any(u in name for u in unknown)]
    assert all("driverVersion" in device.attributes for device in pool.devices)


def test_a_gpu_without_geometry_is_one_device_without_counters() -> None:
    """C-46: a GPU without partitions brings no empty counter set."""
    pool = gpu_pool("n1", facts(geometry=None))
    assert [device.name for device in pool.devices] == ["gpu-0"]
    assert pool.counters == pool.full_gpu.consumes == {}
    assert pool.full_gpu.capacity == {"memory": "81559Mi"}


def test_an_allow_list_leaves_profiles_out_but_not_their_engines() -> None:
    pool = gpu_pool("n1", facts(), profiles=frozenset({"1g.10gb", "4g.40gb"}))
    assert [d.attributes.get("profile") for d in pool.devices] == ["1g.10gb"] * 7 + ["4g.40gb", None]
    assert pool.counters == POOL.counters
    assert pool.device_for(Partition(GiProfileId(9), Placement(4, 4))) is None
    assert pool.device_for(Partition(GiProfileId(5), Placement(0, 4))) == pool.device("gpu-0-mig-4g40gb-5-0")


def test_an_empty_allow_list_offers_the_gpu_whole() -> None:
    pool = gpu_pool("n1", facts(), profiles=frozenset())
    assert [device.name for device in pool.devices] == ["gpu-0"]
    assert pool.counters == {}


@pytest.mark.parametrize("geometry", [H100, None])
def test_an_unknown_profile_in_the_allow_list_is_refused(geometry: Geometry | None) -> None:
    with pytest.raises(Refused) as refusal:
        gpu_pool("n1", facts(geometry=geometry), profiles=frozenset({"1g.99gb"}))
    assert refusal.value.code == "UNKNOWN_PROFILE"
    assert "1g.99gb" in refusal.value.what
    assert ("1g.10gb" in refusal.value.next_step) == (geometry is not None)


def test_taints_go_to_their_devices() -> None:
    taint = Taint("dynamig.io/unhealthy", "xid-79", "NoExecute")
    pool = gpu_pool("n1", facts(), taints={"gpu-0-mig-3g40gb-9-4": (taint,)})
    assert [d.name for d in pool.devices if d.taints == (taint,)] == ["gpu-0-mig-3g40gb-9-4"]
    assert sum(bool(d.taints) for d in pool.devices) == 1
    with pytest.raises(Refused, match="taints for gpu-7"):
        gpu_pool("n1", facts(), taints={"gpu-7": (taint,)})
    with pytest.raises(Refused, match="PreferNoSchedule"):
        Taint("k", "v", "PreferNoSchedule")


def test_an_unknown_device_is_refused_with_its_pool() -> None:
    with pytest.raises(Refused) as refusal:
        POOL.device("gpu-0-mig-1g10gb-19-7")
    assert refusal.value.code == "UNKNOWN_DEVICE"
    assert "n1/gpu-0" in refusal.value.what


def test_a_cap_without_an_engine_is_a_counter() -> None:
    pool = gpu_pool("n1", facts(geometry=ODD))
    assert pool.counters["profile-90-instances"] == "2"
    capped = [d for d in pool.devices if "profile-90-instances" in d.consumes]
    assert {d.partition.profile for d in capped if d.partition} == {GiProfileId(90)}
    assert pool.full_gpu.consumes["profile-90-instances"] == "2"


def test_a_counter_that_is_no_limit_has_room_for_every_set() -> None:
    """Odd's small profiles take more memory and decoders in sum than its largest profile lists."""
    pool = gpu_pool("n1", facts(geometry=ODD, memory=5000))
    assert pool.counters["memory"] == "7000Mi"
    assert pool.counters["decoders"] == "5"
    assert pool.counters["ofa-engines"] == "2"


def test_too_many_memory_slices_are_refused_by_the_gpu() -> None:
    one = profile("1g.1gb", 1, 0, 1, 10, (1, 0, 0, 0, 0, 0), 26, tuple(range(26)), 1)
    with pytest.raises(Refused) as refusal:
        gpu_pool("n1", facts(geometry=Geometry((one,))))
    assert refusal.value.code == "TOO_MANY_SLICES"
    assert "26 memory slices" in refusal.value.what
    assert refusal.value.next_step == "offer this GPU whole"


@pytest.mark.parametrize("model", BY_HAND)
def test_devices_stay_within_what_the_api_takes(model: str) -> None:
    for device in gpu_pool("n1", facts(geometry=BY_HAND[model], product_name="Nβ" * 45)).devices:
        assert len(device.attributes) + len(device.capacity) <= ATTRIBUTES_AND_CAPACITIES
        assert all(len(value.encode()) <= 64 for value in device.attributes.values() if isinstance(value, str))
