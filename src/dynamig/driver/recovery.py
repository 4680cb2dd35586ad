"""What a node must do to bring journal, hardware, claims and CDI files together again. Pure; a plan is data.

Run at start and on a timer, printed by `dynamig driver plan`. A second pass after the actions has nothing to do
(I10). Nothing here destroys what no record proves to be ours: such instances are reported as quarantined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from dynamig.driver.hardware import foreign_instances
from dynamig.errors import InvariantBroken
from dynamig.mig import GpuUuid
from dynamig.protocol.claims import ClaimView
from dynamig.protocol.gpus import LiveInstance
from dynamig.protocol.hold_note import NotedDevice, noted_devices
from dynamig.protocol.invariants import i3_prepared_is_live
from dynamig.protocol.lifecycle import State
from dynamig.protocol.records import ClaimRecord


@dataclass(frozen=True, slots=True)
class Retire:
    """Destroy what this claim has on the hardware: it was never finished, or is not what was prepared."""

    record: ClaimRecord
    why: str


@dataclass(frozen=True, slots=True)
class RestoreCdi:
    """Write the CDI file of a prepared claim again."""

    record: ClaimRecord


@dataclass(frozen=True, slots=True)
class RemoveCdi:
    """Remove the CDI file of a claim that has nothing prepared here."""

    uid: str


@dataclass(frozen=True, slots=True)
class TakeNote:
    """Take note of a claim that carries our finalizer for this node and that the journal does not know."""

    claim: ClaimView
    devices: tuple[NotedDevice, ...]


Action = Retire | RestoreCdi | RemoveCdi | TakeNote


def describe(action: Action) -> str:
    """One line for people, as `dynamig driver plan` prints it."""
    match action:
        case Retire(record, why):
            return f"destroy what claim {record.ref} has here: {why}"
        case RestoreCdi(record):
            return f"write the CDI file of claim {record.ref} again"
        case RemoveCdi(uid):
            return f"remove the CDI file of claim {uid}: nothing of it is prepared"
        case TakeNote(claim):
            return f"take note of claim {claim.ref}: it carries our finalizer and is not in the journal"


@dataclass(frozen=True, slots=True)
class Plan:
    """`unreadable`: claim UID to path, of damaged records."""

    actions: tuple[Action, ...]
    quarantined: Mapping[GpuUuid, tuple[LiveInstance, ...]]
    unreadable: Mapping[str, str]


def plan_recovery(
    records: Mapping[str, ClaimRecord],
    live: Mapping[GpuUuid, Sequence[LiveInstance]],
    boot_id: str,
    cdi_claims: Collection[str],
    held_here: Iterable[ClaimView] = (),
    unreadable: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """`live`: instances by GPU, for every GPU that could be read; a GPU that is missing in it proves nothing.
    `cdi_claims`: UIDs with a readable CDI file. `held_here`: claims that carry our finalizer for this node.
    `unreadable`: UID to path where the record is damaged; of those nothing is known, so nothing is done."""
    actions: list[Action] = []
    for record in records.values():
        if (action := _for_record(record, live, boot_id, cdi_claims)) is not None:
            actions.append(action)
    prepared = {uid for uid, r in records.items() if r.state is State.PREPARED}
    actions += [RemoveCdi(uid) for uid in sorted(set(cdi_claims) - prepared - set(unreadable))]
    known = records.keys() | set(unreadable)
    actions += [TakeNote(c, noted_devices(c)) for c in held_here if c.ref.uid not in known]
    return Plan(tuple(actions), foreign_instances(live, records.values(), boot_id), dict(unreadable))


def _for_record(
    record: ClaimRecord,
    live: Mapping[GpuUuid, Sequence[LiveInstance]],
    boot_id: str,
    cdi_claims: Collection[str],
) -> Action | None:
    match record.state:
        case State.INTENDED:
            return Retire(record, "preparation was interrupted")
        case State.RETIRING:
            return Retire(record, "its destruction was not finished")
        case State.PREPARED:
            return _for_prepared(record, live, boot_id, cdi_claims)
        case State.HELD | State.ABSENT:  # nothing on the hardware; the settler lets go of it
            return None


def _for_prepared(
    record: ClaimRecord,
    live: Mapping[GpuUuid, Sequence[LiveInstance]],
    boot_id: str,
    cdi_claims: Collection[str],
) -> Action | None:
    if why := why_lost(record, live, boot_id):
        return Retire(record, why)
    return None if record.ref.uid in cdi_claims else RestoreCdi(record)


def why_lost(record: ClaimRecord, live: Mapping[GpuUuid, Sequence[LiveInstance]], boot_id: str) -> str:
    """Why what a prepared claim was given is not there any more; empty if it is, and as long as not all of its GPUs
    can be asked."""
    if record.boot_id != boot_id:
        return "the node was rebooted"
    if all(d.gpu in live for d in record.devices):
        try:
            i3_prepared_is_live(record, live)
        except InvariantBroken as broken:
            return broken.what
    return ""
