"""Numbers that look alike and are not: each has a type of its own.

NVIDIA uses "profile id" and "instance id" for several things. On an H100 the profile `1g.10gb` is constant
0 of `nvmlDeviceGetGpuInstanceProfileInfo`, but ID 19 in `nvidia-smi mig -lgip` and for
`nvmlDeviceCreateGpuInstance`; its living instances have ids 7 to 13, which say nothing about their place.
"""

from __future__ import annotations

from typing import NewType

GpuUuid = NewType("GpuUuid", str)
"""A physical GPU, `GPU-…`; the only identity of a GPU that survives a reboot."""

MigUuid = NewType("MigUuid", str)
"""A MIG device, `MIG-…`: one compute instance as CUDA sees it. It changes when the same layout is made
again.
"""

GiProfileId = NewType("GiProfileId", int)
"""The ID column of `nvidia-smi mig -lgip`; the argument of nvmlDeviceCreateGpuInstance."""

CiProfileId = NewType("CiProfileId", int)
"""The ID column of `nvidia-smi mig -lcip`; the argument of nvmlGpuInstanceCreateComputeInstance."""

NvmlProfile = NewType("NvmlProfile", int)
"""The enumeration argument of nvmlDeviceGetGpuInstanceProfileInfo, NVML_GPU_INSTANCE_PROFILE_*."""

GiId = NewType("GiId", int)
"""A living GPU instance of one GPU; used again after it was destroyed."""

CiId = NewType("CiId", int)
"""A living compute instance of one GPU instance; starts at 0 in each."""

MiB = NewType("MiB", int)
"""2^20 bytes, the unit of NVML's memorySizeMB in spite of its name."""
