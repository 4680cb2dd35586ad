"""go-nvml and go-nvlib, which NVIDIA's Kubernetes components share, run unchanged on the emulator."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dynamig.testing.emulator import Emulator, load_geometry
from tests.integration.emulator import real_clients
from tests.integration.emulator.clients import NO_ROOM, environment
from tests.integration.emulator.conftest import Make

pytestmark = pytest.mark.timeout(600)  # the first run fetches modules

MODELS = load_geometry().models
CHANGES = {
    "nvmlDeviceCreateGpuInstance",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
}


@pytest.fixture(scope="module")
def probe() -> Path:
    return real_clients.nvlib_probe()


def test_the_components_libraries_see_what_the_geometry_says(make: Make, probe: Path) -> None:
    keys = ["h100-80gb-sxm5", *sorted(MODELS.keys() - {"h100-80gb-sxm5"})]
    emulator = make(",".join(keys))
    done = subprocess.run(
        [str(probe), str(emulator.directory / "sys/bus/pci/devices")],
        env=environment(emulator),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    shown = emulator.show()
    for gpu, key in zip(shown.gpus, keys, strict=True):
        # go-nvlib computes names from memory sizes: one MiB too much would move a name
        whole = {name for name in seen["profiles"][gpu.uuid] if "c." not in name}
        assert whole == {profile.name for profile in MODELS[key].profiles}
    assert (seen["prepared_as"], seen["walked"], seen["after_clear"]) == ("3g.40gb", ["3g.40gb"], 0)
    assert seen["found_by_uuid"] == seen["mig_uuid"] != ""
    assert seen["placed"] == [4, 0, 2, 1]
    assert seen["v2_name"] == seen["v3_name"] == "MIG 2g.20gb"
    assert seen["pci"] == [f"0000:{gpu.bus_id.split(':')[1].lower()}:00.0" for gpu in shown.gpus]
    assert [gpu.gpu_instances for gpu in shown.gpus] == [()] * len(keys)


def mig_parted(emulator: Emulator, probe: Path, command: str, **wish: object) -> int:
    """The exit code: 0 done or true, 1 failed or false, 3 a reset is needed."""
    configuration = json.dumps({key.replace("_", "-"): value for key, value in wish.items()})
    arguments = [str(probe), "mig-parted", command, configuration]
    done = subprocess.run(arguments, env=environment(emulator), capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.returncode in (0, 1, 3)
    return done.returncode


MIXED = {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}
"""The list of the MIG User Guide that fails in this order and succeeds in another."""


def test_mig_parted_finds_the_order_in_which_its_list_fits(make: Make, probe: Path) -> None:
    emulator = make("a100-40gb")
    assert mig_parted(emulator, probe, "assert", mig_enabled=True, mig_devices=MIXED) == 1
    assert mig_parted(emulator, probe, "apply", mig_enabled=True, mig_devices=MIXED) == 0
    [gpu] = emulator.show().gpus
    assert Counter(gi.profile for gi in gpu.gpu_instances) == MIXED
    assert all(len(gi.compute_instances) == 1 for gi in gpu.gpu_instances)
    assert mig_parted(emulator, probe, "assert", mig_enabled=True, mig_devices=MIXED) == 0
    revision = emulator.show().revision
    assert mig_parted(emulator, probe, "apply", mig_enabled=True, mig_devices=MIXED) == 0
    assert emulator.show().revision == revision  # what holds already is left alone
    assert mig_parted(emulator, probe, "clear") == 0
    assert emulator.show().gpus[0].gpu_instances == ()


def test_mig_parted_clears_what_a_failed_order_has_left(make: Make, probe: Path) -> None:
    emulator = make("a100-40gb")
    mig_parted(emulator, probe, "apply", mig_enabled=True, mig_devices=MIXED)
    calls = [(c.call, c.result) for c in emulator.trace() if c.call in CHANGES]
    failed = calls.index(("nvmlDeviceCreateGpuInstance", NO_ROOM))
    made = calls[:failed].count(("nvmlDeviceCreateGpuInstance", 0))
    after = [call for call, _ in calls[failed + 1 :]]
    assert made == 3
    assert after[: 2 * made] == ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"] * made
    assert after[2 * made :][-2:] == ["nvmlDeviceCreateGpuInstance", "nvmlGpuInstanceCreateComputeInstance"]
    assert "nvmlDeviceCreateGpuInstanceWithPlacement" not in after


def test_mig_parted_switches_the_mode_as_the_architecture_lets_it(make: Make, probe: Path) -> None:
    hopper = make(mig=False)
    assert mig_parted(hopper, probe, "apply", mig_enabled=True, mig_devices={"7g.80gb": 1}) == 0
    assert [gi.profile for gi in hopper.show().gpus[0].gpu_instances] == ["7g.80gb"]
    assert mig_parted(hopper, probe, "apply", mig_enabled=False, mig_devices={}) == 0
    assert not hopper.show().gpus[0].mig
    ampere = make("a100-40gb", mig=False)
    assert mig_parted(ampere, probe, "apply", mig_enabled=True, mig_devices={"7g.40gb": 1}) == 3
    ampere.reset(0)
    assert mig_parted(ampere, probe, "apply", mig_enabled=True, mig_devices={"7g.40gb": 1}) == 0
    assert [gi.profile for gi in ampere.show().gpus[0].gpu_instances] == ["7g.40gb"]


def test_mig_parted_cannot_have_more_than_there_is(make: Make, probe: Path) -> None:
    emulator = make()
    too_much = {"3g.40gb": 2, "1g.10gb": 1}
    assert mig_parted(emulator, probe, "apply", mig_enabled=True, mig_devices=too_much) == 1
    assert emulator.show().gpus[0].gpu_instances == ()
