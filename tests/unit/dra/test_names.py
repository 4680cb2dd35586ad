"""Device names: NVIDIA's, legal and unique for any profile name."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dynamig.dra import gpu_pool
from dynamig.dra.names import counter_name, memory_slice_of, partition_name
from dynamig.errors import Refused
from dynamig.mig import Geometry, GiProfileId
from tests.unit.dra.gpus import facts
from tests.unit.mig.models import BY_HAND, H100, profile

DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@pytest.mark.parametrize(
    ("profile_name", "id", "name"),
    [
        ("1g.23gb", 19, "gpu-0-mig-1g23gb-19-4"),  # as NVIDIA's driver names them
        ("1g.10gb+me", 20, "gpu-0-mig-1g10gb-me-20-4"),
        ("1g.24gb-me", 67, "gpu-0-mig-1g24gb-me-67-4"),
        ("1g.24gb+gfx", 47, "gpu-0-mig-1g24gb-gfx-47-4"),
        ("1g.24gb+me.all", 65, "gpu-0-mig-1g24gb-meall-65-4"),
        ("MIG 1g/β", 9, "gpu-0-mig-mig-1g-9-4"),
        ("+++", 9, "gpu-0-mig-profile-9-4"),
        ("x" * 90, 4294967295, f"gpu-0-mig-{'x' * 40}-4294967295-4"),
    ],
)
def test_names(profile_name: str, id: int, name: str) -> None:
    one = profile(profile_name, id, 0, 1, 1, (0, 0, 0, 0, 0, 0), 1, (4,), 1)
    (partition,) = one.partitions()
    assert partition_name(0, one, partition) == name
    assert DNS_LABEL.fullmatch(name)


@pytest.mark.parametrize("model", BY_HAND)
def test_names_are_legal_and_unique(model: str) -> None:
    names = [device.name for device in gpu_pool("n1", facts(number=15, geometry=BY_HAND[model])).devices]
    assert len(set(names)) == len(names) == len(BY_HAND[model].partitions()) + 1
    assert all(DNS_LABEL.fullmatch(name) for name in names)


def test_profiles_of_one_name_keep_apart() -> None:
    """Two profiles may have the same name; the ID tells their devices apart."""
    twin = replace(H100.profiles[0], id=GiProfileId(77))
    pool = gpu_pool("n1", facts(geometry=Geometry((*H100.profiles, twin))))
    assert {"gpu-0-mig-1g10gb-19-3", "gpu-0-mig-1g10gb-77-3"} < {device.name for device in pool.devices}


def test_a_name_that_cannot_be_made_legal_is_refused() -> None:
    with pytest.raises(Refused, match="longer than 63"):
        gpu_pool("n1", facts(number=10**60))


def test_counters() -> None:
    assert [counter_name(c) for c in ("copyEngines", "memory")] == ["copy-engines", "memory"]
    assert [memory_slice_of(c) for c in ("memory-slice-11", "memory", "memory-slice-x")] == [11, None, None]
