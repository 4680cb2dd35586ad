"""What cannot be a GPU, although each field of it is well formed. Refused, the library need not doubt its data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

from dynamig.testing.emulator.layout import IDLE_MILLIWATT, MAX_CI_PROFILES, MAX_GI_PROFILES, MAX_SLICES
from dynamig.testing.emulator.model import GpuModel, Profile

T = TypeVar("T", bound=Hashable)

_LONGEST_KEY = 63  # `struct model` in emulator/src/layout.h
NVIDIA = 0x10DE  # PCI vendor
_LONGEST_NAME = 95  # NVML_DEVICE_NAME_V2_BUFFER_SIZE, less the zero at its end


def wrong(model: GpuModel) -> Iterator[str]:
    """What contradicts itself, or is more than the library has room for; a sentence each."""
    yield from _duplicates(model)
    yield from _unusable_names(model)
    yield from _too_long(model)
    for profile in model.profiles:
        yield from _wrong_starts(profile, model)
        yield from _more_than_there_is(profile, model)
        yield from _wrong_cuts(profile)
    if not 1 <= model.memory_slices <= MAX_SLICES or not 1 <= model.compute_slices <= MAX_SLICES:
        yield f"slices must be 1..{MAX_SLICES}"
    if model.pci_device & 0xFFFF != NVIDIA:
        yield f"pci_devices: {model.pci_device:#x} is none of NVIDIA's, which end in {NVIDIA:x}"
    if 0 < model.limit_milliwatt < IDLE_MILLIWATT:
        yield f"power_limit_watts: an idle GPU already takes {IDLE_MILLIWATT // 1000}"
    if len(model.profiles) > MAX_GI_PROFILES or any(len(p.compute_profiles) > MAX_CI_PROFILES for p in model.profiles):
        yield f"more than {MAX_GI_PROFILES} profiles, or {MAX_CI_PROFILES} ways to cut one"


def _duplicates(model: GpuModel) -> Iterator[str]:
    for what, values in (
        ("profile id", [str(p.id) for p in model.profiles]),
        ("NVML constant", [str(p.constant) for p in model.profiles]),
        ("profile name", [p.name for p in model.profiles]),
    ):
        yield from (f"{what} {v} appears twice" for v in _repeated(values))


def _repeated(values: Iterable[T]) -> list[T]:
    return [value for value, count in Counter(values).items() if count > 1]


def _unusable_names(model: GpuModel) -> Iterator[str]:
    """Clients print names in lines of text. Other odd characters stay, and empty names: a client has to live with what
    NVML says."""
    for name in (model.product, *(p.name for p in model.profiles)):
        if not name.isprintable():
            yield f"the name {name!r} has a character that cannot be printed"
    yield from (f"the name {p.name} would be taken for an id" for p in model.profiles if p.name.isdecimal())


def _more_than_there_is(profile: Profile, model: GpuModel) -> Iterator[str]:
    """What one instance takes, and as many as the profile lets live side by side, against what the GPU has."""
    if profile.max_instances == 0:
        yield f"{profile.name}: max_instances 0 is a profile that nobody can use: leave it out"
    most = max(1, min(profile.max_instances, side_by_side((start, profile.memory_slices) for start in profile.starts)))
    for what, one, there in (
        ("compute slices", profile.compute_slices, model.compute_slices),
        ("multiprocessors", profile.multiprocessors, model.multiprocessors),
        ("MiB", profile.memory_mib, model.memory_mib),
    ):
        if most * one > there:
            yield f"{profile.name}: {most} x {one} {what}, of the GPU's {there}"


def side_by_side(placements: Iterable[tuple[int, int]]) -> int:
    """How many of these (start, size) fit beside one another: the one that ends first, again and again, is the most."""
    count, free_from = 0, 0
    for end, start in sorted((start + size, start) for start, size in placements):
        if start >= free_from:
            count, free_from = count + 1, end
    return count


def _too_long(model: GpuModel) -> Iterator[str]:
    """Names that NVML's buffers have no room for: 96 bytes for that of a MIG device."""
    if len(model.key) > _LONGEST_KEY:
        yield f"the key has more than {_LONGEST_KEY} characters"
    for profile in model.profiles:
        name = f"{model.product} MIG {model.compute_slices}c.{profile.name}"
        if len(name.encode()) > _LONGEST_NAME:
            yield f"{name!r}, a MIG device's name, has more than {_LONGEST_NAME} bytes"


def _wrong_starts(profile: Profile, model: GpuModel) -> Iterator[str]:
    if len(set(profile.starts)) < len(profile.starts):
        yield f"{profile.name}: a placement is listed twice"
    for start in profile.starts:
        if start < 0 or start + profile.memory_slices > model.memory_slices:
            yield f"{profile.name}: placement {start}:{profile.memory_slices} leaves the GPU"


def _wrong_cuts(profile: Profile) -> Iterator[str]:
    """Compute profiles: one has to fill the GPU instance, none may be more, and each has numbers of its own."""
    if all(c.multiprocessors != profile.multiprocessors for c in profile.compute_profiles):
        yield f"{profile.name}: no compute profile fills it"
    for what, values in (
        ("id", [c.id for c in profile.compute_profiles]),
        ("NVML constant", [c.constant for c in profile.compute_profiles]),
    ):
        yield from (f"{profile.name}: two compute profiles have the {what} {v}" for v in _repeated(values))
    for inside in profile.compute_profiles:
        where = f"{profile.name}: compute profile {inside.id}"
        if inside.multiprocessors > profile.multiprocessors:
            yield f"{where}: {inside.multiprocessors} multiprocessors, of {profile.multiprocessors}"
        fitting = side_by_side((start, inside.compute_slices) for start in inside.starts)
        if inside.max_instances > fitting:
            yield f"{where}: {inside.max_instances} instances, of which {fitting} fit beside one another"
        if len(set(inside.starts)) < len(inside.starts):
            yield f"{where}: a placement is listed twice"
        for start in inside.starts:
            if start < 0 or start + inside.compute_slices > profile.compute_slices:
                yield f"{where}: placement {start}:{inside.compute_slices} leaves the GPU instance"
