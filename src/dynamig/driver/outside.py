"""What the parts of a driver have in common: what stays the same, the ports, the locks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dynamig.cdi import ContainerEdits
from dynamig.driver.locks import Changes, KeyedLocks
from dynamig.protocol import names
from dynamig.protocol.gpus import DeviceNodes, Gpus
from dynamig.protocol.ports import CdiFiles, Claims, Journal


@dataclass(frozen=True, slots=True)
class Node:
    """What stays the same while the driver runs. `with_slurm`: the bridge holds the claims of this node and releases
    them (PROTOCOL P3); without it the driver does both."""

    name: str
    driver_name: str
    boot_id: str
    edits: ContainerEdits
    with_slurm: bool = False

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


@dataclass(frozen=True, slots=True)
class Guards:
    """What prepares, endings and loans share: one lock a claim, one a GPU (`locks` has the order), and the news that
    something has gone from a GPU."""

    claims: KeyedLocks = field(default_factory=KeyedLocks)
    gpus: KeyedLocks = field(default_factory=KeyedLocks)
    changes: Changes = field(default_factory=Changes)
