"""Nodes for the emulator's tests: in memory where the machine has /dev/shm, removed afterwards."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dynamig.testing.emulator import Emulator, find_library
from tests.integration.emulator.clients import Nvml, loaded, open_nvml

Make = Callable[..., Emulator]


@pytest.fixture(scope="session")
def library() -> Path:
    """The built library; a test run without it fails and says how to get it."""
    return loaded(find_library())


@pytest.fixture
def make(library: Path) -> Iterator[Make]:
    """`make("h100-80gb-sxm5:2", mig=False)` is a fresh emulated node."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as root:
        made = 0

        def fresh(gpus: str = "h100-80gb-sxm5", **options: object) -> Emulator:
            nonlocal made
            made += 1
            emulator = Emulator(Path(root) / f"n{made}", library=library)
            emulator.init(gpus, **options)  # type: ignore[arg-type]
            return emulator

        yield fresh


@pytest.fixture
def nvml(make: Make) -> Iterator[tuple[Emulator, Nvml]]:
    """One H100 in MIG mode, and this process as its client."""
    emulator = make()
    with open_nvml(emulator) as client:
        yield emulator, client
