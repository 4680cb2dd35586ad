"""What a node's driver says of itself in the Lease `dynamig-node-<node>`: the bridge acts on it (P3, P4)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from dynamig.protocol.records import ClaimRecord


@dataclass(frozen=True, slots=True)
class Report:
    """`claims`: UIDs with something on the hardware or intended to be. `sequence` grows with each report."""

    boot_id: str
    sequence: int
    registered: bool
    claims: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps(
            {
                "v": 1,
                "bootId": self.boot_id,
                "sequence": self.sequence,
                "registered": self.registered,
                "claims": list(self.claims),
            }
        )


def report_of(boot_id: str, sequence: int, registered: bool, records: Iterable[ClaimRecord]) -> Report:
    return Report(boot_id, sequence, registered, tuple(sorted(r.ref.uid for r in records if r.owns_hardware)))
