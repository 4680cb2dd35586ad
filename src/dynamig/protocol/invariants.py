"""I1 to I4: promises about one GPU, each a function called at the driver's doors and by the tests.

A violation raises InvariantBroken; whoever sees it stops work on that GPU. I5 to I10 come with the bridge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dynamig.errors import InvariantBroken
from dynamig.mig import GpuUuid, Partition, Table
from dynamig.protocol.gpus import LiveInstance
from dynamig.protocol.lifecycle import State
from dynamig.protocol.records import ClaimRecord, LiveIds


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
        if device.live is None:
            raise InvariantBroken("I3", f"claim {record.ref}: {device.device} prepared without ids")
        seen = {i.gi_id: i for i in live.get(device.gpu, ())}
        instance = seen.get(device.live.gi_id)
        if instance is None or instance.partition != device.partition:
            raise InvariantBroken(
                "I3",
                f"claim {record.ref}: {device.device} should be {device.live.gi_id}, hardware has {instance}",
            )


def i4_ours(gpu: GpuUuid, instance: LiveInstance, records: Iterable[ClaimRecord]) -> tuple[ClaimRecord, ...]:
    """The records that prove `instance` to be ours; empty means that it must not be destroyed (I4).

    Proof is a record that owns hardware and names exactly this profile and placement on this GPU: it was written
    while that placement was seen empty, so what is there now was made by us. Where the record has the ids that
    were read back, they must agree as well: a different id at the same place was made by somebody else later.
    """
    return tuple(r for r in records if r.owns_hardware and _names(r, gpu, instance))


def _names(record: ClaimRecord, gpu: GpuUuid, instance: LiveInstance) -> bool:
    return any(
        d.gpu == gpu and d.partition == instance.partition and (d.live is None or _same(d.live, instance))
        for d in record.devices
    )


def _same(ids: LiveIds, instance: LiveInstance) -> bool:
    """A GPU instance without compute instances may be ours half destroyed; a foreign UUID in it is not."""
    uuids = {c.uuid for c in instance.compute if c.uuid is not None}
    return ids.gi_id == instance.gi_id and (not uuids or ids.mig_uuid in uuids)
