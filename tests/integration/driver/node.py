"""A driver's claim service over NVML on an emulated node, real files, and claims in memory. Run in its own process."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from dynamig.cdi import ContainerEdits, SpecFiles
from dynamig.driver.catalog import Catalog, build
from dynamig.driver.claims import ClaimService
from dynamig.driver.config import GpuPolicies
from dynamig.driver.journal import FileJournal
from dynamig.driver.outside import Node, Outside
from dynamig.nvml import DeviceTree, NvmlGpus
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef
from dynamig.testing.emulator import Emulator
from dynamig.testing.fakes import FakeClaims
from tests.unit.driver.bench_node import claim_object

NODE = "n1"


class EmulatedNode:
    """`DYNAMIG_EMULATOR_DIR` names the node; journal and CDI files lie beside it, in `work`."""

    def __init__(self, work: Path) -> None:
        self.directory = Path(os.environ["DYNAMIG_EMULATOR_DIR"])
        self.emulator = Emulator(self.directory)
        self.gpus = NvmlGpus(self.directory / "sys")
        self.tree = DeviceTree(self.directory, self.directory / "proc")
        self.claims = FakeClaims()
        self.journal = FileJournal(work / "claims")
        self.cdi = SpecFiles(work / "cdi", names.cdi_kind(names.DRIVER_NAME))
        outside = Outside(self.gpus, self.tree, self.claims, self.journal, self.cdi, time.monotonic, time.time)
        node = Node(NODE, names.DRIVER_NAME, self.tree.boot_id(), ContainerEdits())
        readings = self.gpus.readings()
        self.catalog: Catalog = build(NODE, readings, {r.uuid: r.index for r in readings}, GpuPolicies())
        self.service = ClaimService(node, outside, lambda: self.catalog)

    def device(self, profile: str, start: int, gpu: int = 0) -> tuple[str, str]:
        offer = self.catalog.offers[f"{NODE}/gpu-{gpu}"]
        for device in offer.pool.devices:
            at = device.partition
            if at is not None and at.placement.start == start and offer.profile_name(at) == profile:
                return offer.pool.name, device.name
        raise AssertionError(f"no {profile} at {start}")

    def prepare(self, uid: str, *devices: tuple[str, str]) -> ClaimRef:
        ref = self.claims.put(claim_object(uid, *devices))
        self.service.prepare(ref, deadline=time.monotonic() + 20)
        return ref

    def nodes_of(self, uid: str) -> list[str]:
        spec: Any = self.cdi.read(uid)
        return [n["path"] for d in spec["devices"] for n in d["containerEdits"]["deviceNodes"]]


def main() -> None:
    """`python -m tests.integration.driver.node SCENARIO WORK`."""
    from tests.integration.driver import scenarios

    getattr(scenarios, sys.argv[1])(EmulatedNode(Path(sys.argv[2])))
    print("held")


if __name__ == "__main__":
    main()
