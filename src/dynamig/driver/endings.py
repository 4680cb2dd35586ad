"""Ends of claims: hardware emptied, finalizer taken off, record forgotten. Each act is safe to die after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from dynamig.driver.catalog import Catalog
from dynamig.driver.hardware import destroy_all_of, is_whole
from dynamig.driver.outside import Guards, Node, Outside
from dynamig.errors import Refused, Unavailable
from dynamig.mig import GpuUuid
from dynamig.protocol.claims import ClaimView
from dynamig.protocol.invariants import i4_ours
from dynamig.protocol.lifecycle import Event, State
from dynamig.protocol.records import ClaimRecord, listed
from dynamig.protocol.seen import Found, Unknown

log = structlog.get_logger(__name__)


class Endings:
    """Thread safe. `on_change` is told the UID of each claim of which something has gone."""

    def __init__(
        self,
        node: Node,
        outside: Outside,
        catalog: Callable[[], Catalog],
        on_change: Callable[[str], None],
        guards: Guards,
    ) -> None:
        self._node = node
        self._out = outside
        self._catalog = catalog
        self._on_change = on_change
        self._claim_locks = guards.claims
        self._gpu_locks = guards.gpus
        self._changes = guards.changes

    def unprepare(self, uid: str) -> None:
        """Nothing of the claim is on the hardware and its CDI file is gone. Unknown claims succeed. Idempotent.

        Raises: Unavailable while NVML will not destroy it (IN_USE); the record stays *retiring* and the settler
        tries on as well.
        """
        with self._claim_locks.of(uid):
            record = self._out.journal.records().get(uid)
            if record is None:
                log.info("unprepare_unknown", uid=uid)
                self._out.cdi.remove(uid)
                return
            if record.owns_hardware:
                self.clear(record)
            self._on_change(uid)

    def clear(self, record: ClaimRecord) -> ClaimRecord:
        """*retiring*, then hardware empty, then *held*. After a reboot it is empty without a look (MIG user guide).

        A disk that takes nothing does not stop the destruction of what *prepared* already proves to be ours: the record
        goes instead, and the claim's finalizer tells of it.
        """
        written, proof = True, record
        if record.state is not State.RETIRING:
            retiring = record.after(Event.RETIRE, now=self._out.wall())
            written = self._write_unless_proven(retiring, record)
            record = retiring
        if record.boot_id == self._node.boot_id:
            others = [r for r in self._out.journal.records().values() if r.ref.uid != record.ref.uid]
            with self._gpu_locks.of_all({d.gpu for d in record.devices}):
                destroy_all_of(self._out.gpus, proof, others, self._node.boot_id)
        self._out.cdi.remove(record.ref.uid)
        devices = tuple(replace(d, live=None, making=False) for d in record.devices)
        held = record.after(Event.GONE, now=self._out.wall(), devices=devices, seen_gone=True)
        if written:
            self._out.journal.write(held)
        else:
            self._out.journal.forget(record.ref.uid)
        self._changes.announce()
        log.info("destroyed", claim=str(record.ref), devices=listed(record.devices))
        return held

    def _write_unless_proven(self, retiring: ClaimRecord, before: ClaimRecord) -> bool:
        """Whether *retiring* is on disk. Raises if it is not and `before` would not be proof enough."""
        try:
            self._out.journal.write(retiring)
        except Unavailable as error:
            if before.state is not State.PREPARED:
                raise
            log.error("journal_unwritable", claim=str(before.ref), error=str(error))
            return False
        return True

    def settle(self, uid: str) -> bool:
        """One step towards the end of a claim; True when there is nothing left to do for it now.

        A *retiring* record is destroyed, and an *intended* one too: its claim's lock is free, so nobody is making
        it any more. A *held* one whose claim is deleted or no longer allocated here loses
        our finalizer and is forgotten. Absence of an answer changes nothing.
        """
        with self._claim_locks.of(uid):
            record = self._out.journal.records().get(uid)
            if record is not None and record.state in (State.INTENDED, State.RETIRING):
                record = self.clear(record)
            if record is None or record.state is not State.HELD:
                return True
            return self._let_go(record)

    def _let_go(self, record: ClaimRecord) -> bool:
        match self._out.claims.get(record.ref):
            case Unknown():
                return False
            case Found(claim) if claim.held and claim.held_by_node == self._node.name:
                if not self._may_let_go(claim, record):
                    return False
                self._out.claims.let_go(claim)
            case _:
                pass
        told = record.after(Event.TOLD, now=self._out.wall())
        assert told.state is State.ABSENT
        self._out.journal.forget(record.ref.uid)
        log.info("let_go", claim=str(record.ref))
        return True

    def _may_let_go(self, claim: ClaimView, record: ClaimRecord) -> bool:
        """PROTOCOL P3: the claim is over, and its placements are seen empty."""
        if not (claim.deleting or self._is_released(claim, record)):
            return False
        return record.seen_gone or all(self._is_empty(d.gpu, record) for d in record.devices if d.partition is not None)

    def _is_released(self, claim: ClaimView, record: ClaimRecord) -> bool:
        """With Slurm: not allocated at all, and the bridge says so too. Without: not allocated here."""
        if self._node.with_slurm:
            return claim.released and not claim.allocated
        pools = {d.pool for d in record.devices} | set(self._catalog().offers)
        return not any(d.pool in pools for d in claim.devices_of(self._node.driver_name))

    def _allocated_here(self, claim: ClaimView, record: ClaimRecord) -> bool:
        pools = {d.pool for d in record.devices} | set(self._catalog().offers)
        return any(d.pool in pools for d in claim.devices_of(self._node.driver_name))

    def _is_empty(self, gpu: GpuUuid, record: ClaimRecord) -> bool:
        """No instance at the record's placements that could still be its own: what is there is a successor's."""
        others = [r for r in self._out.journal.records().values() if r.ref.uid != record.ref.uid]
        mine = record.partitions_on(gpu)
        return not any(
            i.partition in mine and not i4_ours(gpu, i, others, self._node.boot_id)
            for i in self._out.gpus.instances(gpu)
        )

    def retire(self, planned: ClaimRecord) -> bool:
        """What the claim has on the hardware is gone, if its record is still the one that was planned on, and the
        reason for it still holds: a prepared claim that is whole on a second look is left alone."""
        with self._claim_locks.of(planned.ref.uid):
            current = self._out.journal.records().get(planned.ref.uid)
            if current != planned or is_whole(self._out.gpus, planned, self._node.boot_id):
                return False
            self.clear(planned)
            return True

    def release(self, uid: str) -> None:
        """What a claim has is destroyed although no kubelet asked: the way out when the kubelet has forgotten it.

        Only for a claim that the API server says is over. Raises: Refused UNKNOWN_CLAIM or STILL_ALLOCATED; Unavailable
        API_UNAVAILABLE, or IN_USE while a process uses it.
        """
        with self._claim_locks.of(uid):
            record = self._out.journal.records().get(uid)
            if record is None:
                raise Refused("UNKNOWN_CLAIM", f"no claim {uid} in this node's journal", "see `dynamig driver status`")
            match self._out.claims.get(record.ref):
                case Unknown(reason):
                    raise Unavailable("API_UNAVAILABLE", reason, "only its word shows that the claim is over")
                case Found(claim) if claim.reserved_for or (self._allocated_here(claim, record) and not claim.deleting):
                    users = ", ".join(claim.reserved_for) or "nobody yet"
                    raise Refused(
                        "STILL_ALLOCATED",
                        f"claim {record.ref} is allocated here (in use by: {users})",
                        "delete its pods first; the kubelet then unprepares it",
                    )
                case _:
                    pass
            if record.owns_hardware:
                self.clear(record)
            self._on_change(uid)
