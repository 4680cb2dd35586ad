"""Kubernetes' own allocator and CEL compiler behind a command, built from `go/` once per content."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "go"


class Oracle:
    """The built command. Modes and formats: `go/README.md`."""

    def __init__(self, program: Path) -> None:
        self.program = program

    def run(self, mode: str, given: Any, *arguments: str) -> Any:
        """The answer to `given`, which goes in as JSON on standard input."""
        command = [str(self.program), mode, *arguments]
        done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the oracle failed in mode {mode}: {done.stderr.strip()}")
        return json.loads(done.stdout)


def build() -> Oracle:
    """The oracle, from the cache or built now (about a minute with empty Go caches).

    Raises: RuntimeError without Go, or if it does not build.
    """
    cache = Path(os.environ.get("DYNAMIG_CACHE") or Path.home() / ".cache" / "dynamig") / "oracle"
    cache.mkdir(parents=True, exist_ok=True)
    program = cache / _content() / "dra-oracle"
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _compile(program)
    return Oracle(program)


def _content() -> str:
    digest = hashlib.sha256()
    for file in sorted((*SOURCE.glob("*.go"), *SOURCE.glob("go.*"))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _compile(program: Path) -> None:
    if not (go := shutil.which("go")):
        raise RuntimeError("go is missing: the comparison with Kubernetes' allocator needs Go 1.26 or later")
    program.parent.mkdir(exist_ok=True)
    partial = program.with_suffix(".new")
    environment = os.environ | {"CGO_ENABLED": "0"}
    command = [go, "build", "-mod=readonly", "-buildvcs=false", "-o", str(partial), "."]
    done = subprocess.run(command, cwd=SOURCE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the oracle does not build: {done.stderr.strip()}")
    partial.replace(program)
