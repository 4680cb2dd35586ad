"""The pure model of MIG: what a GPU can be cut into, and what still fits.

Start with `Geometry` (read from NVML by an adapter), then `Table`, which answers everything about placements.
No I/O, clock, thread, randomness or log in here.
"""

from dynamig.mig.geometry import Engines, Geometry, GiProfile, Partition, Placement
from dynamig.mig.ids import CiId, GiId, GiProfileId, GpuUuid, MiB, MigUuid, NvmlProfile
from dynamig.mig.limits import Limits, capped_profiles, engine_totals, largest_sum, scarce_engines
from dynamig.mig.order import first_fit_order
from dynamig.mig.policies import fewest_lost, first_fit
from dynamig.mig.table import Table

__all__ = [
    "CiId",
    "Engines",
    "Geometry",
    "GiId",
    "GiProfile",
    "GiProfileId",
    "GpuUuid",
    "Limits",
    "MiB",
    "MigUuid",
    "NvmlProfile",
    "Partition",
    "Placement",
    "Table",
    "capped_profiles",
    "engine_totals",
    "fewest_lost",
    "first_fit",
    "first_fit_order",
    "largest_sum",
    "scarce_engines",
]
