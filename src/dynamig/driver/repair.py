"""Looks at journal, hardware, claims and CDI files, and runs what `recovery` plans.

Order of looking matters, since claims come and go meanwhile: the journal is read before the hardware, so that a
record seen as prepared had its instance when the hardware was read; and again after it, so that an instance made or
gone in between is not taken for somebody else's. Each action checks again under the claim's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from dynamig.driver import recovery
from dynamig.driver.catalog import Catalog
from dynamig.driver.claims import ClaimService
from dynamig.driver.hardware import foreign_instances
from dynamig.driver.outside import Node, Outside
from dynamig.errors import DynamigError, Refused, Unavailable
from dynamig.mig import GpuUuid
from dynamig.protocol.claims import ClaimRef, ClaimView
from dynamig.protocol.gpus import LiveInstance
from dynamig.protocol.hold_note import NotedDevice
from dynamig.protocol.lifecycle import State
from dynamig.protocol.records import ClaimRecord, DeviceRecord

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Looked:
    """`foreign`: instances that nothing proves to be ours, by GPU; `lost`: claims that were prepared, and of which
    something is gone: it is for the next `plan` to say what to do."""

    foreign: Mapping[GpuUuid, tuple[LiveInstance, ...]]
    lost: frozenset[str]


class Repair:
    """`on_lost` is told of prepared claims whose devices had to be given up, with the reason."""

    def __init__(
        self,
        node: Node,
        outside: Outside,
        service: ClaimService,
        catalog: Callable[[], Catalog],
        on_lost: Callable[[ClaimRef, DynamigError], None],
    ) -> None:
        self._node = node
        self._out = outside
        self._service = service
        self._catalog = catalog
        self._on_lost = on_lost

    def look(self) -> Looked:
        before = self._out.journal.records()
        live = self._live()
        after = self._out.journal.records()
        boot_id = self._node.boot_id
        prepared = (r for uid, r in after.items() if r.state is State.PREPARED and before.get(uid) == r)
        return Looked(
            foreign=foreign_instances(live, [*before.values(), *after.values()], boot_id),
            lost=frozenset(r.ref.uid for r in prepared if recovery.why_lost(r, live, boot_id)),
        )

    def plan(self, held_here: Sequence[ClaimView] = ()) -> recovery.Plan:
        """What is to be done now; nothing is done. `held_here`: claims that carry our finalizer for this node."""
        readable = [uid for uid in self._out.cdi.claims() if self._out.cdi.read(uid) is not None]
        records = self._out.journal.records()
        return recovery.plan_recovery(
            records, self._live(), self._node.boot_id, readable, held_here, self._out.journal.unreadable()
        )

    def run(self, actions: Iterable[recovery.Action]) -> None:
        """Each action was tried once; what fails is logged and planned again at the next look."""
        for action in actions:
            log.info("recovering", action=recovery.describe(action))
            try:
                self._run(action)
            except DynamigError as error:
                log.warning("recovery_postponed", action=recovery.describe(action), code=error.code, error=str(error))

    def _run(self, action: recovery.Action) -> None:
        match action:
            case recovery.Retire(record, why):
                if self._service.endings.retire(record) and record.state is State.PREPARED:
                    self._on_lost(record.ref, self._loss(record, why))
            case recovery.RestoreCdi(record):
                self._service.restore_cdi(record)
            case recovery.RemoveCdi(uid):
                self._service.remove_cdi(uid)
            case recovery.TakeNote(claim, devices):
                self._service.take_note(claim, [self._noted(noted) for noted in devices])

    def _loss(self, record: ClaimRecord, why: str) -> DynamigError:
        """What its pod is told: after a boot the kubelet prepares the claim again, and for a pod that runs never."""
        if record.boot_id != self._node.boot_id:
            return Unavailable("NODE_REBOOTED", why, "the kubelet prepares the claim again")
        return Refused("INSTANCE_LOST", f"what the pod was given is gone: {why}", "it needs a new pod")

    def _noted(self, noted: NotedDevice) -> DeviceRecord:
        """With its place, if the device is still offered: then letting go looks whether the place is empty."""
        try:
            partition = self._catalog().find(noted.pool, noted.device)[1].partition
        except Refused:
            partition = None
        return DeviceRecord("", noted.pool, noted.device, noted.gpu, partition)

    def _live(self) -> dict[GpuUuid, Sequence[LiveInstance]]:
        """Instances of each GPU that answers."""
        live: dict[GpuUuid, Sequence[LiveInstance]] = {}
        for offer in self._catalog().offers.values():
            gpu = offer.reading.uuid
            try:
                live[gpu] = self._out.gpus.instances(gpu)
            except DynamigError as error:
                log.warning("gpu_unreadable", gpu=gpu, code=error.code, error=str(error))
        return live
