"""The pure model of MIG: what a GPU can be cut into, and what still fits.

Start with `Geometry` (read from NVML by an adapter), then `Table`, which answers everything about placements.
No I/O, clock, thread, randomness or log in here.
"""

from dynamig.mig.compute import CiPartition, CiProfile, Cuts, cuts
from dynamig.mig.geometry import Engines, Geometry, GiProfile, Partition, Placement
from dynamig.mig.ids import CiId, CiProfileId, GiId, GiProfileId, GpuUuid, MiB, MigUuid, NvmlProfile
from dynamig.mig.limits import Limits, capped_profiles, engine_totals, largest_sum, scarce_engines
from dynamig.mig.numbering import possible_ids
from dynamig.mig.order import first_fit_order
from dynamig.mig.policies import drivers_choice, fewest_lost, first_fit
from dynamig.mig.table import Table

__all__ = [
    "CiId",
    "CiPartition",
    "CiProfile",
    "CiProfileId",
    "Cuts",
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
    "cuts",
    "drivers_choice",
    "engine_totals",
    "fewest_lost",
    "first_fit",
    "first_fit_order",
    "largest_sum",
    "possible_ids",
    "scarce_engines",
]
