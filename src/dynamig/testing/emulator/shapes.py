"""What the fields of a geometry file must be; whether they are there is `geometry.py`'s question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

COUNT, POSITIVE, TEXT, SWITCH = "a whole number from 0", "a whole number from 1", "a text", "true or false"
MOST = 4095
SMALL = f"a whole number from 0 to {MOST}"
"""Of engines, instances and NVML's constants: clients ask for constant after constant up to the last one."""
PCI_ID, CAPABILITY = "a PCI id such as 0x233010DE", "a version such as 9.0"

_PATTERNS = {PCI_ID: re.compile(r"(0x)?[0-9a-fA-F]{1,8}"), CAPABILITY: re.compile(r"[0-9]{1,4}\.[0-9]{1,4}")}

_COMPUTE_PROFILE = {
    "id": COUNT,
    **dict.fromkeys(("nvml_profile", "sms", "max_instances"), SMALL),
    "compute_slices": POSITIVE,
    "starts": [COUNT],
}
_PROFILE = {
    "name": TEXT,
    **dict.fromkeys(("gi_profile_id", "compute_slices", "memory_slices", "memory_mib"), COUNT),
    **dict.fromkeys(("sms", "max_instances", "copy_engines", "decoders", "encoders", "jpeg", "ofa"), SMALL),
    "nvml_profile": {"value": SMALL},
    "placements": {"starts": [COUNT], "size": POSITIVE},
    "compute_profiles": [_COMPUTE_PROFILE],
}
MODEL: Mapping[str, Any] = {
    "architecture": TEXT,
    "device_sms": SMALL,
    **dict.fromkeys(("device_memory_mib", "total_compute_slices", "total_memory_slices"), COUNT),
    "mig_toggle_needs_reset": SWITCH,
    "power_limit_watts": SMALL,
    "max_clocks_mhz": {"graphics": POSITIVE, "memory": POSITIVE},
    "cuda_compute_capability": CAPABILITY,
    "nvidia_smi_names": [TEXT],
    "pci_devices": [{"id": PCI_ID}],
    "profiles": [_PROFILE],
}
"""A model's entry: a word of the above, a list of one form, or a mapping of known fields; others are for readers."""


def wrong(value: Any, form: Any = MODEL, place: str = "") -> Iterator[str]:
    """`profiles[2].sms: 'many' is not a whole number from 0`, for each such field. Null is missing, not wrong."""
    if value is None:
        return
    if isinstance(form, str):
        if not _is(value, form):
            yield f"{place}: {value!r} is not {form}"
    elif isinstance(form, list) and isinstance(value, list):
        for number, element in enumerate(value):
            yield from wrong(element, form[0], f"{place}[{number}]")
    elif isinstance(form, Mapping) and isinstance(value, dict):
        for name, inner in form.items():
            yield from wrong(value.get(name), inner, f"{place}.{name}" if place else name)
    else:
        yield f"{place}: {value!r} is not {'a list' if isinstance(form, list) else 'a mapping'}"


def _is(value: Any, form: str) -> bool:
    if form in (COUNT, POSITIVE, SMALL):
        least, most = int(form == POSITIVE), MOST if form == SMALL else 2**32 - 1
        return type(value) is int and least <= value <= most
    if form == SWITCH:
        return isinstance(value, bool)
    if form == TEXT:
        return isinstance(value, str)
    return _PATTERNS[form].fullmatch(str(value)) is not None
