"""Whether what lives at a claim's places may become the claim's: the checks of `dynamig driver adopt` (P13). Pure.

Nothing on the hardware says whose an instance is, and the record that said so is lost. So three must agree: the API
server (the claim is in use, and allocated exactly this place here), the hardware (a MIG device like those that we make
is there), and the person who asks. And nobody may say otherwise: no record, no UUID that was reported, no other claim.
docs/decisions/0022-a-lost-record-is-adopted-by-hand.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dynamig.driver.hardware import in_the_way
from dynamig.errors import Refused, Unavailable
from dynamig.mig import GpuUuid, Partition, Table
from dynamig.protocol.claims import ClaimRef, ClaimView
from dynamig.protocol.device_status import outcomes
from dynamig.protocol.gpus import LiveInstance
from dynamig.protocol.hold_note import noted_devices
from dynamig.protocol.lifecycle import State
from dynamig.protocol.records import ClaimRecord, DeviceRecord, LiveIds

REMOVE = "once no process uses it, `nvidia-smi mig -dci -dgi` removes it; see docs/reference/by-hand.md"


@dataclass(frozen=True, slots=True)
class Adopted:
    """`fresh`: the claim had no record of it before. `kept`: where the damaged record that it had is now."""

    record: ClaimRecord
    fresh: bool = True
    kept: str | None = None


def find_held(held: Iterable[ClaimView], wanted: str, node: str) -> ClaimView:
    """The claim with UID or NAMESPACE/NAME `wanted` among those that `node` holds. Raises Refused UNKNOWN_CLAIM."""
    for claim in held:
        if wanted in (claim.ref.uid, f"{claim.ref.namespace}/{claim.ref.name}"):
            return claim
    raise Refused(
        "UNKNOWN_CLAIM",
        f"no claim {wanted} carries our finalizer for node {node}",
        "give a UID or NAMESPACE/NAME: `kubectl get resourceclaims -A` shows them",
    )


def check_lost(ref: ClaimRef, record: ClaimRecord | None) -> None:
    """Nothing if the journal has nothing to say about what the claim has. Raises Refused NOTHING_LOST, NOT_ITS_OWN."""
    if record is None:
        return
    if record.owns_hardware:
        raise Refused(
            "NOTHING_LOST",
            f"the record of claim {ref} is there: {record.state.value}",
            "`dynamig driver plan` says what becomes of it",
        )
    if record.seen_gone:
        raise Refused("NOT_ITS_OWN", f"what claim {ref} had was seen gone: what is there now is not its own", REMOVE)


def check_in_use(claim: ClaimView, node: str, driver: str) -> None:
    """Nothing if a pod uses what `node` holds for the claim: its end is what destroys the devices again.

    Raises: Refused NOT_HELD, NOT_IN_USE, NOT_ALLOCATED.
    """
    if not claim.held or claim.held_by_node != node:
        raise Refused("NOT_HELD", f"node {node} no longer holds claim {claim.ref}", "there is nothing to adopt for it")
    if not claim.reserved_for:
        raise Refused("NOT_IN_USE", f"no pod uses claim {claim.ref}: nothing would destroy what it adopts", REMOVE)
    if not claim.devices_of(driver):
        raise Refused("NOT_ALLOCATED", f"claim {claim.ref} has no device of driver {driver}", "nothing can be its own")


def check_alone(claim: ClaimView, held: Iterable[ClaimView], driver: str) -> None:
    """Nothing if no other claim of `held` has or had one of the devices. Raises Refused NOT_ITS_OWN."""
    mine = _places(claim, driver)
    for other in held:
        if other.ref.uid != claim.ref.uid and (both := mine & _places(other, driver)):
            pool, device = min(both)
            raise Refused("NOT_ITS_OWN", f"{pool}/{device} is held for claim {other.ref} too", REMOVE)


def _places(claim: ClaimView, driver: str) -> set[tuple[str, str]]:
    """What the claim is allocated; where it no longer is, what its note says that it had."""
    return {(d.pool, d.device) for d in claim.devices_of(driver) or noted_devices(claim)}


def check_not_lent(ref: ClaimRef, borrowers: Sequence[str]) -> None:
    """Nothing if nobody has borrowed the claim's GPUs. Raises Unavailable LENT."""
    if borrowers:
        named = ", ".join(borrowers)
        raise Unavailable("LENT", f"GPUs of claim {ref} are lent to {named}", "ask again when `squeue` lacks that job")


