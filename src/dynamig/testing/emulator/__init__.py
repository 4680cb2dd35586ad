"""The NVML emulator's control side: make a node, look at it, order faults, read the call log.

The library itself is C, in emulator/; both work on the files of one directory.
"""

from dynamig.testing.emulator.calllog import TracedCall
from dynamig.testing.emulator.emulator import Emulator
from dynamig.testing.emulator.faults import NvmlReturn, SeenFault, parse_duration
from dynamig.testing.emulator.geometry import Catalog, load_geometry, model_key
from dynamig.testing.emulator.library import find_library
from dynamig.testing.emulator.model import GpuModel, Profile
from dynamig.testing.emulator.seen import SeenComputeInstance, SeenGpu, SeenGpuInstance, SeenNode

__all__ = [
    "Catalog",
    "Emulator",
    "GpuModel",
    "NvmlReturn",
    "Profile",
    "SeenComputeInstance",
    "SeenFault",
    "SeenGpu",
    "SeenGpuInstance",
    "SeenNode",
    "TracedCall",
    "find_library",
    "load_geometry",
    "model_key",
    "parse_duration",
]
