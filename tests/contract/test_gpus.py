"""The same checks on the fake and on NVML over the emulator: who passes them can stand in for the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynamig.protocol.gpus import MigMode
from dynamig.testing.checks import check_every_partition, check_gpus, check_mode_switch
from dynamig.testing.emulator import Emulator, load_geometry
from dynamig.testing.fakes import FakeGpus
from tests.unit.driver.bench_node import h100

BUILD = Path(__file__).parents[2] / "build"

ON_NVML = """
from pathlib import Path
from dynamig.nvml import NvmlGpus
from dynamig.protocol.gpus import MigMode
from dynamig.testing import checks

with NvmlGpus(Path("/sys")) as gpus:
    for reading in gpus.readings():
        checks.check_gpus(gpus, reading.uuid)
        checks.check_every_partition(gpus, reading.uuid)
        if not reading.mode_switch_needs_reset:
            checks.check_mode_switch(gpus, reading.uuid)
        print("checked", reading.product_name)
"""


def test_the_fake() -> None:
    reading = h100(mode=MigMode.ON)
    gpus = FakeGpus([reading])
    check_gpus(gpus, reading.uuid)
    check_every_partition(gpus, reading.uuid)
    check_mode_switch(gpus, reading.uuid)


@pytest.mark.parametrize("model", sorted(load_geometry().models))
def test_nvml_on_an_emulated(model: str, tmp_path: Path) -> None:
    """Each in a process of its own: NVML is one per process, and chooses its node when it starts."""
    Emulator(tmp_path / "node").init([model], mig=True, seed=7)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(BUILD), "DYNAMIG_EMULATOR_DIR": str(tmp_path / "node")}
    done = subprocess.run(
        [sys.executable, "-c", ON_NVML], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("checked") == 1
