"""go-nvml and go-nvlib, which NVIDIA's Kubernetes components share, run unchanged on the emulator."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dynamig.testing.emulator import load_geometry
from tests.integration.emulator.clients import environment
from tests.integration.emulator.conftest import Make

SOURCE = Path(__file__).parent / "nvlib_probe"
MODELS = load_geometry().models


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The probe, built. Skipped where there is no Go or its modules cannot be fetched; a build error is a failure."""
    if shutil.which("go") is None:
        pytest.skip("needs Go, to build a client on go-nvml and go-nvlib")
    fetched = subprocess.run(["go", "mod", "download"], cwd=SOURCE, capture_output=True, text=True, check=False)
    if fetched.returncode != 0:
        pytest.skip(f"Go modules cannot be fetched: {fetched.stderr.strip()[-200:]}")
    binary = tmp_path_factory.mktemp("probe") / "nvlib-probe"
    built = subprocess.run(
        ["go", "build", "-mod=readonly", "-o", str(binary), "."],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return binary


@pytest.mark.timeout(600)
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
