"""The pure model of DRA: GPUs as devices, counter sets and ResourceSlices, and slices read back.

`gpu_pool` turns facts and geometry into a `Pool`, `resource_slices` turns that into API objects,
`read.read_pools` reads anybody's objects. No I/O, clock, thread, randomness or log in here.

Two subpackages are imported by their own names, since only the bridge needs the CEL checker that they load:
`allocate` decides which devices claims get, `cel` answers their selectors.
"""

from dynamig.dra.limits import SliceLimits, limits_for
from dynamig.dra.model import AttributeValue, Device, GpuFacts, Pool, Taint
from dynamig.dra.pool import gpu_pool
from dynamig.dra.read import PublishedDevice, PublishedPool, read_pools
from dynamig.dra.slices import resource_slices, same_content
from dynamig.dra.taint_rules import rules_for, tainted
from dynamig.dra.version import Version, semver

__all__ = [
    "AttributeValue",
    "Device",
    "GpuFacts",
    "Pool",
    "PublishedDevice",
    "PublishedPool",
    "SliceLimits",
    "Taint",
    "Version",
    "gpu_pool",
    "limits_for",
    "read_pools",
    "resource_slices",
    "rules_for",
    "same_content",
    "semver",
    "tainted",
]
