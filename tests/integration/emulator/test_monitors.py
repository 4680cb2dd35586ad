"""nvitop and gpustat, as people run them, in every state that a MIG GPU can be in."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from dynamig.testing.emulator import Emulator
from tests.integration.emulator import real_clients
from tests.integration.emulator.clients import environment, open_nvml
from tests.integration.emulator.conftest import Make

pytestmark = pytest.mark.timeout(600)  # the first run fetches the clients


@pytest.fixture(scope="module")
def monitors() -> Path:
    return real_clients.monitors()


def run(emulator: Emulator, monitors: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env=environment(emulator, PYTHONPATH=str(monitors), COLUMNS="120", LINES="60", LC_ALL="C.UTF-8"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def rows(screen: str) -> dict[str, tuple[str, str]]:
    """MIG devices on nvitop's screen: `0:1` to (profile, `GI/CI`)."""
    found = re.findall(r"(\d+:\d+)\s+(\S+) @ GI/CI:\s*(\d+/\d+)", screen)
    return {index: (profile, ids) for index, profile, ids in found}


def gpustat(emulator: Emulator, monitors: Path) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(run(emulator, monitors, "gpustat", "--json"))["gpus"]
    return listed


def test_nvitop_lists_the_mig_devices_that_live_now(make: Make, monitors: Path) -> None:
    emulator = make("h100-80gb-sxm5:2")
    assert rows(run(emulator, monitors, "nvitop", "--once")) == {}
    with open_nvml(emulator) as nvml:
        left = nvml.create(9, 4, 4)
        ci = nvml.fill(left)
        right = nvml.create(20, 0, 1)
        nvml.fill(right)
        ids = {nvml.start(gi): nvml.info(gi).id for gi in (left, right)}
        expected = {("3g.40gb", f"{ids[4]}/0"), ("1g.10gb+me", f"{ids[0]}/0")}
        seen = rows(run(emulator, monitors, "nvitop", "--once"))
        assert set(seen) == {"0:0", "0:1"}
        assert set(seen.values()) == expected
        pynvml.nvmlComputeInstanceDestroy(ci)
        assert rows(run(emulator, monitors, "nvitop", "--once")) == {"0:0": ("1g.10gb+me", f"{ids[0]}/0")}


def test_nvitop_shows_a_lost_gpu_and_goes_on(make: Make, monitors: Path) -> None:
    emulator = make("h100-80gb-sxm5:2,a30-24gb")
    emulator.foreign(2, "2g.12gb", 0)
    emulator.lose(1)
    screen = run(emulator, monitors, "nvitop", "--once")
    assert "GPU is Lost" in screen
    assert [profile for profile, _ in rows(screen).values()] == ["2g.12gb"]


def test_nvitop_with_mig_off(make: Make, monitors: Path) -> None:
    screen = run(make(mig=False), monitors, "nvitop", "--once")
    assert "Disabled" in screen
    assert rows(screen) == {}


def test_gpustat_reads_whole_gpus_in_every_state(make: Make, monitors: Path) -> None:
    emulator = make("h100-80gb-sxm5:2,a30-24gb")
    emulator.foreign(0, "3g.40gb", 4)
    listed = gpustat(emulator, monitors)
    assert [g["uuid"] for g in listed] == [g.uuid for g in emulator.show().gpus]
    assert [g["memory.total"] for g in listed] == [81559, 81559, 24576]
    assert {g["utilization.gpu"] for g in listed} == {None}  # not to be had in MIG mode
    emulator.lose(1)
    assert [g["name"] for g in gpustat(emulator, monitors)][1] == "((GPU is lost))"


def test_gpustat_reads_utilisation_with_mig_off(make: Make, monitors: Path) -> None:
    [gpu] = gpustat(make(mig=False), monitors)
    assert (gpu["utilization.gpu"], gpu["utilization.enc"]) == (0, 0)
