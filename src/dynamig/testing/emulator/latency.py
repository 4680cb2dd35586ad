"""How long calls take on hardware, as far as it was published; emulated calls take none of that unless asked to.

Published are sums, not calls, and the share of each call in its sum is our guess:

* NVML starts in 10 ms, and a walk over a GPU with its profiles and placements takes 50 ms: time stamps of the DRA
  driver's log on an H100 PCIe (kubernetes-sigs/dra-driver-nvidia-gpu#1018);
* creating a MIG device takes about 1 s, destroying one as long (#852);
* a pod with a MIG device runs 2.3 s to 2.7 s later than one with a full GPU, MIG mode switched on for it (#856).

A call takes at least `least`, and beyond that an exponentially distributed time with mean `tail`, at most eight times
the mean: short as a rule, long now and then, as calls into a driver are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dynamig.errors import Refused


@dataclass(frozen=True, slots=True)
class Latency:
    """`call` as in a fault; seconds."""

    call: str
    least: float
    tail: float


PRESETS: Mapping[str, tuple[Latency, ...]] = {
    "hopper": (
        Latency("nvmlInit*", 0.008, 0.002),
        Latency("nvmlDeviceGetGpuInstanceProfileInfo*", 0.0004, 0.0001),
        Latency("nvmlDeviceGetGpuInstancePossiblePlacements*", 0.0008, 0.0002),
        Latency("nvmlDeviceSetMigMode", 1.2, 0.3),
        Latency("nvmlDeviceCreateGpuInstance*", 0.5, 0.1),
        Latency("nvmlGpuInstanceCreateComputeInstance*", 0.35, 0.05),
        Latency("nvmlComputeInstanceDestroy", 0.35, 0.05),
        Latency("nvmlGpuInstanceDestroy", 0.5, 0.1),
    ),
}


def preset(name: str) -> tuple[Latency, ...]:
    """Raises: Refused UNKNOWN_PRESET with those that there are."""
    if name not in PRESETS:
        raise Refused("UNKNOWN_PRESET", f"no latencies {name!r}", "there are: " + ", ".join(sorted(PRESETS)))
    return PRESETS[name]
