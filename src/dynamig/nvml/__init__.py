"""NVML and the NVIDIA kernel driver's files: the only room that knows their libraries, codes and paths."""

from dynamig.nvml.gpus import NvmlGpus
from dynamig.nvml.nodes import DeviceTree

__all__ = ["DeviceTree", "NvmlGpus"]
