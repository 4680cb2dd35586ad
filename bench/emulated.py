"""A node with emulated GPUs for one bench, and work on it in a process of its own: NVML is one per process and
chooses its node when it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dynamig.errors import Unavailable
from dynamig.testing.emulator import Emulator, find_library

MODEL = "h100-80gb-sxm5"
GPUS_PER_NODE = 8
REPOSITORY = Path(__file__).resolve().parents[1]
IN_MEMORY = Path("/dev/shm")
PATIENCE = 600.0
"""Seconds for the work of one process."""


@contextmanager
def emulated_node(*, trace: bool = False) -> Iterator[Path]:
    """A folder with `emulator/`, a node of eight GPUs in MIG mode; gone afterwards.

    In memory where the machine has a place for that: real hardware has no files, and the emulator's must not ride
    along with the disk writes that are measured. `trace`: NVML calls are counted, and each costs a little more.
    """
    memory = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="dynamig-bench-", dir=memory) as folder:
        Emulator(Path(folder) / "emulator").init(f"{MODEL}:{GPUS_PER_NODE}", mig=True, trace=trace)
        yield Path(folder) / "emulator"


@contextmanager
def state_folder() -> Iterator[Path]:
    """A folder on disk ($TMPDIR) for what the driver makes durable; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="dynamig-bench-") as folder:
        yield Path(folder)


def environment(emulator: Path) -> dict[str, str]:
    """Of a process that is to find this node behind NVML."""
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(find_library().parent),
        "DYNAMIG_EMULATOR_DIR": str(emulator),
    }


def run_on(emulator: Path, module: str, *arguments: object) -> Any:
    """The JSON value that `python -m module arguments` printed last. Raises Unavailable if it failed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        env=environment(emulator),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode != 0:
        raise Unavailable("BENCH_FAILED", f"{module}: {done.stderr.strip() or done.stdout.strip()}", "see above")
    return json.loads(done.stdout.splitlines()[-1])


def filesystem_of(folder: Path) -> str:
    """Type of the file system that holds `folder`, as /proc/self/mounts names it: what an fsync costs is its."""
    found, longest = "unknown", -1
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, at, kind, *_ = line.split()
        point = Path(at.replace("\\040", " "))
        if folder.resolve().is_relative_to(point) and len(point.parts) >= longest:
            found, longest = kind, len(point.parts)
    return found
