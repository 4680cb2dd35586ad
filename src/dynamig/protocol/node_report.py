"""What a node's driver says of itself in the Lease `dynamig-node-<node>`: the bridge acts on it (P3, P4, P6)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from dynamig.mig import GpuUuid
from dynamig.protocol.device_map import DeviceMap, map_to_json
from dynamig.protocol.loans import Loan, loan_to_json
from dynamig.protocol.outages import Outages, outages_to_json
from dynamig.protocol.records import ClaimRecord

FRESH_SECONDS = 40
"""How long a report counts, the Lease's leaseDurationSeconds: four renewals may be lost."""

MOST_AHEAD = 30.0
"""Seconds that a node's clock may be ahead of who reads its report: one from further in the future would look new for
that much longer than it is."""


@dataclass(frozen=True, slots=True)
class OwnGpu:
    """A GPU that the node's driver has, as it publishes it: for people, when its ResourceSlices are gone with it."""

    uuid: GpuUuid
    pool: str
    product: str


@dataclass(frozen=True, slots=True)
class Report:
    """`claims`: UIDs with something on the hardware or intended to be. `sequence` grows with each report.

    `device_map`: None on a node without Slurm, and as long as there is no good map; `map_trouble`: why it may not be
    gone by although it is there. Either way nothing is held on the node. `outages`: of GPUs of the node that did not
    answer when they were last looked at, or not for long enough since; without a map also of those that NVML lists and
    nobody ever read. `slurm_node`: the name in Slurm, where it is known. `gpus`: all that the driver has, by pool.
    """

    boot_id: str
    sequence: int
    registered: bool
    claims: tuple[str, ...]
    device_map: DeviceMap | None = None
    map_trouble: str = ""
    loans: tuple[Loan, ...] = ()
    outages: Outages = field(default_factory=dict)
    slurm_node: str = ""
    gpus: tuple[OwnGpu, ...] = ()

    def to_json(self) -> str:
        body: dict[str, Any] = {
            "v": 1,
            "bootId": self.boot_id,
            "sequence": self.sequence,
            "registered": self.registered,
            "claims": list(self.claims),
        }
        if self.device_map is not None:
            body["deviceMap"] = map_to_json(self.device_map)
        if self.slurm_node:
            body["slurmNode"] = self.slurm_node
        if self.map_trouble:
            body["mapTrouble"] = self.map_trouble
        if self.loans:
            body["loans"] = [loan_to_json(loan) for loan in self.loans]
        if self.outages:
            body["outages"] = outages_to_json(self.outages)
        if self.gpus:
            body["gpus"] = [asdict(gpu) for gpu in self.gpus]
        return json.dumps(body)


def report_of(
    boot_id: str,
    sequence: int,
    registered: bool,
    records: Iterable[ClaimRecord],
    device_map: DeviceMap | None = None,
    map_trouble: str = "",
    loans: Iterable[Loan] = (),
    outages: Outages = MappingProxyType({}),
    slurm_node: str = "",
    gpus: Iterable[OwnGpu] = (),
) -> Report:
    claims = tuple(sorted(r.ref.uid for r in records if r.owns_hardware))
    lent = tuple(sorted(loans, key=lambda loan: loan.gpu))
    own = tuple(sorted(gpus, key=lambda gpu: gpu.pool))
    return Report(boot_id, sequence, registered, claims, device_map, map_trouble, lent, outages, slurm_node, own)


def gpus_from_json(body: Mapping[str, Any]) -> tuple[OwnGpu, ...]:
    """Of a whole report; none in one of an older driver. Raises KeyError or TypeError for what are no GPUs."""
    return tuple(OwnGpu(GpuUuid(str(g["uuid"])), str(g["pool"]), str(g["product"])) for g in body.get("gpus", ()))
