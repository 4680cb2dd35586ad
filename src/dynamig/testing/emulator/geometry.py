"""Reads geometry files: GPU models as values (model.py), and what is missing of the incomplete ones, by name.

The file's own head explains its fields. Beyond it, an entry may have

* `cuda_compute_capability: "9.0"`: needed only for an architecture that is not in `_ARCHITECTURES`;
* `power_limit_watts` and `max_clocks_mhz`: {graphics, memory}: without, these are not supported on the model;
* `compute_profiles` on a profile: a list of {nvml_profile, id, compute_slices, sms, max_instances, starts}, which
  replaces the rule of `compute_profiles()`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from dynamig.errors import Refused
from dynamig.testing.emulator import model_rules, shapes
from dynamig.testing.emulator.model import ComputeProfile, GpuModel, Profile

SHIPPED = Path(__file__).resolve().parent.parent / "geometry.yaml"

_ARCHITECTURES = {  # name: (NVML_DEVICE_ARCH_*, CUDA compute capability of its MIG-capable chips)
    "ampere": (7, (8, 0)),
    "hopper": (9, (9, 0)),
    "blackwell": (10, (10, 0)),
    "rubin": (13, None),
}
_UNKNOWN_ARCHITECTURE = 0xFFFFFFFF

_CI_CONSTANT = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
"""Compute slices to NVML_COMPUTE_INSTANCE_PROFILE_* (nvml.h)."""
_CI_1_SLICE_REV1 = 7
_CI_CONSTANT_COUNT = 9

_MODEL_FIELDS = ("architecture", "device_memory_mib", "device_sms", "total_compute_slices", "total_memory_slices")
_PROFILE_FIELDS = (
    *("name", "gi_profile_id", "compute_slices", "memory_slices", "memory_mib", "sms", "max_instances"),
    *("copy_engines", "decoders", "encoders", "jpeg", "ofa"),
)
_COMPUTE_PROFILE_FIELDS = ("nvml_profile", "id", "compute_slices", "sms", "max_instances", "starts")


@dataclass(frozen=True, slots=True)
class Catalog:
    """All models of the file `path`: those that can be emulated, and what the others lack."""

    path: Path
    models: Mapping[str, GpuModel]
    incomplete: Mapping[str, tuple[str, ...]]

    def model(self, key: str) -> GpuModel:
        """Raises Refused INCOMPLETE_MODEL with the missing fields, or UNKNOWN_MODEL with the complete models."""
        if key in self.models:
            return self.models[key]
        if key in self.incomplete:
            missing = ", ".join(self.incomplete[key])
            add = "add them to a copy, and name it with --geometry" if self.path == SHIPPED else "add them"
            raise Refused("INCOMPLETE_MODEL", f"{self.path}: GPU model {key} lacks {missing}", add)
        listed = "complete models: " + ", ".join(sorted(self.models))
        raise Refused("UNKNOWN_MODEL", f"{self.path} has no GPU model {key!r}", self._meant(key) + listed)

    def _meant(self, key: str) -> str:
        """What may have been meant by a key that is not there."""
        near = [known for known in sorted(self.models) if known.startswith(model_key(key))]
        own = "" if self.path != SHIPPED else "a model of your own needs --geometry FILE; "
        return f"{', '.join(near)}? " if near and key else own


def model_key(model: str) -> str:
    """`H100 80GB SXM5 (HBM3)` is `h100-80gb-sxm5`."""
    return re.sub(r"[^a-z0-9]+", "-", model.split("(")[0].lower()).strip("-")


def load_geometry(path: Path | None = None) -> Catalog:
    """The models of `path`, or of the file that dynamig ships.

    Raises Refused BAD_GEOMETRY if the file cannot be read or contradicts itself.
    """
    named = (path or SHIPPED).resolve()
    try:
        return _load(named, named.read_bytes())
    except OSError as error:
        raise Refused("BAD_GEOMETRY", f"{named}: {error.strerror}", "name a file that can be read") from error


@lru_cache(maxsize=8)
def _load(path: Path, content: bytes) -> Catalog:
    """Of the content, so that a file which has been written anew is read anew."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = yaml.load(content.decode(), Loader=loader)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise Refused("BAD_GEOMETRY", f"{path} is not YAML: {error}", f"{SHIPPED} shows the format") from error
    entries = document.get("gpus") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise Refused("BAD_GEOMETRY", f"{path}: no list `gpus`", f"{SHIPPED} shows the format")
    return _catalog(path, entries)


