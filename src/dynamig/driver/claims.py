"""Prepare: from an allocated claim to living devices. The way back is `endings`.

Order of acts in prepare, each safe to die after:
fetch the claim - wait until its placements are empty - put our finalizer on it - write *intended* - make each device
and read it back - write the CDI file - write *prepared* - answer. Whatever fails undoes all devices of the claim.
Time budget: the kubelet gives 45 s for all claims of a pod and comes back about 80 s after an error, so what
waiting can cure is waited for here, up to the caller's deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from dynamig.cdi import claim_spec, device_id
from dynamig.driver import adoption
from dynamig.driver.catalog import Catalog
from dynamig.driver.endings import Endings
from dynamig.driver.fence import Fence, NoFence
from dynamig.driver.hardware import in_the_way, is_whole, make_compute, use_mode
from dynamig.driver.outside import Guards, Node, Outside
from dynamig.driver.requests import check_held, device_record, wanted_devices
from dynamig.errors import Conflict, DynamigError, Refused, Unavailable
from dynamig.mig import GiId, GpuUuid, Partition
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef, ClaimView, base_request
from dynamig.protocol.gpus import DeviceNode, LiveInstance
from dynamig.protocol.hold_note import HoldNote, NotedDevice
from dynamig.protocol.invariants import i1_disjoint, i2_engines
from dynamig.protocol.lifecycle import Event, State
from dynamig.protocol.records import ClaimRecord, DeviceRecord, LiveIds, listed
from dynamig.protocol.seen import Found, Gone, Unknown

log = structlog.get_logger(__name__)

POLL = 0.5
"""Seconds between looks at the hardware while waiting; what we destroy ourselves is announced at once."""

AT_LEAST = 2.0
"""Seconds that slurmctld has to say whether a loan stands, however little time a prepare has left."""


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device in the answer to the kubelet."""

    request: str
    pool: str
    device: str
    cdi_id: str


PASSING = frozenset({"API_UNAVAILABLE", "CONFLICT", "HELD_ELSEWHERE"})
"""What waiting cures and no other wait has waited for yet: an error would cost the user 80 s."""


class _Work:
    """A claim on its way from *intended* to *prepared*. `record` always says what is known to be on the hardware."""

    def __init__(self, record: ClaimRecord) -> None:
        self.record = record

    def put(self, number: int, **changes: Any) -> None:
        devices = list(self.record.devices)
        devices[number] = replace(devices[number], **changes)
        self.record = replace(self.record, devices=tuple(devices))


