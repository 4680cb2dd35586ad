"""The library compiled with sanitizers, under the same threads, processes and kills: no report, whatever they do.

ASan and UBSan find wrong memory and undefined arithmetic, TSan races. `make soak` asks for more operations.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HERE = "tests/integration/emulator"
TESTS = {
    "address,undefined": (
        *("test_soak.py", "test_threads.py", "test_symbols.py"),
        *("test_usage.py", "test_gpm.py", "test_strictness.py"),
    ),
    "thread": ("test_soak.py", "test_threads.py"),
}
RUNTIMES = {"address,undefined": "libasan.so", "thread": "libtsan.so"}
OPERATIONS = {
    "address,undefined": int(os.environ.get("DYNAMIG_EMULATOR_ASAN_OPERATIONS", "3000")),
    "thread": int(os.environ.get("DYNAMIG_EMULATOR_TSAN_OPERATIONS", "1000")),
}
WITHOUT = "not ordinary_user"
"""Tests that give up root cannot write the sanitizer's log any more."""


def built(kind: str) -> Path:
    """The library with that sanitizer, every finding of which ends the process."""
    folder = ROOT / "build" / f"sanitize-{kind.split(',')[0]}"
    flags = f"-fsanitize={kind} -fno-sanitize-recover=all"
    command = ["make", "emulator", f"BUILD={folder}", f"EMULATOR_SANITIZE={flags}", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "libnvidia-ml.so.1"


def runtime(kind: str) -> str:
    """The sanitizer's own library, which must be loaded first into a program that was not compiled with it."""
    name = RUNTIMES[kind]
    done = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = done.stdout.strip()
    assert Path(path).is_file(), f"the compiler has no {name}: install its sanitizer runtimes"
    return path


@pytest.mark.timeout(1800 + max(OPERATIONS.values()) // 20)
@pytest.mark.parametrize("kind", TESTS)
def test_no_sanitizer_has_anything_to_report(kind: str, tmp_path: Path) -> None:
    library = built(kind)
    options = f"log_path={tmp_path}/report:halt_on_error=1:detect_leaks=0"
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime(kind),
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": f"{options}:print_stacktrace=1",
        "TSAN_OPTIONS": options,
        "DYNAMIG_EMULATOR_LIBRARY": str(library),
        "DYNAMIG_EMULATOR_OPERATIONS": str(OPERATIONS[kind]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=900", "-k", WITHOUT]
    command += [f"{HERE}/{name}" for name in TESTS[kind]]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    reports = "\n".join(path.read_text() for path in tmp_path.glob("report*"))
    assert reports == ""
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
