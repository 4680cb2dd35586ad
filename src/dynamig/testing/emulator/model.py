"""What the emulator knows of a GPU model: plain values, checked by model_rules.py when they were read."""

from __future__ import annotations

from dataclasses import dataclass

from dynamig.errors import Refused


@dataclass(frozen=True, slots=True)
class ComputeProfile:
    """A way to cut a GPU instance. `starts`: compute slices at which it may begin."""

    constant: int
    id: int
    compute_slices: int
    multiprocessors: int
    max_instances: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """A way to cut a GPU. `id` is nvidia-smi's, `constant` NVML's; `starts` are memory slices."""

    name: str
    id: int
    constant: int
    compute_slices: int
    memory_slices: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    max_instances: int
    starts: tuple[int, ...]
    compute_profiles: tuple[ComputeProfile, ...]


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU model that can be emulated. `architecture`: NVML_DEVICE_ARCH_*; `pci_device`: device << 16 | vendor.

    `limit_milliwatt`, `graphics_mhz` and `memory_mhz`, the highest clocks, are 0 where they are not known.
    """

    key: str
    product: str
    architecture: int
    compute_capability: tuple[int, int]
    pci_device: int
    memory_mib: int
    multiprocessors: int
    compute_slices: int
    memory_slices: int
    reset_to_switch: bool
    limit_milliwatt: int
    graphics_mhz: int
    memory_mhz: int
    profiles: tuple[Profile, ...]

    def profile(self, name: str) -> Profile:
        """By nvidia-smi's name or by ID. Raises Refused UNKNOWN_PROFILE with the names there are."""
        for profile in self.profiles:
            if name in (profile.name, str(profile.id)):
                return profile
        raise Refused("UNKNOWN_PROFILE", f"{self.key} has no profile {name!r}", "it has " + self._profile_names())

    def _profile_names(self) -> str:
        return ", ".join(f"{p.name} ({p.id})" for p in self.profiles)
