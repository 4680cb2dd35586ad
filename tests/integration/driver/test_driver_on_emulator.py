"""Prepare and unprepare over real NVML calls on an emulated node."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynamig.testing.emulator import Emulator
from tests.integration.driver import scenarios

ROOT = Path(__file__).parents[3]
SCENARIOS = [
    name
    for name, function in vars(scenarios).items()
    if inspect.isfunction(function) and function.__module__ == scenarios.__name__ and not name.startswith("_")
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test(scenario: str, tmp_path: Path) -> None:
    """In a process of its own: NVML is one per process, and chooses its node when it starts."""
    Emulator(tmp_path / "node").init("h100-80gb-sxm5:2", mig=True, seed=11, renumber="renumbers" in scenario)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(ROOT / "build"),
        "DYNAMIG_EMULATOR_DIR": str(tmp_path / "node"),
    }
    command = [sys.executable, "-m", "tests.integration.driver.node", scenario, str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "held"


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 6
