"""Facts of a GPU for tests; every field can be changed by name."""

from __future__ import annotations

from dataclasses import replace

from dynamig.dra import GpuFacts
from dynamig.mig import GpuUuid, MiB
from tests.unit.mig.models import H100

H100_FACTS = GpuFacts(
    number=0,
    uuid=GpuUuid("GPU-6f1b2c3d-0000-4000-8000-00000000000a"),
    product_name="NVIDIA H100 80GB HBM3",
    brand="Nvidia",
    architecture="Hopper",
    cuda_compute_capability="9.0",
    driver_version="580.82.07",
    cuda_driver_version="13.0",
    memory=MiB(81559),
    pci_bus_id="0000:01:00.0",
    pcie_root="pci0000:00",
    numa_node=0,
    geometry=H100,
)


def facts(**changes: object) -> GpuFacts:
    return replace(H100_FACTS, **changes)  # type: ignore[arg-type]
