"""GPUs for tests: four written by hand, and every complete model on record.

The hand-written ones are independent of the recorded file: H100 and A30 repeat `nvidia-smi mig -lgip` and
`-lgipp` output, the RTX PRO 6000 its media rules, and "Odd" is made up to be unlike any GPU there is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

import dynamig
from dynamig.mig import Engines, Geometry, GiProfile, GiProfileId, MiB, NvmlProfile, Placement
from dynamig.testing.emulator import model_key

RECORDED = Path(dynamig.__file__).parent / "testing" / "geometry.yaml"


def profile(
    name: str,
    id: int,
    nvml: int,
    compute: int,
    memory: int,
    engines: tuple[int, int, int, int, int, int],
    most: int,
    starts: tuple[int, ...],
    size: int,
) -> GiProfile:
    """Engines in the order of `Engines`: multiprocessors, copy, decoders, encoders, JPEG, OFA."""
    return GiProfile(
        GiProfileId(id),
        NvmlProfile(nvml),
        name,
        compute,
        MiB(memory),
        Engines(*engines),
        most,
        tuple(Placement(start, size) for start in starts),
    )


ALL_SEVEN = (0, 1, 2, 3, 4, 5, 6)

H100 = Geometry(
    (
        profile("1g.10gb", 19, 0, 1, 9984, (16, 1, 1, 0, 1, 0), 7, ALL_SEVEN, 1),
        profile("1g.10gb+me", 20, 7, 1, 9984, (16, 1, 1, 0, 1, 1), 1, ALL_SEVEN, 1),
        profile("1g.20gb", 15, 9, 1, 20096, (26, 1, 1, 0, 1, 0), 4, (0, 2, 4, 6), 2),
        profile("2g.20gb", 14, 1, 2, 20096, (32, 2, 2, 0, 2, 0), 3, (0, 2, 4), 2),
        profile("3g.40gb", 9, 2, 3, 40448, (60, 3, 3, 0, 3, 0), 2, (0, 4), 4),
        profile("4g.40gb", 5, 3, 4, 40448, (64, 4, 4, 0, 4, 0), 1, (0,), 4),
        profile("7g.80gb", 0, 4, 7, 81152, (132, 8, 7, 0, 7, 1), 1, (0,), 8),
    )
)

A30 = Geometry(
    (
        profile("1g.6gb", 14, 0, 1, 5952, (14, 1, 1, 0, 0, 0), 4, (0, 1, 2, 3), 1),
        profile("1g.6gb+me", 21, 7, 1, 5952, (14, 1, 1, 0, 1, 1), 1, (0, 1, 2, 3), 1),
        profile("2g.12gb", 5, 1, 2, 11968, (28, 2, 2, 0, 0, 0), 2, (0, 2), 2),
        profile("2g.12gb+me", 6, 8, 2, 11968, (28, 2, 2, 0, 1, 1), 1, (0, 2), 2),
        profile("4g.24gb", 0, 3, 4, 24000, (56, 4, 4, 0, 1, 1), 1, (0,), 4),
    )
)

QUARTERS, HALVES = (0, 3, 6, 9), (0, 6)

RTX_PRO_6000 = Geometry(
    (
        # Four sets of decoder, encoder and JPEG engine, one OFA (open-gpu-kernel-modules kmigmgr_gb202.c).
        # The IDs of the variants are not on record; these are free numbers. Memory and multiprocessors are
        # round figures.
        profile("1g.24gb", 14, 0, 1, 24192, (46, 1, 1, 1, 1, 0), 4, QUARTERS, 3),
        profile("1g.24gb+me", 21, 7, 1, 24192, (46, 1, 1, 1, 1, 1), 1, QUARTERS, 3),
        profile("1g.24gb+gfx", 47, 10, 1, 24192, (46, 1, 1, 1, 1, 0), 4, QUARTERS, 3),
        profile("1g.24gb+me.all", 65, 15, 1, 24192, (46, 1, 4, 4, 4, 1), 1, QUARTERS, 3),
        profile("1g.24gb-me", 67, 13, 1, 24192, (46, 1, 0, 0, 0, 0), 4, QUARTERS, 3),
        profile("2g.48gb", 5, 1, 2, 48512, (94, 2, 2, 2, 2, 0), 2, HALVES, 6),
        profile("2g.48gb+gfx", 35, 11, 2, 48512, (94, 2, 2, 2, 2, 0), 2, HALVES, 6),
        profile("2g.48gb+me.all", 64, 16, 2, 48512, (94, 2, 4, 4, 4, 1), 1, HALVES, 6),
        profile("2g.48gb-me", 66, 14, 2, 48512, (94, 2, 0, 0, 0, 0), 2, HALVES, 6),
        profile("4g.96gb", 0, 3, 4, 97280, (188, 4, 4, 4, 4, 1), 1, (0,), 12),
        profile("4g.96gb+gfx", 32, 12, 4, 97280, (188, 4, 4, 4, 4, 1), 1, (0,), 12),
    )
)

ODD = Geometry(
    (
        # Five memory slices, sizes 1, 2, 3 and 5, placements that overlap inside a profile, a cap that no
        # engine explains (ID 90), an engine total that the profiles' own counts refute (copies of ID 7 take
        # 4 decoders of 3), and memory that adds up to more than the largest profile has.
        profile("Weird_Profile/β", 90, 40, 1, 1000, (3, 1, 0, 0, 0, 0), 2, (0, 1, 2, 3, 4), 1),
        profile("2x", 7, 41, 1, 3000, (5, 3, 2, 0, 0, 1), 2, (0, 1, 3), 2),
        profile("3x+me", 300, 42, 2, 3000, (7, 1, 3, 0, 0, 2), 1, (0, 2), 3),
        profile("5x", 1, 43, 9, 5000, (9, 1, 1, 0, 0, 2), 1, (0,), 5),
    )
)

BY_HAND = {"H100": H100, "A30": A30, "RTX PRO 6000": RTX_PRO_6000, "Odd": ODD}


def only(geometry: Geometry, *names: str) -> Geometry:
    """The same GPU if it listed these profiles alone."""
    return Geometry(tuple(one for one in geometry.profiles if one.name in names))


def recorded() -> dict[str, Geometry]:
    """Every complete model of `dynamig/testing/geometry.yaml`, by model name."""
    gpus = yaml.safe_load(RECORDED.read_text(encoding="utf-8"))["gpus"]
    return {gpu["model"]: _geometry(gpu) for gpu in gpus if _complete(gpu)}


def recorded_by_key() -> dict[str, Geometry]:
    """The same by the key that `dynamig emulator init` takes."""
    return {model_key(model): geometry for model, geometry in recorded().items()}


def _complete(gpu: dict[str, Any]) -> bool:
    """By the file's own definition: these two fields, and no null in what an instance needs."""
    needed = (
        "gi_profile_id",
        "memory_mib",
        "sms",
        "max_instances",
        "copy_engines",
        "decoders",
        "jpeg",
        "ofa",
    )
    whole = gpu.get("device_memory_mib") is not None and gpu.get("device_sms") is not None
    return whole and all(
        all(one.get(key) is not None for key in needed) and (one.get("placements") or {}).get("starts")
        for one in gpu["profiles"]
    )


def _geometry(gpu: dict[str, Any]) -> Geometry:
    return Geometry(
        tuple(
            profile(
                one["name"],
                one["gi_profile_id"],
                one["nvml_profile"]["value"],
                one["compute_slices"],
                one["memory_mib"],
                tuple(one[e] for e in ("sms", "copy_engines", "decoders", "encoders", "jpeg", "ofa")),
                one["max_instances"],
                tuple(one["placements"]["starts"]),
                one["placements"]["size"],
            )
            for one in gpu["profiles"]
        )
    )
