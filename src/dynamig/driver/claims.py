"""Prepare and unprepare: from an allocated claim to living devices and back.

Order of acts in prepare, each safe to die after:
fetch the claim - wait until its placements are empty - put our finalizer on it - write *intended* - make each device
and read it back - write the CDI file - write *prepared* - answer. Whatever fails undoes all devices of the claim.
Time budget: the kubelet gives 45 s for all claims of a pod and comes back about 80 s after an error, so what
waiting can cure is waited for here, up to the caller's deadline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from dynamig.cdi import ContainerEdits, claim_spec, device_id
from dynamig.driver.catalog import Catalog
from dynamig.driver.hardware import destroy_all_of, in_the_way, make, use_mode
from dynamig.driver.locks import Changes, KeyedLocks
from dynamig.driver.requests import wanted_devices
from dynamig.errors import DynamigError, Refused, Unavailable
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef, ClaimView
from dynamig.protocol.gpus import DeviceNode, DeviceNodes, Gpus
from dynamig.protocol.invariants import i1_disjoint, i2_engines, i4_ours
from dynamig.protocol.lifecycle import Event, State
from dynamig.protocol.ports import CdiFiles, Claims, Journal
from dynamig.protocol.records import ClaimRecord, DeviceRecord
from dynamig.protocol.seen import Found, Gone, Unknown

log = structlog.get_logger(__name__)

POLL = 0.5
"""Seconds between looks at the hardware while waiting; what we destroy ourselves is announced at once."""


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device in the answer to the kubelet."""

    request: str
    pool: str
    device: str
    cdi_id: str


@dataclass(frozen=True, slots=True)
class Node:
    """What stays the same while the driver runs."""

    name: str
    driver_name: str
    boot_id: str
    edits: ContainerEdits

    @property
    def cdi_kind(self) -> str:
        return names.cdi_kind(self.driver_name)


@dataclass(frozen=True, slots=True)
class Outside:
    """The ports, and the clocks: `monotonic` for deadlines, `wall` for what is written down; both in seconds."""

    gpus: Gpus
    nodes: DeviceNodes
    claims: Claims
    journal: Journal
    cdi: CdiFiles
    monotonic: Callable[[], float]
    wall: Callable[[], float]


