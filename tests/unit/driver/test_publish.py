"""ResourceSlices: nothing is written twice, and no reader ever takes a mixture for complete."""

from __future__ import annotations

import dataclasses

from dynamig.dra import Pool, Taint, read_pools
from dynamig.driver.catalog import build
from dynamig.driver.config import GpuPolicies, GpuPolicy, Policy
from dynamig.driver.publish import plan_slices, publish
from dynamig.mig import GpuUuid, Partition
from dynamig.protocol import names
from dynamig.protocol.gpus import LiveInstance
from dynamig.testing.fakes import FakeSlices
from tests.unit.driver.bench_node import NODE, BenchNode, h100


def pools(count: int = 2) -> list[Pool]:
    return [o.pool for o in BenchNode.with_gpus(count).catalog().offers.values()]


def put(slices: FakeSlices, wanted: list[Pool], keep: tuple[str, ...] = ()) -> bool:
    return publish(slices, wanted, driver=names.DRIVER_NAME, node=NODE, keep_pools=keep)


def test_one_complete_pool_per_gpu_and_a_second_look_writes_nothing() -> None:
    slices = FakeSlices()
    assert put(slices, pools())
    published = read_pools(slices.published())
    assert [p.name for p in published] == ["n1/gpu-0", "n1/gpu-1"]
    assert all(p.complete and p.node == NODE for p in published)
    written = len(slices.snapshots)
    assert not put(slices, pools())
    assert len(slices.snapshots) == written


def test_what_the_server_adds_to_taints_is_no_change() -> None:
    slices, wanted = FakeSlices(), pools(1)
    tainted = dataclasses.replace(
        wanted[0],
        devices=tuple(dataclasses.replace(d, taints=(Taint("k", "v", "NoSchedule"),)) for d in wanted[0].devices),
    )
    put(slices, [tainted])
    for obj in slices.objects.values():
        for device in obj["spec"].get("devices", ()):
            for taint in device["taints"]:
                taint["timeAdded"] = "2026-01-01T00:00:00Z"
    assert not put(slices, [tainted])


def test_a_change_rewrites_one_pool_with_the_next_generation() -> None:
    slices = FakeSlices()
    put(slices, pools())
    changed = pools()
    changed[1] = dataclasses.replace(changed[1], devices=changed[1].devices[:-1])
    put(slices, changed)
    generations = {p.name: p.generation for p in read_pools(slices.published())}
    assert generations == {"n1/gpu-0": 1, "n1/gpu-1": 2}


def test_at_no_write_is_a_mixture_of_generations_complete() -> None:
    slices = FakeSlices()
    first = pools(1)
    put(slices, first)
    slices.snapshots.clear()
    second = [dataclasses.replace(first[0], devices=first[0].devices[:5])]
    put(slices, second)
    for snapshot in slices.snapshots:
        for pool in read_pools(snapshot):
            assert not pool.complete or len(pool.devices) == 5
    assert slices.snapshots


def test_slices_that_vanish_come_back() -> None:
    slices = FakeSlices()
    put(slices, pools())
    slices.objects.pop(next(iter(slices.objects)))
    assert put(slices, pools())
    assert all(p.complete for p in read_pools(slices.published()))


def test_pools_of_gpus_that_are_gone_are_deleted_and_those_of_unreadable_ones_kept() -> None:
    slices = FakeSlices()
    put(slices, pools(2))
    plan = plan_slices(pools(1), slices.published(), driver=names.DRIVER_NAME, node=NODE, keep_pools=("n1/gpu-1",))
    assert not plan
    put(slices, pools(1))
    assert [p.name for p in read_pools(slices.published())] == ["n1/gpu-0"]


def test_a_gpu_that_does_not_answer_keeps_its_devices_and_offers_none() -> None:
    readings = [h100(0), h100(1)]
    numbers = {r.uuid: r.minor for r in readings}
    plain = build(NODE, readings, numbers, GpuPolicies())
    marked = build(NODE, readings, numbers, GpuPolicies(), unhealthy={readings[1].uuid})
    for pool, offer in marked.offers.items():
        assert [d.name for d in offer.pool.devices] == [d.name for d in plain.offers[pool].pool.devices]
        expected = [names.UNHEALTHY_TAINT] if offer.reading.uuid == readings[1].uuid else []
        assert all([t.key for t in d.taints] == expected for d in offer.pool.devices)


def test_devices_over_a_foreign_instance_are_tainted_and_none_disappears() -> None:
    reading = h100()
    assert reading.geometry is not None
    partition = next(p for p in reading.geometry.partitions() if p.placement.start == 4 and p.placement.size == 1)
    foreign = {reading.uuid: (_live(partition),)}
    plain = build(NODE, [reading], {reading.uuid: 0}, GpuPolicies())
    marked = build(NODE, [reading], {reading.uuid: 0}, GpuPolicies(), foreign)
    (before,), (after,) = plain.offers.values(), marked.offers.values()
    assert [d.name for d in before.pool.devices] == [d.name for d in after.pool.devices]
    for device in after.pool.devices:
        overlaps = device.partition is None or device.partition.placement.overlaps(partition.placement)
        assert bool(device.taints) == overlaps, device.name


def _live(partition: Partition) -> LiveInstance:
    from dynamig.mig import GiId

    return LiveInstance(GiId(9), partition.profile, partition.placement)


def test_policies_per_gpu() -> None:
    readings = [h100(n) for n in range(4)]
    policies = GpuPolicies(
        by_gpu={
            readings[1].uuid: GpuPolicy(policy=Policy.WHOLE),
            readings[2].pci_bus_id: GpuPolicy(policy=Policy.IGNORE),
            readings[3].uuid: GpuPolicy(profiles=frozenset({"1g.10gb", "no-such-profile"})),
        }
    )
    numbers = {GpuUuid(r.uuid): r.minor for r in readings}
    offers = build(NODE, readings, numbers, policies).offers
    assert {name: len(o.pool.devices) for name, o in offers.items()} == {
        "n1/gpu-0": 26,
        "n1/gpu-1": 1,
        "n1/gpu-3": 8,
    }