class ClaimService:
    """Prepares claims. Thread safe; see `locks` for the order in which it locks."""

    def __init__(
        self,
        node: Node,
        outside: Outside,
        catalog: Callable[[], Catalog],
        on_change: Callable[[str], None] = lambda uid: None,
        guards: Guards | None = None,
        fence: Fence | None = None,
    ) -> None:
        self._node = node
        self._out = outside
        self._catalog = catalog
        self._on_change = on_change
        guards = guards or Guards()
        self._claim_locks = guards.claims
        self._gpu_locks = guards.gpus
        self._changes = guards.changes
        self._fence = fence or NoFence()
        self.endings = Endings(node, outside, catalog, on_change, guards)

    def prepare(self, ref: ClaimRef, *, deadline: float) -> Sequence[PreparedDevice]:
        """The claim's devices live and its CDI file is written. Idempotent: a prepared claim answers the same.

        `deadline`: on the monotonic clock, until when a predecessor's leaving is waited for.
        Raises: the families of `dynamig.errors` with the codes of `protocol.reasons`; then nothing of the claim
        is on the hardware, or its record is *retiring* and the settler goes on destroying.
        """
        with self._claim_locks.of(ref.uid):
            while True:
                seen = self._changes.count()
                try:
                    return self._attempt(ref, deadline)
                except (Conflict, Unavailable) as error:
                    left = deadline - self._out.monotonic()
                    if error.code not in PASSING or left <= 0:
                        raise
                    self._changes.wait_after(seen, min(left, POLL))

    def _attempt(self, ref: ClaimRef, deadline: float) -> Sequence[PreparedDevice]:
        claim = self._fetch(ref)
        record = self._out.journal.records().get(ref.uid)
        if record is not None and record.state is State.PREPARED and record.boot_id == self._node.boot_id:
            return self._again(record, claim)
        wanted = wanted_devices(claim, self._node.driver_name, self._catalog())
        if self._node.with_slurm:
            check_held(claim, self._node.name)
        if record is not None and record.owns_hardware:
            record = self.endings.clear(record)
        return self._carry_out(self._intend(claim, wanted, record, deadline))

    def _fetch(self, ref: ClaimRef) -> ClaimView:
        match self._out.claims.get(ref):
            case Found(claim):
                return claim
            case Gone(proof):
                raise Refused("CLAIM_GONE", f"claim {ref}: {proof}", "there is nothing to do for it; delete its pod")
            case Unknown(reason):
                raise Unavailable("API_UNAVAILABLE", f"claim {ref}: {reason}", "it is tried again")

    def _again(self, record: ClaimRecord, claim: ClaimView) -> Sequence[PreparedDevice]:
        """What is prepared stays good while it is the claim's, whatever else has changed about claim or node."""
        allocated = [(d.request, d.pool, d.device) for d in claim.devices_of(self._node.driver_name)]
        if allocated != [d.identity for d in record.devices]:
            now = ", ".join(f"{pool}/{device}" for _, pool, device in allocated) or "nothing"
            raise Unavailable(
                "CLAIM_CHANGED",
                f"claim {record.ref} is allocated {now} but {listed(record.devices)} is still prepared",
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
        note = HoldNote(tuple(NotedDevice(d.pool, d.device, d.gpu) for d in wanted))
        self._out.claims.hold(claim, {names.NODE: self._node.name, names.HOLD: note.to_json()})

    def _note_held(self, record: ClaimRecord) -> None:
        """The settler learns of a claim that has our finalizer and nothing else."""
        self._out.journal.write(record.after(Event.HOLD, now=self._out.wall()))
        self._on_change(record.ref.uid)

    def _intend_when_empty(self, record: ClaimRecord, deadline: float) -> ClaimRecord:
        gpus = {d.gpu for d in record.devices}
        while True:
            seen = self._changes.count()
            with self._gpu_locks.of_all(gpus):
                borrowers = self._fence.lent(gpus)
                waiting_for = borrowers or self._waiting_for(record)
                if not waiting_for:
                    devices = _first_making(record)
                    intended = record.after(Event.INTEND, now=self._out.wall(), devices=devices, seen_gone=False)
                    self._check_invariants(intended)
                    self._out.journal.write(intended)
                    return intended
            if borrowers and self._fence.ask(gpus, within=max(deadline - self._out.monotonic(), AT_LEAST)):
                continue
            left = deadline - self._out.monotonic()
            if left <= 0:
                raise _busy(record, waiting_for, lent=bool(borrowers))
            self._changes.wait_after(seen, min(left, POLL))

    def _waiting_for(self, record: ClaimRecord) -> list[str]:
        """Names of the claims that must leave first. Raises Refused for instances that nobody will remove."""
        waiting: list[str] = []
        others = [r for r in self._out.journal.records().values() if r.ref.uid != record.ref.uid]
        for gpu in sorted({d.gpu for d in record.devices}):
            wanted = [d.partition for d in record.devices if d.gpu == gpu]
            offer = self._catalog().of_gpu(gpu)
            blockers = in_the_way(gpu, offer.table, wanted, self._out.gpus.instances(gpu), others, self._node.boot_id)
            if blockers.foreign:
                may_be_own = any(i.partition in wanted for i in blockers.foreign) and not record.seen_gone
                raise _foreign(gpu, blockers.foreign, may_be_of=record.ref if may_be_own else None)
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

    def _carry_out(self, intended: ClaimRecord) -> Sequence[PreparedDevice]:
        """From *intended* to *prepared*, or everything undone."""
        work = _Work(intended)
        try:
            for number in range(len(intended.devices)):
                self._make(work, number)
            self.write_cdi(work.record)
            made = work.record.after(Event.MADE, now=self._out.wall())
            self._out.journal.write(made)
        except DynamigError:
            self._undo(work.record)
            raise
        log.info("prepared", claim=str(made.ref), devices=listed(made.devices))
        self._on_change(made.ref.uid)
        return self._answer(made)

    def _make(self, work: _Work, number: int) -> None:
        """One device of the claim lives; `work` follows each step, so that what failed can be undone exactly."""
        device = work.record.devices[number]
        gpu, partition = device.gpu, device.partition
        may_switch = self._catalog().of_gpu(gpu).may_switch_mode
        with self._gpu_locks.of(gpu):
            if use_mode(self._out.gpus, gpu, partitioned=partition is not None, may_switch=may_switch):
                log.info("mig_mode_switched", gpu=gpu, on=partition is not None)
            if partition is None:
                return
            self._see_empty(work.record, device)
            if not device.making:
                work.put(number, making=True)
                self._out.journal.write(work.record)
            gi = self._make_gpu_instance(work, number, gpu, partition)
            work.put(number, making=False, live=LiveIds(gi))
            work.put(number, live=make_compute(self._out.gpus, gpu, partition, gi))

    def _see_empty(self, record: ClaimRecord, device: DeviceRecord) -> None:
        """Nothing is in the way at this very moment. Callers hold the GPU's lock."""
        others = [r for r in self._out.journal.records().values() if r.ref.uid != record.ref.uid]
        own = [d.live.gi_id for d in record.devices if d.gpu == device.gpu and d.live is not None]
        live = [i for i in self._out.gpus.instances(device.gpu) if i.gi_id not in own]
        table = self._catalog().of_gpu(device.gpu).table
        blockers = in_the_way(device.gpu, table, [device.partition], live, others, self._node.boot_id)
        if blockers.foreign:
            raise _foreign(device.gpu, blockers.foreign)

    def _make_gpu_instance(self, work: _Work, number: int, gpu: GpuUuid, partition: Partition) -> GiId:
        try:
            return self._out.gpus.create_gpu_instance(gpu, partition)
        except DynamigError as error:
            if error.code != "NVML_TIMEOUT":  # NVML answered: it made nothing, so what is there is somebody else's
                work.put(number, making=False)
            raise

    def _undo(self, record: ClaimRecord) -> None:
        """Never raises: what cannot be undone now stays *retiring* and is the settler's."""
        try:
            self.endings.clear(record)
        except DynamigError as error:
            log.warning("undo_postponed", claim=str(record.ref), code=error.code, error=str(error))
        self._on_change(record.ref.uid)

    def _answer(self, record: ClaimRecord) -> Sequence[PreparedDevice]:
        return tuple(
            PreparedDevice(
                base_request(d.request), d.pool, d.device, device_id(self._node.cdi_kind, record.ref.uid, d.device)
            )
            for d in record.devices
        )

    # -- what recovery uses ----------------------------------------------------------------------------------

    def adopt(self, wanted: str) -> adoption.Adopted:
        """What lives at a claim's places is the claim's: the way out when its record was lost while its pod runs.

        `wanted`: UID or NAMESPACE/NAME of a claim that this node holds. Idempotent, and safe to die in: until the
        record is written all is as before. Raises: Refused with the codes of `adoption` where something speaks
        against it; Unavailable API_UNAVAILABLE, LENT, and what NVML or the disk say.
        """
        held = self._out.claims.held_on(self._node.name)
        ref = adoption.find_held(held, wanted, self._node.name).ref
        with self._claim_locks.of(ref.uid):
            record = self._out.journal.records().get(ref.uid)
            if record is not None and is_whole(self._out.gpus, record, self._node.boot_id):
                return adoption.Adopted(record, fresh=False)
            adoption.check_lost(ref, record)
            claim = self._fetch(ref)
            adoption.check_in_use(claim, self._node.name, self._node.driver_name)
            adoption.check_alone(claim, held, self._node.driver_name)
            adopted = self._adopt_living(
                claim, record or ClaimRecord(ref, State.ABSENT, (), self._node.boot_id, self._out.wall())
            )
            log.warning("adopted", claim=str(ref), devices=listed(adopted.record.devices), kept=adopted.kept)
            self._on_change(ref.uid)
            return adopted

    def _adopt_living(self, claim: ClaimView, before: ClaimRecord) -> adoption.Adopted:
        """Seen alive and written down under the same locks, as what is intended is seen empty."""
        allocated = claim.devices_of(self._node.driver_name)
        devices = tuple(device_record(claim, device, self._catalog()) for device in allocated)
        gpus = {d.gpu for d in devices}
        with self._gpu_locks.of_all(gpus):
            adoption.check_not_lent(claim.ref, self._fence.lent(gpus))
            live = {gpu: self._out.gpus.instances(gpu) for gpu in gpus}
            tables = {gpu: self._catalog().of_gpu(gpu).table for gpu in gpus}
            others = [r for r in self._out.journal.records().values() if r.ref.uid != claim.ref.uid]
            adoption.check_unowned(devices, live, tables, others, self._node.boot_id)
            found = adoption.living(claim, devices, live, self._node.driver_name)
            record = before.after(Event.ADOPT, now=self._out.wall(), devices=found, boot_id=self._node.boot_id)
            self._check_invariants(record)
            self.write_cdi(record)
            return adoption.Adopted(record, kept=self._out.journal.restore(record))

    def restore_cdi(self, planned: ClaimRecord) -> None:
        with self._claim_locks.of(planned.ref.uid):
            if self._out.journal.records().get(planned.ref.uid) == planned:
                self.write_cdi(planned)

    def remove_cdi(self, uid: str) -> None:
        with self._claim_locks.of(uid):
            record = self._out.journal.records().get(uid)
            if record is None or record.state is not State.PREPARED:
                self._out.cdi.remove(uid)

    def take_note(self, claim: ClaimView, devices: Sequence[DeviceRecord]) -> None:
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
        if device.live is None or device.live.ci_id is None:
            return nodes
        return (*nodes, *self._out.nodes.capability_nodes(minor, device.live.gi_id, device.live.ci_id))


def _busy(record: ClaimRecord, holders: Sequence[str], *, lent: bool) -> Unavailable:
    return Unavailable(
        "LENT" if lent else "PLACEMENT_BUSY",
        f"claim {record.ref}: {listed(record.devices)} still held by {', '.join(holders)}",
        ("`squeue` shows that job" if lent else "`dynamig ps` shows who that is") + "; prepare is tried again",
    )


def _first_making(record: ClaimRecord) -> tuple[DeviceRecord, ...]:
    """The devices, the first partition marked as the next to be made: its place is seen empty under the same locks."""
    first = next((n for n, d in enumerate(record.devices) if d.partition is not None), None)
    return tuple(replace(d, making=n == first) for n, d in enumerate(record.devices))


def _foreign(gpu: GpuUuid, found: Sequence[LiveInstance], may_be_of: ClaimRef | None = None) -> Refused:
    """`may_be_of`: a claim that would have exactly this, and may have had it before its record was lost."""
    adopt = "" if may_be_of is None else f"; if this claim's pod runs on it, `dynamig driver adopt {may_be_of.uid}`"
    return Refused(
        "FOREIGN_INSTANCE",
        f"{gpu}: {', '.join(map(str, found))} is in the way and was not made by dynamig",
        "remove it with `nvidia-smi mig -dci -dgi`, or delete this claim to be scheduled elsewhere" + adopt,
    )
