"""Partitions on the hardware: make one and read it back, destroy what is provably ours, see what is in the way.

Callers hold the GPU's lock; the order of destruction is compute instances first (NVML refuses otherwise).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dynamig.errors import DynamigError, InvariantBroken, Refused, Unavailable
from dynamig.mig import GiId, GpuUuid, Partition, Table
from dynamig.protocol.gpus import Gpus, LiveInstance, MigMode
from dynamig.protocol.invariants import i3_prepared_is_live, i4_ours
from dynamig.protocol.lifecycle import State
from dynamig.protocol.records import ClaimRecord, LiveIds


def make_compute(gpus: Gpus, gpu: GpuUuid, partition: Partition, gi: GiId) -> LiveIds:
    """The GPU instance `gi`, just made for `partition`, is filled by one compute instance; all ids as read back.

    Raises: what NVML says, and Unavailable NOT_AS_ASKED if something else than asked for is there afterwards
    (the caller destroys it; success that was not seen is no success, case C-25).
    """
    ci = gpus.create_compute_instance(gpu, gi)
    seen = next((i for i in gpus.instances(gpu) if i.gi_id == gi), None)
    if seen is None or seen.partition != partition:
        raise _not_as_asked(gpu, partition, f"hardware has {seen}")
    uuid = next((c.uuid for c in seen.compute if c.ci_id == ci), None)
    if uuid is None:
        raise _not_as_asked(gpu, partition, f"compute instance {ci} of GPU instance {gi} has no MIG device")
    return LiveIds(gi, ci, uuid)


def is_whole(gpus: Gpus, record: ClaimRecord, boot_id: str) -> bool:
    """The claim is prepared, and all that it has was read just now."""
    if record.state is not State.PREPARED or record.boot_id != boot_id:
        return False
    try:
        i3_prepared_is_live(record, {d.gpu: gpus.instances(d.gpu) for d in record.devices})
    except InvariantBroken:
        return False
    return True


def destroy(gpus: Gpus, gpu: GpuUuid, instance: LiveInstance) -> None:
    """The instance is gone. What somebody destroyed in between is accepted as gone (case C-29)."""
    for compute in instance.compute:
        with _gone_is_fine():
            gpus.destroy_compute_instance(gpu, instance.gi_id, compute.ci_id)
    with _gone_is_fine():
        gpus.destroy_gpu_instance(gpu, instance.gi_id)


def destroy_all_of(gpus: Gpus, record: ClaimRecord, others: Iterable[ClaimRecord], boot_id: str) -> None:
    """Nothing of `record` is on the hardware; read back. Touches only what this record, in its present state, and no
    other record proves to be its own (I4)."""
    rivals = tuple(others)
    for gpu in sorted({d.gpu for d in record.devices if d.partition is not None}):
        ours = [
            i
            for i in gpus.instances(gpu)
            if i4_ours(gpu, i, [record], boot_id) and not i4_ours(gpu, i, rivals, boot_id)
        ]
        for instance in ours:
            destroy(gpus, gpu, instance)
        destroyed = {(i.gi_id, i.partition) for i in ours}
        if left := [i for i in gpus.instances(gpu) if (i.gi_id, i.partition) in destroyed] if ours else []:
            raise Unavailable("IN_USE", f"{gpu}: {left[0]} of claim {record.ref} is still there", "it is tried again")


def use_mode(gpus: Gpus, gpu: GpuUuid, *, partitioned: bool, may_switch: bool) -> bool:
    """MIG mode is as the device needs it; True if it was switched for that.

    Raises Refused MIG_MODE where it is not and we may not switch it.
    """
    mode = gpus.mig_mode(gpu)
    if mode is MigMode.ABSENT or (mode is MigMode.ON) == partitioned:
        return False
    if not may_switch:
        raise Refused(
            "MIG_MODE",
            f"{gpu}: MIG mode is {mode.value} and may not be switched here",
            "switch it with `nvidia-smi -mig` while the GPU is idle, or choose another device",
        )
    gpus.set_mig_mode(gpu, on=partitioned)
    return True


@dataclass(frozen=True, slots=True)
class InTheWay:
    """What keeps a claim off a GPU: claims of ours that will leave, or instances of nobody we know."""

    claims: tuple[ClaimRecord, ...]
    foreign: tuple[LiveInstance, ...]

    def __bool__(self) -> bool:
        return bool(self.claims or self.foreign)


def in_the_way(
    gpu: GpuUuid,
    table: Table | None,
    wanted: Sequence[Partition | None],
    live: Iterable[LiveInstance],
    others: Iterable[ClaimRecord],
    boot_id: str,
) -> InTheWay:
    """Who must leave `gpu` before `wanted` (None: the whole GPU) can be there, as hardware and journal have it."""
    owners = tuple(
        r for r in others if r.owns_hardware and r.boot_id == boot_id and any(d.gpu == gpu for d in r.devices)
    )
    instances = tuple(live)
    claims = {r.ref.uid: r for r in owners if _collides(r, gpu, table, wanted)}
    foreign: list[LiveInstance] = []
    for instance in instances:
        if not any(_blocks(table, instance.partition, one) for one in wanted):
            continue
        proofs = i4_ours(gpu, instance, owners, boot_id)
        claims.update({r.ref.uid: r for r in proofs})
        if not proofs:
            foreign.append(instance)
    return InTheWay(tuple(claims.values()), tuple(foreign))


def foreign_instances(
    live: Mapping[GpuUuid, Sequence[LiveInstance]], records: Iterable[ClaimRecord], boot_id: str
) -> dict[GpuUuid, tuple[LiveInstance, ...]]:
    """Instances that no record proves to be ours, by GPU; GPUs without any are left out."""
    known = tuple(records)
    found = {gpu: tuple(i for i in seen if not i4_ours(gpu, i, known, boot_id)) for gpu, seen in live.items()}
    return {gpu: instances for gpu, instances in found.items() if instances}


def _collides(record: ClaimRecord, gpu: GpuUuid, table: Table | None, wanted: Sequence[Partition | None]) -> bool:
    held = [d.partition for d in record.devices if d.gpu == gpu]
    return any(_blocks(table, one, new) for one in held for new in wanted)


def _blocks(table: Table | None, present: Partition | None, new: Partition | None) -> bool:
    if present is None or new is None or table is None:
        return True
    return bool(table.blocking([present], new))


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except DynamigError as error:
        if error.code != "NOT_FOUND":
            raise


def _not_as_asked(gpu: GpuUuid, partition: Partition, seen: str) -> Unavailable:
    return Unavailable("NOT_AS_ASKED", f"{gpu}: asked for {partition}, {seen}", "it is undone; prepare is tried again")
