"""Names of devices, counters and attributes, kept as NVIDIA's DRA driver spells them.

A manifest written for that driver runs unchanged. Device names are for people and for stable ordering of
logs: nothing in dynamig reads a fact out of one.
"""

from __future__ import annotations

import re

from dynamig.errors import Refused
from dynamig.mig import GiProfile, GiProfileId, Partition

LABEL_LENGTH = 63
"""A device name and a counter name are DNS labels (k8s.io/kubernetes v1.37.2 resource/validation)."""

CAPACITIES = {
    "multiprocessors": "multiprocessors",
    "copyEngines": "copy_engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpegEngines": "jpeg_engines",
    "ofaEngines": "ofa_engines",
}
"""Capacity -> field of `mig.Engines`. With `memory` these are all capacities of a device."""

STANDARD = "resource.kubernetes.io/"
"""Domain of the attributes that Kubernetes names: k8s.io/dynamic-resource-allocation deviceattribute."""

PCI_BUS_ID = STANDARD + "pciBusID"
PCIE_ROOT = STANDARD + "pcieRoot"
NUMA_NODE = STANDARD + "numaNode"

MEMORY_COUNTER = "memory"


def gpu_name(number: int) -> str:
    """`gpu-0`: the full GPU."""
    return f"gpu-{number}"


def partition_name(number: int, profile: GiProfile, partition: Partition) -> str:
    """`gpu-0-mig-1g10gb-me-20-4`: profile name, profile ID and first memory slice.

    Unique by the last two numbers, whatever becomes of the profile's name: other characters than letters and
    digits turn into hyphens, and what does not fit into a DNS label is cut.
    """
    head, tail = f"{gpu_name(number)}-mig-", f"-{partition.profile}-{partition.placement.start}"
    text = re.sub(r"[^a-z0-9]+", "-", profile.name.lower().replace(".", ""))
    text = text.strip("-")[: LABEL_LENGTH - len(head) - len(tail)].strip("-") or "profile"
    name = head + text + tail
    if len(name) > LABEL_LENGTH:
        raise Refused("NAME_TOO_LONG", f"device name {name!r} is longer than {LABEL_LENGTH} characters")
    return name


def counter_set_name(number: int) -> str:
    return f"{gpu_name(number)}-counter-set"


def counter_name(capacity: str) -> str:
    """`copyEngines` -> `copy-engines`: counters are DNS labels, capacities are identifiers."""
    return re.sub(r"([A-Z])", lambda m: "-" + m.group().lower(), capacity)


def instances_counter(profile: GiProfileId) -> str:
    """Counter of a profile whose instance count nothing else explains; no GPU on record has one."""
    return f"profile-{profile}-instances"


_MEMORY_SLICE = re.compile(r"memory-slice-(\d+)")


def memory_slice_counter(index: int) -> str:
    return f"memory-slice-{index}"


def memory_slice_of(counter: str) -> int | None:
    """The memory slice that a counter stands for; None for other counters.

    These counter names are the published form of placements, NVIDIA's driver uses the same.
    """
    found = _MEMORY_SLICE.fullmatch(counter)
    return int(found.group(1)) if found else None
