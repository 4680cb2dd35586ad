"""What every implementation of a port must do: run on the fakes, on the emulator, and on a GPU.

Each check leaves what it was given as it found it, and raises AssertionError where a promise does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynamig.errors import Conflict, DynamigError, Refused, Unavailable
from dynamig.mig import GiId, GpuUuid, Partition
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.gpus import Gpus, MigMode
from dynamig.protocol.ports import CdiFiles, Claims, Journal, LeaseObject
from dynamig.protocol.records import ClaimRecord
from dynamig.protocol.seen import Found, Gone


def check_gpus(gpus: Gpus, gpu: GpuUuid) -> None:
    """On an empty GPU with MIG on: make, see, refuse what overlaps, destroy in order, and end empty."""
    reading = gpus.reading(gpu)
    assert reading.uuid == gpu
    assert reading.mig_mode is gpus.mig_mode(gpu) is MigMode.ON
    assert reading.minor == gpus.minor(gpu)
    assert reading.geometry is not None
    assert not gpus.instances(gpu), "the GPU must be empty"
    smallest = min(reading.geometry.partitions(), key=lambda p: (p.placement.size, p.placement.start))
    gi = gpus.create_gpu_instance(gpu, smallest)
    ci = gpus.create_compute_instance(gpu, gi)
    (seen,) = gpus.instances(gpu)
    assert (seen.gi_id, seen.partition) == (gi, smallest)
    assert [c.ci_id for c in seen.compute] == [ci]
    assert seen.compute[0].uuid is not None
    assert seen.compute[0].fills
    _refuses(Refused, "NO_ROOM", lambda: gpus.create_gpu_instance(gpu, smallest))
    _refuses(Unavailable, "IN_USE", lambda: gpus.destroy_gpu_instance(gpu, gi))
    gpus.destroy_compute_instance(gpu, gi, ci)
    _refuses(Unavailable, "NOT_FOUND", lambda: gpus.destroy_compute_instance(gpu, gi, ci))
    gpus.destroy_gpu_instance(gpu, gi)
    _refuses(Unavailable, "NOT_FOUND", lambda: gpus.destroy_gpu_instance(gpu, gi))
    assert not gpus.instances(gpu)


def check_every_partition(gpus: Gpus, gpu: GpuUuid) -> None:
    """On an empty GPU: each partition of its geometry can be made, is seen exactly there, and goes again."""
    geometry = gpus.reading(gpu).geometry
    assert geometry is not None
    for partition in geometry.partitions():
        assert _made(gpus, gpu, partition) == [partition]
        assert not gpus.instances(gpu)


def check_mode_switch(gpus: Gpus, gpu: GpuUuid) -> None:
    """On an empty GPU with MIG on that switches without a reset: off and on again; not while an instance lives."""
    gpus.set_mig_mode(gpu, on=False)
    assert gpus.reading(gpu).mig_mode is MigMode.OFF
    assert not gpus.instances(gpu)
    gpus.set_mig_mode(gpu, on=True)
    reading = gpus.reading(gpu)
    assert reading.mig_mode is MigMode.ON
    assert reading.geometry is not None
    gi = gpus.create_gpu_instance(gpu, reading.geometry.partitions()[0])
    _refuses(Unavailable, "IN_USE", lambda: gpus.set_mig_mode(gpu, on=False))
    gpus.destroy_gpu_instance(gpu, gi)


def check_claims(claims: Claims, ref: ClaimRef) -> None:
    """On a claim without our finalizer: hold, stale writes refused, found by node, let go, gone by UID."""
    found = claims.get(ref)
    assert isinstance(found, Found)
    before = found.value
    held = claims.hold(before, {names.NODE: "check-node"})
    assert held.held
    assert held.held_by_node == "check-node"
    assert [c.ref for c in claims.held_on("check-node")] == [ref]
    _refuses(Conflict, "CONFLICT", lambda: claims.let_go(before))
    claims.let_go(held)
    again = claims.get(ref)
    assert isinstance(again, Found)
    assert not again.value.held
    assert again.value.held_by_node is None
    assert set(again.value.finalizers) == set(before.finalizers)
    other = ClaimRef(ref.namespace, ref.name, "another-uid")
    assert isinstance(claims.get(other), Gone)
    assert isinstance(claims.get(ClaimRef(ref.namespace, "no-such-claim", "x")), Gone)


def check_lease(lease: LeaseObject) -> None:
    """On a Lease that does not exist: made once, replaced as it was read or not at all, and its other words stay. It is
    left behind without a holder."""
    assert lease.read() is None
    lease.create({"holderIdentity": "one", "leaseDurationSeconds": 15, "leaseTransitions": 0})
    _refuses(Conflict, "CONFLICT", lambda: lease.create({"holderIdentity": "two"}))
    first = lease.read()
    assert first is not None
    assert first["spec"]["holderIdentity"] == "one"
    lease.replace(first, {**first["spec"], "holderIdentity": "two"})
    _refuses(Conflict, "CONFLICT", lambda: lease.replace(first, {**first["spec"], "holderIdentity": "three"}))
    second = lease.read()
    assert second is not None
    assert second["spec"] == {**first["spec"], "holderIdentity": "two"}
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    lease.replace(second, {"leaseDurationSeconds": 1})
    third = lease.read()
    assert third is not None
    assert third["spec"] == {"leaseDurationSeconds": 1}


def check_journal(journal: Journal, record: ClaimRecord) -> None:
    assert journal.records() == {}
    journal.write(record)
    assert journal.records() == {record.ref.uid: record}
    journal.forget(record.ref.uid)
    journal.forget(record.ref.uid)
    assert journal.records() == {}
    assert journal.restore(record) is None, "nothing was damaged"
    assert journal.records() == {record.ref.uid: record}
    journal.forget(record.ref.uid)


def check_damaged_journal(journal: Journal, record: ClaimRecord) -> None:
    """On a journal whose only record, of the same claim, cannot be read: no word of it until it is restored."""
    (damaged,) = journal.unreadable().values()
    assert set(journal.unreadable()) == {record.ref.uid}
    _refuses(Refused, "JOURNAL_DAMAGED", lambda: journal.write(record))
    assert journal.records() == {}
    kept = journal.restore(record)
    assert kept is not None
    assert kept != damaged
    assert journal.unreadable() == {}
    assert journal.records() == {record.ref.uid: record}
    journal.write(record)


def check_cdi_files(files: CdiFiles, spec: dict[str, Any]) -> None:
    assert files.claims() == []
    assert files.read("uid") is None
    files.write("uid", spec)
    assert files.claims() == ["uid"]
    assert files.read("uid") == spec
    files.remove("uid")
    files.remove("uid")
    assert files.claims() == []


def _made(gpus: Gpus, gpu: GpuUuid, partition: Partition) -> list[Partition]:
    gi = gpus.create_gpu_instance(gpu, partition)
    ci = gpus.create_compute_instance(gpu, gi)
    seen = [i.partition for i in gpus.instances(gpu)]
    gpus.destroy_compute_instance(gpu, GiId(gi), ci)
    gpus.destroy_gpu_instance(gpu, GiId(gi))
    return seen


def _refuses(family: type[DynamigError], code: str, call: Callable[[], object]) -> None:
    try:
        call()
    except family as refused:
        if refused.code == code:
            return
        raise AssertionError(f"{refused.code} instead of {code}") from refused
    raise AssertionError(f"accepted what must be refused with {code}")
