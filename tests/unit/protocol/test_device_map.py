"""Slurm's index to GPU: given or by minors, checked, and never changed under what was decided by it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dynamig.errors import Refused
from dynamig.mig import GpuUuid
from dynamig.protocol.device_map import DeviceMap, Given, Source, make_map, map_from_json, map_to_json, next_map
from tests.unit.driver.bench_node import h100

A, B, C = (h100(n) for n in range(3))


def administrators(gpus: dict[int, str]) -> Given:
    return Given("n1", gpus, Source.CONFIG_MAP)


def by_minors(*uuids: GpuUuid) -> DeviceMap:
    return DeviceMap(dict(enumerate(uuids)), Source.MINORS)


def test_minors_in_ascending_order_of_number_gaps_and_all() -> None:
    readings = [h100(0, minor=10), h100(1, minor=2), h100(2, minor=0)]
    made = make_map(readings, Given("gpu7"))
    assert made == DeviceMap({0: C.uuid, 1: B.uuid, 2: A.uuid}, Source.MINORS, "gpu7")


def test_what_the_administrator_gives_wins() -> None:
    given = make_map([A, B], administrators({0: B.uuid, 3: A.uuid}))
    assert (given.gpus, given.source) == ({0: B.uuid, 3: A.uuid}, Source.CONFIG_MAP)
    assert given.index(A.uuid) == 3
    assert given.index(C.uuid) is None


def test_every_mistake_in_a_given_map_is_named() -> None:
    with pytest.raises(Refused) as caught:
        make_map([A], administrators({-1: A.uuid, 0: A.pci_bus_id, 1: "GPU-x", 2: C.uuid, 3: "0000:99:00.0"}))
    assert caught.value.code == "BAD_DEVICE_MAP"
    for part in (
        "index -1 is negative",
        f"{A.uuid} has several indices",
        "GPU-x (index 1) is not on this node",
        f"{C.uuid} (index 2) is not",
        "0000:99:00.0 (index 3) is not",
    ):
        assert part in caught.value.what


def test_a_gpu_may_be_given_by_its_place_on_the_bus() -> None:
    upper = replace(A, pci_bus_id="0000:0A:00.0")
    for written in ("0000:0a:00.0", "00000000:0A:00.0"):
        assert make_map([upper, B], administrators({0: written})).gpus == {0: A.uuid}


def test_a_gpu_of_the_last_map_may_be_silent() -> None:
    assert make_map([B], administrators({0: A.uuid, 1: B.uuid}), LAST).gpus == {0: A.uuid, 1: B.uuid}


def test_an_unknown_index_is_not_lendable() -> None:
    with pytest.raises(Refused, match=r"index 2 is not in .* \(known: 0, 1\)") as caught:
        by_minors(A.uuid, B.uuid).gpu(2)
    assert caught.value.code == "UNKNOWN_INDEX"


LAST = by_minors(A.uuid, B.uuid)


@pytest.mark.parametrize(
    ("last", "fresh", "busy", "kept"),
    [
        (None, LAST, True, False),  # never had one: nothing was decided by another
        (LAST, by_minors(B.uuid, A.uuid), True, True),
        (LAST, by_minors(B.uuid, A.uuid), False, False),
        (LAST, by_minors(A.uuid, C.uuid), False, False),  # a GPU was replaced
        (LAST, by_minors(A.uuid, B.uuid, C.uuid), False, False),  # one was added
        (LAST, by_minors(B.uuid), False, True),  # one does not answer
        (LAST, DeviceMap({0: B.uuid}, Source.GIVEN), False, False),  # the administrator takes one out
        (DeviceMap({0: A.uuid, 1: B.uuid}, Source.GIVEN), by_minors(B.uuid), False, False),  # and the map away
    ],
)
def test_which_map_to_go_by(last: DeviceMap | None, fresh: DeviceMap, busy: bool, kept: bool) -> None:
    assert next_map(last, fresh, busy=busy) == (last if kept else fresh)


def test_device_files_that_changed_places_are_noticed_where_the_map_goes_by_them() -> None:
    swapped = [h100(0, minor=1), h100(1, minor=0)]
    LAST.check_order([A, B])
    LAST.check_order([h100(1, minor=7)])  # GPUs that do not answer say nothing
    LAST.check_order([*swapped[:1], C])
    with pytest.raises(Refused, match="changed places"):
        LAST.check_order(swapped)
    DeviceMap(LAST.gpus, Source.GIVEN).check_order(swapped)


def test_on_disk_and_on_the_wire() -> None:
    body = json.loads(json.dumps(map_to_json(LAST)))
    assert body == {"v": 1, "source": "minors", "slurmNode": "", "gpus": {"0": A.uuid, "1": B.uuid}}
    assert map_from_json(body) == LAST
    assert map_from_json({**body, "slurmNode": "gpu7"}).slurm_node == "gpu7"


def test_a_map_of_a_driver_that_kept_no_name() -> None:
    assert map_from_json({"v": 1, "source": "given", "gpus": {"0": "GPU-a"}}) == DeviceMap(
        {0: GpuUuid("GPU-a")}, Source.GIVEN
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"v": 2, "source": "minors", "gpus": {}},
        {"v": 1, "source": "guess", "gpus": {}},
        {"v": 1, "source": "minors", "gpus": {"x": "GPU-a"}},
        {"v": 1, "source": "minors", "gpus": {"0": "GPU-a", "1": "GPU-a"}},
        {"v": 1, "source": "minors", "gpus": []},
    ],
)
def test_what_is_no_map(body: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        map_from_json(body)


UNREAD = {GpuUuid("NVML index 1"): "GPU_LOST"}


def test_only_a_first_map_by_minors_needs_every_gpu() -> None:
    with pytest.raises(Refused, match=r"NVML index 1 \(GPU_LOST\) does not answer") as caught:
        make_map([A], Given("gpu7"), None, UNREAD)
    assert caught.value.code == "GPU_UNREAD"
    assert make_map([A], Given("gpu7"), LAST, UNREAD).gpus == {0: A.uuid}, "what is kept has the last word: next_map"
    assert make_map([A], administrators({1: A.uuid}), None, UNREAD).gpus == {1: A.uuid}