class ClaimService:
    """Prepares and unprepares claims. Thread safe; see `locks` for the order in which it locks."""

    def __init__(
        self,
        node: Node,
        outside: Outside,
        catalog: Callable[[], Catalog],
        on_change: Callable[[str], None] = lambda uid: None,
    ) -> None:
        self._node = node
        self._out = outside
        self._catalog = catalog
        self._on_change = on_change
        self._claim_locks = KeyedLocks()
        self._gpu_locks = KeyedLocks()
        self._changes = Changes()

    # -- prepare ---------------------------------------------------------------------------------------------

    def prepare(self, ref: ClaimRef, *, deadline: float) -> Sequence[PreparedDevice]:
        """The claim's devices live and its CDI file is written. Idempotent: a prepared claim answers the same.

        `deadline`: on the monotonic clock, until when a predecessor's leaving is waited for.
        Raises: the families of `dynamig.errors` with the codes of `protocol.reasons`; then nothing of the claim
        is on the hardware, or its record is *retiring* and the settler goes on destroying.
        """
        with self._claim_locks.of(ref.uid):
            claim = self._fetch(ref)
            wanted = wanted_devices(claim, self._node.driver_name, self._catalog())
            record = self._out.journal.records().get(ref.uid)
            if record is not None and record.state is State.PREPARED and record.boot_id == self._node.boot_id:
                return self._again(record, wanted)
            if record is not None and record.owns_hardware:
                record = self._clear(record)
            record = self._intend(claim, wanted, record, deadline)
            return self._carry_out(record)

    def _fetch(self, ref: ClaimRef) -> ClaimView:
        match self._out.claims.get(ref):
            case Found(claim):
                return claim
            case Gone(proof):
                raise Refused("CLAIM_GONE", f"claim {ref}: {proof}", "nothing to prepare; delete the pod")
            case Unknown(reason):
                raise Unavailable("API_UNAVAILABLE", f"claim {ref}: {reason}", "it is tried again")

    def _again(self, record: ClaimRecord, wanted: Sequence[DeviceRecord]) -> Sequence[PreparedDevice]:
        if [d.identity for d in wanted] != [d.identity for d in record.devices]:
            raise Unavailable(
                "CLAIM_CHANGED",
                f"claim {record.ref} is allocated {_list(wanted)} but {_list(record.devices)} is still prepared",
                "it is unprepared first; prepare is tried again",
            )
        self.write_cdi(record)
        return self._answer(record)

    def _intend(
        self, claim: ClaimView, wanted: Sequence[DeviceRecord], before: ClaimRecord | None, deadline: float
    ) -> ClaimRecord:
        """The placements are empty, the finalizer is on the claim and *intended* is on disk."""
        record = before or ClaimRecord(claim.ref, State.ABSENT, (), self._node.boot_id, self._out.wall())
        record = replace(record, devices=tuple(wanted), boot_id=self._node.boot_id)
        held = claim.held
        try:
            if not claim.held or claim.held_by_node != self._node.name:
                self._hold(claim, wanted)
                held = True
            return self._intend_when_empty(record, deadline)
        except DynamigError:
            if held:
                self._note_held(record)
            raise

    def _hold(self, claim: ClaimView, wanted: Sequence[DeviceRecord]) -> None:
        if claim.held and claim.held_by_node not in (None, self._node.name):
            raise Unavailable(
                "HELD_ELSEWHERE",
                f"claim {claim.ref} is still held by node {claim.held_by_node}",
                "that node lets go once its hardware is empty; prepare is tried again",
            )
        held = [{"pool": d.pool, "device": d.device, "gpu": d.gpu} for d in wanted]
        self._out.claims.hold(
            claim, {names.NODE: self._node.name, names.HOLD: json.dumps({"devices": held}, sort_keys=True)}
        )

    def _note_held(self, record: ClaimRecord) -> None:
        """The settler learns of a claim that has our finalizer and nothing else."""
        self._out.journal.write(record.after(Event.HOLD, now=self._out.wall()))
        self._on_change(record.ref.uid)

    def _intend_when_empty(self, record: ClaimRecord, deadline: float) -> ClaimRecord:
        gpus = {d.gpu for d in record.devices}
        while True:
            seen = self._changes.count()
            with self._gpu_locks.of_all(gpus):
                waiting_for = self._waiting_for(record)
                if not waiting_for:
                    intended = record.after(Event.INTEND, now=self._out.wall())
                    self._check_invariants(intended)
                    self._out.journal.write(intended)
                    return intended
            left = deadline - self._out.monotonic()
            if left <= 0:
                raise Unavailable(
                    "PLACEMENT_BUSY",
                    f"claim {record.ref}: {_list(record.devices)} still held by {', '.join(waiting_for)}",
                    "`dynamig ps` shows who that is; prepare is tried again",
                )
            self._changes.wait_after(seen, min(left, POLL))

    def _waiting_for(self, record: ClaimRecord) -> list[str]:
        """Names of the claims that must leave first. Raises Refused for instances that nobody will remove."""
        waiting: list[str] = []
        others = [r for r in self._out.journal.records().values() if r.ref.uid != record.ref.uid]
        for gpu in sorted({d.gpu for d in record.devices}):
            wanted = [d.partition for d in record.devices if d.gpu == gpu]
            offer = self._catalog().of_gpu(gpu)
            blockers = in_the_way(gpu, offer.table, wanted, self._out.gpus.instances(gpu), others)
            if blockers.foreign:
                raise Refused(
                    "FOREIGN_INSTANCE",
                    f"{gpu}: {', '.join(map(str, blockers.foreign))} is in the way and was not made by dynamig",
                    "remove it with `nvidia-smi mig -dci -dgi`, or delete this claim to be scheduled elsewhere",
                )
            waiting += [f"claim {r.ref} ({r.state.value})" for r in blockers.claims]
        return waiting

    def _check_invariants(self, record: ClaimRecord) -> None:
        """I1 and I2 hold with the record in the books. Callers hold the locks of its GPUs."""
        owners = {**self._out.journal.records(), record.ref.uid: record}
        for gpu in {d.gpu for d in record.devices}:
            partitions = {uid: r.partitions_on(gpu) for uid, r in owners.items() if r.owns_hardware}
            i1_disjoint(gpu, partitions)
            if (table := self._catalog().of_gpu(gpu).table) is not None:
                i2_engines(gpu, table, [p for many in partitions.values() for p in many])

    def _carry_out(self, record: ClaimRecord) -> Sequence[PreparedDevice]:
        """From *intended* to *prepared*, or everything undone."""
        try:
            made = replace(record, devices=tuple(self._make(d) for d in record.devices))
            self.write_cdi(made)
            made = made.after(Event.MADE, now=self._out.wall())
            self._out.journal.write(made)
        except DynamigError as error:
            log.warning("prepare_failed", claim=str(record.ref), code=error.code, error=str(error))
            self._undo(record)
            raise
        log.info("prepared", claim=str(made.ref), devices=_list(made.devices))
        self._on_change(made.ref.uid)
        return self._answer(made)

    def _make(self, device: DeviceRecord) -> DeviceRecord:
        gpus, gpu = self._out.gpus, device.gpu
        may_switch = self._catalog().of_gpu(gpu).may_switch_mode
        with self._gpu_locks.of(gpu):
            if use_mode(gpus, gpu, partitioned=device.partition is not None, may_switch=may_switch):
                log.info("mig_mode_switched", gpu=gpu, on=device.partition is not None)
            if device.partition is None:
                return device
            return replace(device, live=make(gpus, gpu, device.partition))

    def _undo(self, record: ClaimRecord) -> None:
        """Never raises: what cannot be undone now stays *retiring* and is the settler's."""
        try:
            self._clear(record)
        except DynamigError as error:
            log.warning("undo_postponed", claim=str(record.ref), code=error.code, error=str(error))
        self._on_change(record.ref.uid)

    def _answer(self, record: ClaimRecord) -> Sequence[PreparedDevice]:
        return tuple(
            PreparedDevice(d.request, d.pool, d.device, device_id(self._node.cdi_kind, record.ref.uid, d.device))
            for d in record.devices
        )

    # -- unprepare -------------------------------------------------------------------------------------------

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
                self._clear(record)
            self._on_change(uid)

    def _clear(self, record: ClaimRecord) -> ClaimRecord:
        """*retiring*, then hardware empty, then *held*."""
        if record.state is not State.RETIRING:
            record = record.after(Event.RETIRE, now=self._out.wall())
            self._out.journal.write(record)
        with self._gpu_locks.of_all({d.gpu for d in record.devices}):
            destroy_all_of(self._out.gpus, record)
        self._out.cdi.remove(record.ref.uid)
        devices = tuple(replace(d, live=None) for d in record.devices)
        held = record.after(Event.GONE, now=self._out.wall(), devices=devices)
        self._out.journal.write(held)
        self._changes.announce()
        log.info("destroyed", claim=str(record.ref), devices=_list(record.devices))
        return held

    # -- letting go ------------------------------------------------------------------------------------------

    def settle(self, uid: str) -> bool:
        """One step towards the end of a claim; True when there is nothing left to do for it now.

        A *retiring* record is destroyed, and an *intended* one too: its claim's lock is free, so nobody is making
        it any more. A *held* one whose claim is deleted or no longer allocated here loses
        our finalizer and is forgotten. Absence of an answer changes nothing.
        """
        with self._claim_locks.of(uid):
            record = self._out.journal.records().get(uid)
            if record is not None and record.state in (State.INTENDED, State.RETIRING):
                record = self._clear(record)
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
        """PROTOCOL P3 without Slurm: deleted or not allocated here, and the placements are seen empty."""
        pools = {d.pool for d in record.devices} | set(self._catalog().offers)
        allocated_here = any(d.pool in pools for d in claim.devices_of(self._node.driver_name))
        if allocated_here and not claim.deleting:
            return False
        return all(self._is_empty(d.gpu, record) for d in record.devices if d.partition is not None)

    def _is_empty(self, gpu: GpuUuid, record: ClaimRecord) -> bool:
        """No instance at the record's placements that could still be its own: what is there is a successor's."""
        others = [r for r in self._out.journal.records().values() if r.ref.uid != record.ref.uid]
        mine = record.partitions_on(gpu)
        return not any(i.partition in mine and not i4_ours(gpu, i, others) for i in self._out.gpus.instances(gpu))

    # -- what recovery uses ----------------------------------------------------------------------------------

    def retire(self, planned: ClaimRecord) -> bool:
        """What the claim has on the hardware is gone, if its record is still the one that was planned on."""
        with self._claim_locks.of(planned.ref.uid):
            if self._out.journal.records().get(planned.ref.uid) != planned:
                return False
            self._clear(planned)
            return True

    def restore_cdi(self, planned: ClaimRecord) -> None:
        with self._claim_locks.of(planned.ref.uid):
            if self._out.journal.records().get(planned.ref.uid) == planned:
                self.write_cdi(planned)

    def remove_cdi(self, uid: str) -> None:
        with self._claim_locks.of(uid):
            record = self._out.journal.records().get(uid)
            if record is None or record.state is not State.PREPARED:
                self._out.cdi.remove(uid)

    def adopt(self, claim: ClaimView, devices: Sequence[DeviceRecord]) -> None:
        """The claim is in the journal as *held*: nothing of it is ours on the hardware, and it is let go in time."""
        with self._claim_locks.of(claim.ref.uid):
            if claim.ref.uid not in self._out.journal.records():
                record = ClaimRecord(claim.ref, State.ABSENT, tuple(devices), self._node.boot_id, self._out.wall())
                self._note_held(record)

    def write_cdi(self, record: ClaimRecord) -> None:
        """The CDI file of the record is as it must be now; not rewritten if it already is."""
        nodes = {d.device: self._nodes(d) for d in record.devices}
        spec = claim_spec(self._node.cdi_kind, record.ref.uid, nodes, self._node.edits)
        if self._out.cdi.read(record.ref.uid) != spec:
            self._out.cdi.write(record.ref.uid, spec)

    def _nodes(self, device: DeviceRecord) -> Sequence[DeviceNode]:
        minor = self._out.gpus.minor(device.gpu)  # read now: a mode switch may have changed it
        nodes = tuple(self._out.nodes.gpu_nodes(minor))
        if device.live is None:
            return nodes
        return (*nodes, *self._out.nodes.capability_nodes(minor, device.live.gi_id, device.live.ci_id))


def _list(devices: Sequence[DeviceRecord]) -> str:
    return ", ".join(f"{d.pool}/{d.device}" for d in devices)
