"""Finding libnvidia-ml.so.1 of the emulator, and the one thing the control side asks it to do.

Making an instance is the library's knowledge, so `foreign` uses it instead of a second implementation. It runs in a
process of its own: the caller may have NVML loaded, for another node.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from dynamig.errors import Refused, Unavailable
from dynamig.testing.emulator.faults import NvmlReturn

NAME = "libnvidia-ml.so.1"


def find_library(given: Path | None = None) -> Path:
    """`given`, else $DYNAMIG_EMULATOR_LIBRARY, else build/ of the source tree. Raises Unavailable LIBRARY_NOT_BUILT."""
    named = os.environ.get("DYNAMIG_EMULATOR_LIBRARY")
    built = [parent / "build" / NAME for parent in Path(__file__).resolve().parents]
    for candidate in [given] if given else [Path(named)] if named else built:
        if candidate is not None and candidate.is_file():
            return candidate
    raise Unavailable(
        "LIBRARY_NOT_BUILT", f"the emulator's {NAME} is not built", "make emulator, or set DYNAMIG_EMULATOR_LIBRARY"
    )


def foreign_instance(
    directory: Path, library: Path | None, gpu: int, profile_id: int, start: int, *, with_ci: bool
) -> int:
    """The id of the new GPU instance. Raises Refused NVML_<code>."""
    arguments = [str(find_library(library)), *map(str, (gpu, profile_id, start, int(with_ci)))]
    environment = {**os.environ, "DYNAMIG_EMULATOR_DIR": str(directory), "DYNAMIG_EMULATOR_TRACE": "0"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 2:
        raise Unavailable("CONTROL_FAILED", done.stderr.strip() or "the helper ended without an answer", "see above")
    code, gi_id = map(int, words)
    if code != 0:
        name = NvmlReturn(code).name
        raise Refused(f"NVML_{name}", f"GPU {gpu}: profile {profile_id} at {start}: {name}", "dynamig emulator show")
    return gi_id


def _helper(library: str, gpu: str, profile_id: str, start: str, with_ci: str) -> None:
    nvml = ctypes.CDLL(library)
    gi_id = ctypes.c_uint32()
    code = nvml.nvmlInitWithFlags(1)
    if code == 0:
        code = nvml.dynamig_emulator_foreign(int(gpu), int(profile_id), int(start), int(with_ci), ctypes.byref(gi_id))
    print(code, gi_id.value)


if __name__ == "__main__":
    _helper(*sys.argv[1:])
