"""`nvidia-ctk cdi generate` on an emulated node: NVIDIA's own program finds every MIG device and its nodes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dynamig.testing.emulator import Emulator, find_library
from tests.integration.emulator import real_clients
from tests.integration.emulator.clients import environment, open_nvml
from tests.integration.emulator.conftest import Make

LIBRARIES = "usr/lib/x86_64-linux-gnu"
GENERATE = """
set -eu
mount -t tmpfs none /proc/driver
cp -r "$1/proc/driver/." /proc/driver/
shift
exec "$@"
"""
"""In a mount namespace of its own: mig-minors is read at a fixed path."""

pytestmark = [
    pytest.mark.timeout(600),  # the first run builds the program
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mount namespaces, device nodes"),
]


@pytest.fixture(scope="module")
def toolkit() -> Path:
    return real_clients.container_toolkit()


def driver_root(emulator: Emulator, folder: Path) -> Path:
    """What nvidia-ctk takes for the root of a driver installation: library, link and device nodes."""
    library = folder / LIBRARIES / f"libnvidia-ml.so.{emulator.show().driver_version}"
    library.parent.mkdir(parents=True)
    shutil.copy(find_library(), library)
    library.with_name("libnvidia-ml.so.1").symlink_to(library.name)
    subprocess.run(["cp", "-a", str(emulator.directory / "dev"), str(folder / "dev")], check=True)
    return folder


def nvidia_ctk(emulator: Emulator, toolkit: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = driver_root(emulator, folder)
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", GENERATE, "sh", str(emulator.directory)]
    command += [str(toolkit / "nvidia-ctk"), "cdi", "generate", "--format=json", f"--driver-root={root}"]
    command += [f"--dev-root={root}", "--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook", *arguments]
    return subprocess.run(command, env=environment(emulator), capture_output=True, text=True, timeout=120, check=False)


def nodes_by_device(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """Device nodes of each CDI device."""
    assert done.returncode == 0, done.stderr[-3000:]
    spec: dict[str, Any] = json.loads(done.stdout)
    assert spec["kind"] == "nvidia.com/gpu"
    return {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]] for device in spec["devices"]
    }


def expected_nodes(emulator: Emulator) -> dict[str, list[str]]:
    """The same from the emulator's state: each MIG device by index and by UUID, and all together."""
    devices: dict[str, list[str]] = {}
    for gpu in emulator.show().gpus:
        in_order = sorted(gpu.gpu_instances, key=lambda gi: gi.gi_id)
        living = [(gi, ci) for gi in in_order for ci in gi.compute_instances]
        for index, (gi, ci) in enumerate(living):
            base = 3 + gpu.minor * 135 + gi.gi_id * 9
            caps = [f"/dev/nvidia-caps/nvidia-cap{n}" for n in (base, base + 1 + ci.ci_id)]
            devices[f"{gpu.index}:{index}"] = devices[ci.mig_uuid] = [f"/dev/nvidia{gpu.minor}", *caps]
    return devices


@pytest.fixture
def cut(make: Make) -> Emulator:
    """Two GPUs with three MIG devices, one of which shares its GPU instance with another."""
    emulator = make("h100-80gb-sxm5:2")
    with open_nvml(emulator) as nvml:
        nvml.fill(nvml.create(19, 0, 1))
        nvml.fill(nvml.create(9, 4, 4))
        shared = nvml.create(9, 0, 4, 1)
        for _ in range(2):
            nvml.fill(shared, 0)
    return emulator


@pytest.mark.parametrize("mode", ["nvml", "auto"])
def test_every_mig_device_has_its_nodes_by_index_and_by_uuid(
    cut: Emulator, toolkit: Path, tmp_path: Path, mode: str
) -> None:
    found = nodes_by_device(nvidia_ctk(cut, toolkit, tmp_path / "root", f"--mode={mode}"))
    every = found.pop("all")
    assert found == expected_nodes(cut)
    assert set(every) == {node for nodes in found.values() for node in nodes}


def test_one_device_by_index_and_by_uuid(cut: Emulator, toolkit: Path, tmp_path: Path) -> None:
    expected = expected_nodes(cut)
    uuid = cut.show().gpus[0].gpu_instances[1].compute_instances[0].mig_uuid
    for number, wanted in enumerate(("1:1", uuid)):
        done = nvidia_ctk(cut, toolkit, tmp_path / f"root{number}", "--mode=nvml", f"--device-id={wanted}")
        assert nodes_by_device(done)[wanted] == expected[wanted]


def test_with_mig_off_there_are_whole_gpus(make: Make, toolkit: Path, tmp_path: Path) -> None:
    emulator = make("h100-80gb-sxm5:2", mig=False)
    found = nodes_by_device(nvidia_ctk(emulator, toolkit, tmp_path / "root", "--mode=nvml"))
    uuids = [gpu.uuid for gpu in emulator.show().gpus]
    assert {name: found[name] for name in ("0", "1")} == {"0": ["/dev/nvidia0"], "1": ["/dev/nvidia1"]}
    assert set(found) == {"0", "1", "all", *uuids}


def test_mig_on_and_nothing_cut_is_refused(make: Make, toolkit: Path, tmp_path: Path) -> None:
    done = nvidia_ctk(make(), toolkit, tmp_path / "root", "--mode=nvml")
    assert done.returncode != 0
    assert "level=error" in done.stderr
