"""Writes the golden files of the ResourceSlices of one H100: `python -m tests.unit.dra.golden`.

Run it only after a change that is meant to be seen by every cluster, and read the diff.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dynamig.dra import gpu_pool, resource_slices
from tests.unit.dra.gpus import H100_FACTS

FOLDER = Path(__file__).parents[2] / "golden"
VERSIONS = ((1, 34), (1, 37))


def path(kubernetes: tuple[int, int]) -> Path:
    return FOLDER / f"h100-slices-{kubernetes[0]}.{kubernetes[1]}.json"


def slices(kubernetes: tuple[int, int]) -> tuple[dict[str, Any], ...]:
    pool = gpu_pool("n1", H100_FACTS)
    return resource_slices(pool, driver="gpu.nvidia.com", node="n1", generation=1, kubernetes=kubernetes)


def text(kubernetes: tuple[int, int]) -> str:
    return json.dumps(slices(kubernetes), indent=1) + "\n"


if __name__ == "__main__":
    for version in VERSIONS:
        path(version).write_text(text(version), encoding="utf-8")