def _catalog(path: Path, entries: list[dict[str, Any]]) -> Catalog:
    models: dict[str, GpuModel] = {}
    incomplete: dict[str, tuple[str, ...]] = {}
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("model"), str):
            raise Refused("BAD_GEOMETRY", f"{path}: gpus[{number}] has no `model`", "give it a name")
        key = model_key(entry["model"])
        if key in models or key in incomplete:
            raise Refused("BAD_GEOMETRY", f"{path}: two models have the key {key}", "rename one")
        if problems := "; ".join(shapes.wrong(entry)):
            raise Refused("BAD_GEOMETRY", f"{path}: {key}: {problems}", "correct the entry")
        if missing := tuple(_missing(entry)):
            incomplete[key] = missing
        else:
            models[key] = _model(path, key, entry)
    return Catalog(path, models, incomplete)


def _missing(entry: Mapping[str, Any]) -> Iterator[str]:
    """Paths of the fields without which the model cannot be emulated."""
    yield from (name for name in _MODEL_FIELDS if entry.get(name) is None)
    architecture = str(entry.get("architecture", "")).lower()
    if _ARCHITECTURES.get(architecture, (0, None))[1] is None and entry.get("cuda_compute_capability") is None:
        yield "cuda_compute_capability"
    if not isinstance(entry.get("mig_toggle_needs_reset"), bool):
        yield "mig_toggle_needs_reset"
    yield from (name for name in ("nvidia_smi_names", "pci_devices", "profiles") if not entry.get(name))
    yield from _missing_in_profiles(entry.get("profiles") or [])


def _missing_in_profiles(profiles: list[Mapping[str, Any]]) -> Iterator[str]:
    """`1g.5gb.sms`, or `every profile's sms` where none has it."""
    lacking: dict[str, list[str]] = {}
    for profile in profiles:
        for field in _missing_in_profile(profile):
            lacking.setdefault(field, []).append(str(profile.get("name")))
    for field, names in lacking.items():
        if len(names) == len(profiles):
            yield f"every profile's {field}"
        else:
            yield from (f"{name}.{field}" for name in names)


def _missing_in_profile(profile: Mapping[str, Any]) -> Iterator[str]:
    yield from (name for name in _PROFILE_FIELDS if profile.get(name) is None)
    if (profile.get("nvml_profile") or {}).get("value") is None:
        yield "nvml_profile.value"
    for number, part in enumerate(profile.get("compute_profiles") or ()):
        lacking = (name for name in _COMPUTE_PROFILE_FIELDS if part.get(name) in (None, []))
        yield from (f"compute_profiles[{number}].{name}" for name in lacking)
    placements = profile.get("placements") or {}
    yield from (f"placements.{name}" for name in ("starts", "size") if placements.get(name) in (None, []))


def _model(path: Path, key: str, entry: Mapping[str, Any]) -> GpuModel:
    number, capability = _ARCHITECTURES.get(str(entry["architecture"]).lower(), (_UNKNOWN_ARCHITECTURE, None))
    if entry.get("cuda_compute_capability") is not None:
        major, minor = str(entry["cuda_compute_capability"]).split(".")
        capability = (int(major), int(minor))
    assert capability is not None  # _missing() asked for it
    one_slice = min((p["sms"] for p in entry["profiles"] if p["compute_slices"] == 1), default=None)
    big_slice = max((p["sms"] for p in entry["profiles"] if p["compute_slices"] == 1), default=None)
    if unlike := "; ".join(_unlike(entry["profiles"])):
        raise Refused("BAD_GEOMETRY", f"{path}: {key}: {unlike}", "correct the entry")
    clocks = entry.get("max_clocks_mhz") or {}
    model = GpuModel(
        key=key,
        product=entry["nvidia_smi_names"][0],
        architecture=number,
        compute_capability=capability,
        pci_device=int(entry["pci_devices"][0]["id"], 16),
        memory_mib=entry["device_memory_mib"],
        multiprocessors=entry["device_sms"],
        compute_slices=entry["total_compute_slices"],
        memory_slices=entry["total_memory_slices"],
        reset_to_switch=entry["mig_toggle_needs_reset"],
        limit_milliwatt=1000 * (entry.get("power_limit_watts") or 0),
        graphics_mhz=clocks.get("graphics") or 0,
        memory_mhz=clocks.get("memory") or 0,
        profiles=tuple(_profile(p, one_slice, big_slice) for p in entry["profiles"]),
    )
    if problems := "; ".join(model_rules.wrong(model)):
        raise Refused("BAD_GEOMETRY", f"{path}: {key}: {problems}", "correct the entry")
    return model


