"""I1 to I4: promises about one GPU, each a function called at the driver's doors and by the tests.

A violation raises InvariantBroken; whoever sees it stops work on that GPU. I5 to I10 come with the bridge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dynamig.errors import InvariantBroken
from dynamig.mig import GpuUuid, Partition, Table
from dynamig.protocol.gpus import LiveInstance
from dynamig.protocol.lifecycle import State
from dynamig.protocol.records import ClaimRecord, DeviceRecord, LiveIds


def i1_disjoint(gpu: GpuUuid, owned: Mapping[str, Iterable[Partition]]) -> None:
    """I1: no memory slice of `gpu` belongs to two claims. `owned`: claim UID to its partitions there."""
    taken: dict[int, str] = {}
    for uid, partitions in owned.items():
        for partition in partitions:
            at = partition.placement
            for memory_slice in range(at.start, at.start + at.size):
                other = taken.setdefault(memory_slice, uid)
                if other != uid:
                    raise InvariantBroken("I1", f"memory slice {memory_slice} of {gpu} is in claims {other} and {uid}")


def i2_engines(gpu: GpuUuid, table: Table, live: Iterable[Partition]) -> None:
    """I2: what lives on `gpu` could have been made one after the other, engines and counts included."""
    made: list[Partition] = []
    for partition in live:
        if not table.fits(made, partition):
            raise InvariantBroken("I2", f"{partition} on {gpu} does not fit beside {made}")
        made.append(partition)


def i3_prepared_is_live(record: ClaimRecord, live: Mapping[GpuUuid, Iterable[LiveInstance]]) -> None:
    """I3: each device of a prepared claim is on the hardware with the ids, profile and placement recorded."""
    if record.state is not State.PREPARED:
        return
    for device in record.devices:
        if device.partition is None:
            continue
        ids = device.live
        if ids is None:
            raise InvariantBroken("I3", f"claim {record.ref}: {device.device} prepared without ids")
        seen = {i.gi_id: i for i in live.get(device.gpu, ())}
        instance = seen.get(ids.gi_id)
        whole = instance is not None and any((c.ci_id, c.uuid) == (ids.ci_id, ids.mig_uuid) for c in instance.compute)
        if instance is None or instance.partition != device.partition or not whole:
            raise InvariantBroken(
                "I3",
                f"claim {record.ref}: {device.device} should be {ids}, hardware has {instance}",
            )


def i4_ours(
    gpu: GpuUuid, instance: LiveInstance, records: Iterable[ClaimRecord], boot_id: str
) -> tuple[ClaimRecord, ...]:
    """The records that prove `instance` to be ours; empty means that it must not be destroyed (I4).

    Proof is a record of this boot that owns hardware and names exactly this profile and placement on this GPU, with the
    ids that NVML gave when it was made, or in the act of making it: then it was written while the place was seen empty.
    Instances do not survive a boot, so a record of another one proves nothing.
    """
    return tuple(r for r in records if r.owns_hardware and r.boot_id == boot_id and _names(r, gpu, instance))


def _names(record: ClaimRecord, gpu: GpuUuid, instance: LiveInstance) -> bool:
    return any(_is(device, instance, record.state) for device in record.devices if device.gpu == gpu)


def _is(device: DeviceRecord, instance: LiveInstance, state: State) -> bool:
    here = device.partition == instance.partition
    if device.live is None:
        return device.making and here
    # While it is being made, NVML may have put it elsewhere than asked: the id that it just gave is proof enough.
    return (here or device.live.mig_uuid is None) and _same(device.live, instance, state)


def _same(ids: LiveIds, instance: LiveInstance, state: State) -> bool:
    """Without a compute instance it is ours only while we make or destroy it: a prepared one has its own."""
    if ids.gi_id != instance.gi_id:
        return False
    if not instance.compute:
        return ids.mig_uuid is None or state is State.RETIRING
    return ids.mig_uuid is None or any(c.uuid == ids.mig_uuid for c in instance.compute)
