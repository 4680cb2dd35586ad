"""What one ResourceSlice may hold, by Kubernetes version.

The API server refuses a whole object that breaks one of these. Source: constants and comments of
k8s.io/api/resource/v1/types.go, read at v0.34.3, v0.35.0 and v0.37.2, and `validateResourceSliceSpec` of
k8s.io/kubernetes v1.37.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynamig.errors import Refused

COUNTERS_PER_SET = 32
"""ResourceSliceMaxCountersPerCounterSet. On 1.34: of all sets of a slice together, the same for our one
set.
"""

DEVICES = 128
"""ResourceSliceMaxDevices; from 1.35 only for slices without counters and taints, and ours have both."""

DEVICES_WITH_COUNTERS_OR_TAINTS = 64
"""ResourceSliceMaxDevicesWithAdvancedFeatures, from 1.35: if any device of the slice uses either."""

SETS_PER_DEVICE = 2
"""ResourceSliceMaxDeviceCounterConsumptionsPerDevice: counter sets that one device may consume from."""

ATTRIBUTES_AND_CAPACITIES = 32
"""ResourceSliceMaxAttributesAndCapacitiesPerDevice."""

NAME_LENGTH = 253
"""Names of objects, nodes and pools (DNS1123SubdomainMaxLength; PoolNameMaxLength)."""

OLDEST = (1, 34)
"""The first version with resource.k8s.io/v1."""


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """Limits of one Kubernetes version. `separate`: counters and devices may not share a slice."""

    separate: bool
    devices: int
    consumed_counters: int
    taints: int
    effects: frozenset[str]


def limits_for(kubernetes: tuple[int, int]) -> SliceLimits:
    """Raises: Refused UNSUPPORTED_KUBERNETES before 1.34."""
    if kubernetes < OLDEST:
        asked, oldest = (".".join(map(str, version)) for version in (kubernetes, OLDEST))
        what = f"Kubernetes {asked} has no resource.k8s.io/v1"
        raise Refused("UNSUPPORTED_KUBERNETES", what, f"use {oldest} or later")
    if kubernetes < (1, 35):
        # ResourceSliceMaxDeviceCountersPerSlice; DeviceTaintsMaxLength; the effect None came with 1.35.
        return SliceLimits(False, DEVICES, 1024, 4, frozenset({"NoSchedule", "NoExecute"}))
    advanced = DEVICES_WITH_COUNTERS_OR_TAINTS
    return SliceLimits(True, advanced, advanced * COUNTERS_PER_SET, 16, frozenset({"NoSchedule", "NoExecute", "None"}))
