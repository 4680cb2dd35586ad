"""The parts of a driver on an emulated node, put together as `dynamig.driver.service` does, with the API server in
memory and a stopwatch at the ports to NVML and to the disk."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import structlog

from bench.stopwatch import Stopwatch, TimedCdi, TimedGpus, TimedJournal
from dynamig.cdi import ContainerEdits, SpecFiles
from dynamig.driver.catalog import Catalog, build
from dynamig.driver.claims import ClaimService
from dynamig.driver.config import GpuPolicies
from dynamig.driver.journal import FileJournal
from dynamig.driver.numbers import NumberFile
from dynamig.driver.outside import Node, Outside
from dynamig.driver.recovery import Plan
from dynamig.driver.repair import Repair
from dynamig.errors import DynamigError
from dynamig.mig import GpuUuid
from dynamig.nvml import DeviceTree, NvmlGpus
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.gpus import GpuReading, Gpus, LiveInstance
from dynamig.testing.fakes import FakeClaims

NODE = "n1"
PROFILE = "1g.10gb"
PER_GPU = 7
"""Instances of the smallest profile that one GPU holds."""


class DriverNode:
    """A driver that has looked at its hardware once. `claims` is the API server."""

    def __init__(self, gpus: Gpus, emulator: Path, state: Path, claims: FakeClaims) -> None:
        self.nvml, self.disk = Stopwatch(), Stopwatch()
        self.claims = claims
        self.gpus = TimedGpus(gpus, self.nvml)
        tree = DeviceTree(emulator, emulator / "proc")
        node = Node(NODE, names.DRIVER_NAME, tree.boot_id(), ContainerEdits())
        journal = TimedJournal(FileJournal(state / "claims"), self.disk)
        cdi = TimedCdi(SpecFiles(state / "cdi", node.cdi_kind), self.disk)
        outside = Outside(self.gpus, tree, claims, journal, cdi, time.monotonic, time.time)
        self.journal = journal
        self._state = state
        self._numbers = NumberFile(state / "gpus.json")
        self._catalog = Catalog()
        self.service = ClaimService(node, outside, lambda: self._catalog)
        self.repair = Repair(node, outside, self.service, lambda: self._catalog, _lost)
        self._look()

    def _look(self) -> None:
        """As the driver's own look at the hardware: without foreign instances first, then with those found."""
        readings = self.gpus.readings()
        self._catalog = self._build(readings, {})
        self._catalog = self._build(readings, self.repair.look().foreign)

    def _build(self, readings: Sequence[GpuReading], foreign: Mapping[GpuUuid, tuple[LiveInstance, ...]]) -> Catalog:
        return build(NODE, readings, self._numbers.of(readings), GpuPolicies(), foreign)

    def plan(self) -> Plan:
        return self.repair.plan()

    def places(self) -> list[tuple[str, str]]:
        """(pool, device) of every placement of the smallest profile, GPU by GPU."""
        found = []
        for offer in self._catalog.offers.values():
            for device in offer.pool.devices:
                if device.partition is not None and offer.profile_name(device.partition) == PROFILE:
                    found.append((offer.pool.name, device.name))
        return found

    def allocated(self, uid: str, place: tuple[str, str]) -> ClaimRef:
        """A claim that a scheduler gave this device."""
        pool, device = place
        result = {"request": "mig", "driver": names.DRIVER_NAME, "pool": pool, "device": device}
        return self.claims.put(
            {
                "metadata": {"namespace": "bench", "name": uid, "uid": uid},
                "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"name": "pod"}]},
            }
        )

    def prepare(self, ref: ClaimRef) -> None:
        self.service.prepare(ref, deadline=time.monotonic())

    def unprepare(self, ref: ClaimRef) -> None:
        self.service.endings.unprepare(ref.uid)

    def sizes(self, ref: ClaimRef) -> dict[str, int]:
        """Bytes of what is on disk for a prepared claim, by the names of the stopwatch."""
        folders = {"journal": "claims", "cdi": "cdi"}
        return {name: next((self._state / at).glob(f"*{ref.uid}.json")).stat().st_size for name, at in folders.items()}

    def forget(self, ref: ClaimRef) -> None:
        """The claim's end after it was unprepared: deleted in the API, let go of and out of the journal."""
        self.claims.deallocate(ref, delete=True)
        if not self.service.endings.settle(ref.uid):
            raise AssertionError(f"claim {ref} is not let go of")

    def fill(self, count: int) -> None:
        """`count` claims are prepared."""
        for number, place in zip(range(count), self.places(), strict=False):
            self.prepare(self.allocated(f"resident-{number:02}", place))
        if len(self.journal.records()) != count:
            raise ValueError(f"{count} claims do not fit on this node")


@contextmanager
def driver_on(emulator: Path, state: Path) -> Iterator[DriverNode]:
    """A driver over NVML, which this process must find as the emulator (`emulated.environment`)."""
    with NvmlGpus(emulator / "sys") as gpus:
        yield DriverNode(gpus, emulator, state, FakeClaims())


def log_to(path: Path) -> None:
    """What the driver logs goes to a file, in its own form, so that logging costs what it costs there."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(path.open("w")),
    )


def _lost(ref: ClaimRef, error: DynamigError) -> None:
    raise AssertionError(f"recovery gave up claim {ref}: {error}")