def check_unowned(
    devices: Sequence[DeviceRecord],
    live: Mapping[GpuUuid, Sequence[LiveInstance]],
    tables: Mapping[GpuUuid, Table | None],
    others: Iterable[ClaimRecord],
    boot_id: str,
) -> None:
    """Nothing if no record of another claim has anything there. Raises Refused NOT_ITS_OWN."""
    known = tuple(others)
    for gpu in sorted({d.gpu for d in devices}):
        wanted = [d.partition for d in devices if d.gpu == gpu]
        if owners := in_the_way(gpu, tables[gpu], wanted, live[gpu], known, boot_id).claims:
            named = ", ".join(f"{r.ref} ({r.state.value})" for r in owners)
            raise Refused("NOT_ITS_OWN", f"{gpu}: by its record that is of claim {named}", "see `dynamig driver plan`")


def living(
    claim: ClaimView, devices: Sequence[DeviceRecord], live: Mapping[GpuUuid, Sequence[LiveInstance]], driver: str
) -> tuple[DeviceRecord, ...]:
    """`devices` of the claim with the ids that they have on the hardware now.

    Raises: Refused NOTHING_THERE; NOT_ITS_OWN for what is not as we make it, or was reported with another UUID;
    FOREIGN_INSTANCE for a whole GPU that has instances.
    """
    reported = {(o.pool, o.device): o.data["uuid"] for o in outcomes(claim, driver) if "uuid" in o.data}
    found = tuple(_living(claim.ref, device, live[device.gpu]) for device in devices)
    for device in found:
        uuid = device.gpu if device.live is None else device.live.mig_uuid
        if (said := reported.get((device.pool, device.device), uuid)) != uuid:
            raise Refused(
                "NOT_ITS_OWN", f"claim {claim.ref} had {said} as {device.device}; there is {uuid} now", REMOVE
            )
    return found


def _living(ref: ClaimRef, device: DeviceRecord, live: Sequence[LiveInstance]) -> DeviceRecord:
    if device.partition is None:
        if live:
            raise Refused("FOREIGN_INSTANCE", f"{device.gpu} is claim {ref}'s as a whole and has {_list(live)}", REMOVE)
        return device
    return replace(device, live=_ids(ref, device, device.partition, live))


def _ids(ref: ClaimRef, device: DeviceRecord, partition: Partition, live: Sequence[LiveInstance]) -> LiveIds:
    instance = next((i for i in live if i.partition == partition), None)
    if instance is None:
        raise Refused(
            "NOTHING_THERE",
            f"{device.gpu} has no {partition}, which claim {ref} is allocated, but {_list(live) or 'nothing'}",
            "there is nothing to adopt: delete the pod and make it again",
        )
    match instance.compute:
        case (compute,) if compute.uuid is not None and compute.fills:
            return LiveIds(instance.gi_id, compute.ci_id, compute.uuid)
        case (compute,) if compute.uuid is not None:
            has = "one compute instance that leaves room in it"
        case several:
            has = f"{len(several)} compute instances, and not just one with a MIG device"
    raise Refused("NOT_ITS_OWN", f"{instance} on {device.gpu} was not made by us: it has {has}", REMOVE)


def _list(live: Iterable[LiveInstance]) -> str:
    return ", ".join(map(str, live))


def may_adopt(gpu: GpuUuid, instance: LiveInstance, records: Iterable[ClaimRecord]) -> tuple[ClaimRef, ...]:
    """Claims that are held here for exactly the place of `instance`, and of which the journal knows no more."""
    return tuple(
        r.ref
        for r in records
        if r.state is State.HELD
        and not r.seen_gone
        and any((d.gpu, d.partition) == (gpu, instance.partition) for d in r.devices)
    )