def _unlike(profiles: list[Mapping[str, Any]]) -> Iterator[str]:
    """A size in memory slices that is told twice, and not alike."""
    for profile in profiles:
        slices, size = profile["memory_slices"], profile["placements"]["size"]
        if slices != size:
            yield f"{profile['name']}: {slices} memory slices, but placements of {size}"


def _profile(entry: Mapping[str, Any], one_slice: int | None, big_slice: int | None) -> Profile:
    return Profile(
        name=entry["name"],
        id=entry["gi_profile_id"],
        constant=entry["nvml_profile"]["value"],
        compute_slices=entry["compute_slices"],
        memory_slices=entry["placements"]["size"],
        memory_mib=entry["memory_mib"],
        multiprocessors=entry["sms"],
        copy_engines=entry["copy_engines"],
        decoders=entry["decoders"],
        encoders=entry["encoders"],
        jpeg_engines=entry["jpeg"],
        ofa_engines=entry["ofa"],
        max_instances=entry["max_instances"],
        starts=tuple(sorted(entry["placements"]["starts"])),
        compute_profiles=_stated(entry) or compute_profiles(entry, one_slice, big_slice),
    )


def _stated(entry: Mapping[str, Any]) -> tuple[ComputeProfile, ...]:
    return tuple(
        ComputeProfile(
            c["nvml_profile"], c["id"], c["compute_slices"], c["sms"], c["max_instances"], tuple(sorted(c["starts"]))
        )
        for c in entry.get("compute_profiles") or ()
    )


def compute_profiles(
    entry: Mapping[str, Any], one_slice: int | None, big_slice: int | None
) -> tuple[ComputeProfile, ...]:
    """How a GPU instance of this profile can be cut.

    With g compute slices: each size c that NVML has a constant for and that is at most half of g, rounded up, and g
    itself (go-nvlib's list; MIG User Guide, lcip of 3g and 7g: 1c x3, 2c x1, 3c x1; 1c x7, 2c x3, 3c x2, 4c x1, 7c
    x1). A smaller one has c times the multiprocessors of the GPU's 1g profile. IDs equal the constants in every
    output seen. A size without a constant gets the first number beyond nvml.h's.

    Where a one-slice profile with double memory has more multiprocessors than 1g (Hopper SXM and later), filling it
    needs the constant 1_SLICE_REV1, and constant 0 leaves some idle; a 2g instance was seen to offer both (H100).
    """
    g, sms = int(entry["compute_slices"]), int(entry["sms"])
    parts = [c for c in sorted(_CI_CONSTANT) if c < g and 2 * c <= g + 1]
    found = [_part(c, g, c * one_slice) for c in parts if one_slice is not None and c * one_slice <= sms]
    whole = _CI_CONSTANT.get(g, _CI_CONSTANT_COUNT)
    widened = g == 1 and one_slice is not None and sms > one_slice
    if widened and one_slice is not None:
        found += [_part(1, 1, one_slice), ComputeProfile(_CI_1_SLICE_REV1, _CI_1_SLICE_REV1, 1, sms, 1, (0,))]
    else:
        found.append(ComputeProfile(whole, whole, g, sms, 1, (0,)))
    if g == 2 and one_slice is not None and big_slice is not None and one_slice < big_slice <= sms:
        count = min(g, sms // big_slice)
        found.append(ComputeProfile(_CI_1_SLICE_REV1, _CI_1_SLICE_REV1, 1, big_slice, count, tuple(range(g))))
    return tuple(found)


def _part(c: int, g: int, sms: int) -> ComputeProfile:
    return ComputeProfile(_CI_CONSTANT[c], _CI_CONSTANT[c], c, sms, g // c, tuple(range(0, g - c + 1, c)))
