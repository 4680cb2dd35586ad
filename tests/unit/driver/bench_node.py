"""A driver on fakes, and the situations its tests speak of."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynamig.cdi import ContainerEdits
from dynamig.driver.catalog import Catalog, build
from dynamig.driver.claims import ClaimService, PreparedDevice
from dynamig.driver.config import GpuPolicies
from dynamig.driver.journal import FileJournal
from dynamig.driver.outside import Node, Outside
from dynamig.mig import GpuUuid, MiB
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.gpus import GpuReading, LiveInstance, MigMode
from dynamig.protocol.records import held_devices
from dynamig.testing.fakes import FakeClaims, FakeGpus, FakeNodes, MemoryCdi, MemoryJournal
from tests.unit.mig.models import H100

NODE = "n1"


def h100(number: int = 0, *, mode: MigMode = MigMode.ON, **changes: Any) -> GpuReading:
    fields: dict[str, Any] = {
        "uuid": GpuUuid(f"GPU-{number:08d}-0000-0000-0000-000000000000"),
        "index": number,
        "minor": number,
        "product_name": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cuda_compute_capability": "9.0",
        "driver_version": "580.95.05",
        "cuda_driver_version": "13.0",
        "memory": MiB(81559),
        "pci_bus_id": f"0000:{number + 1:02x}:00.0",
        "pcie_root": None,
        "numa_node": None,
        "mig_mode": mode,
        "mig_mode_pending": mode,
        "mode_switch_needs_reset": False,
        "geometry": H100,
    }
    return GpuReading(**{**fields, **changes})


def claim_object(uid: str, *devices: tuple[str, str], name: str | None = None, **spec: Any) -> dict[str, Any]:
    """A claim allocated (pool, device) pairs, one request each: r0, r1, ..."""
    results = [
        {"request": f"r{i}", "driver": names.DRIVER_NAME, "pool": pool, "device": device}
        for i, (pool, device) in enumerate(devices)
    ]
    return {
        "metadata": {"namespace": "ns", "name": name or f"claim-{uid}", "uid": uid},
        "status": {"allocation": {"devices": {"results": results, **spec}}, "reservedFor": [{"name": "pod"}]},
    }


@dataclass
class FakeClock:
    """Goes on only when told, or a step at each look when `step` is set."""

    now: float = 1000.0
    step: float = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@dataclass
class BenchNode:
    """One node: `service` on fakes, with GPUs `gpu-0`... in pools `n1/gpu-<n>`."""

    gpus: FakeGpus
    nodes: FakeNodes = field(default_factory=FakeNodes)
    claims: FakeClaims = field(default_factory=FakeClaims)
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    cdi: MemoryCdi = field(default_factory=MemoryCdi)
    clock: FakeClock = field(default_factory=FakeClock)
    policies: GpuPolicies = field(default_factory=GpuPolicies)
    changed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.service = self.restart()

    @staticmethod
    def with_gpus(count: int = 1, **changes: Any) -> BenchNode:
        return BenchNode(FakeGpus([h100(n, **changes) for n in range(count)]))

    @staticmethod
    def with_damaged_record(journal: Path, profile: str) -> tuple[BenchNode, ClaimRef, Path]:
        """Claim `a` was prepared, then its record in the folder `journal` lost its last bytes, and the driver started
        anew. The claim, and the file."""
        node = BenchNode.with_gpus()
        node.journal = FileJournal(journal)  # type: ignore[assignment]
        node.restart()
        ref = node.allocated("a", node.device(profile, 0))
        node.prepare(ref)
        path = journal / "a.json"
        path.write_bytes(path.read_bytes()[:-7])
        node.journal = FileJournal(journal)  # type: ignore[assignment]
        node.restart()
        return node, ref, path

    def outside(self) -> Outside:
        return Outside(self.gpus, self.nodes, self.claims, self.journal, self.cdi, self.clock, self.clock)

    def restart(self) -> ClaimService:
        """A new process over the same journal, hardware and API server."""
        node = Node(NODE, names.DRIVER_NAME, self.nodes.boot_id(), ContainerEdits())
        self.service = ClaimService(node, self.outside(), self.catalog, self.changed.append)
        return self.service

    def catalog(self) -> Catalog:
        """What the driver builds at each look at the hardware."""
        readings = self.gpus.readings()
        held = held_devices(self.journal.records().values())
        return build(NODE, readings, {r.uuid: r.minor for r in readings}, self.policies, held=held)

    def device(self, profile: str, start: int, gpu: int = 0) -> tuple[str, str]:
        """(pool, device name) of a partition, by the facts of the catalog."""
        offer = self.catalog().offers[f"{NODE}/gpu-{gpu}"]
        for device in offer.pool.devices:
            at = device.partition
            if at is not None and at.placement.start == start and offer.profile_name(at) == profile:
                return offer.pool.name, device.name
        raise AssertionError(f"no {profile} at {start}")

    def whole(self, gpu: int = 0) -> tuple[str, str]:
        return f"{NODE}/gpu-{gpu}", f"gpu-{gpu}"

    def allocated(self, uid: str, *devices: tuple[str, str], **more: Any) -> ClaimRef:
        return self.claims.put(claim_object(uid, *devices, **more))

    def prepare(self, ref: ClaimRef, *, patience: float = 0.0) -> tuple[PreparedDevice, ...]:
        return tuple(self.service.prepare(ref, deadline=self.clock.now + patience))

    def live(self, gpu: int = 0) -> list[LiveInstance]:
        return sorted(self.gpus.instances(self.gpus.readings()[gpu].uuid))

    def is_clean(self) -> bool:
        """Nothing on hardware, in the journal or among the CDI files."""
        gpus_empty = not any(self.live(n) for n in range(len(self.gpus.readings())))
        return gpus_empty and not self.journal.records() and not self.cdi.claims()


uids = (f"uid-{n}" for n in itertools.count())


def in_thread(call: Any, *args: Any, **kwargs: Any) -> threading.Thread:
    thread = threading.Thread(target=call, args=args, kwargs=kwargs, daemon=True)
    thread.start()
    return thread
