"""Slurm's own gpu/nvml plugin (AutoDetect=nvml) finds MIG devices on an emulated node."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from dynamig.testing.emulator import Emulator, find_library
from tests.integration.emulator import real_clients
from tests.integration.emulator.clients import open_nvml
from tests.integration.emulator.conftest import Make

SCRIPT = Path(__file__).with_name("slurmd_in_root.sh")
TYPE = "nvidia_h100_80gb_hbm3"
SLURM_CONF = """
ClusterName=c
SlurmctldHost=n1
SlurmUser=root
AuthType=auth/slurm
CredType=cred/slurm
GresTypes=gpu
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
NodeName=n1 CPUs={cpus} Gres={gres}
PartitionName=all Nodes=n1
"""

pytestmark = [
    pytest.mark.timeout(900),  # the first run makes the Debian root
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mount namespaces, device nodes"),
]


@pytest.fixture(scope="module")
def root() -> Path:
    return real_clients.debian_root()


@pytest.fixture(scope="module")
def plugin(root: Path) -> Path:
    return real_clients.slurm_nvml_plugin(root)


@dataclass(frozen=True)
class Detected:
    """What `slurmd -G` printed: GRES records as fields, and the unique id that gpu/nvml took for each file list."""

    records: tuple[Mapping[str, str], ...]
    unique_ids: Mapping[str, str]


def slurmd(emulator: Emulator, root: Path, plugin: Path, tmp_path: Path, gres: str) -> Detected:
    """slurmd's own look at the node; any line of its that says error is the test's failure."""
    config, scratch = tmp_path / "config", tmp_path / "scratch"
    config.mkdir()
    scratch.mkdir()
    (config / "slurm.conf").write_text(SLURM_CONF.format(gres=gres, cpus=os.cpu_count()))
    (config / "gres.conf").write_text("AutoDetect=nvml\n")
    (config / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    (config / "slurm.key").write_bytes(os.urandom(64))  # slurmd asks for one although it talks to nobody
    (config / "slurm.key").chmod(0o600)
    places = (root, scratch, plugin, emulator.directory, find_library().parent, config)
    command = ["unshare", "-m", "--propagation", "private", "sh", str(SCRIPT), *map(str, places)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]
    assert "error:" not in said, said[-3000:]
    return parsed(said)


def parsed(said: str) -> Detected:
    records = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in said.splitlines() if "] Gres Name=gpu" in line]
    ids = re.findall(r"_handle_mig:\s+UniqueID: (\S+)", said)
    files = re.findall(r"_handle_mig:\s+Device Files: (\S+)", said)
    return Detected(tuple(records), dict(zip(files, ids, strict=True)))


def test_every_mig_device_is_a_gres_with_its_uuid_and_its_files(
    make: Make, root: Path, plugin: Path, tmp_path: Path
) -> None:
    emulator = make("h100-80gb-sxm5:2")
    with open_nvml(emulator) as nvml:
        for number, profile, start, size in ((0, 19, 0, 1), (0, 9, 4, 4), (1, 9, 0, 4)):
            nvml.fill(nvml.create(profile, start, size, number))
    seen = slurmd(emulator, root, plugin, tmp_path, f"gpu:{TYPE}_1g.10gb:1,gpu:{TYPE}_3g.40gb:2")
    expected: dict[str, tuple[str, str]] = {}
    for gpu in emulator.show().gpus:
        for gi in gpu.gpu_instances:
            base = 3 + gpu.minor * 135 + gi.gi_id * 9
            files = f"/dev/nvidia{gpu.minor},/dev/nvidia-caps/nvidia-cap{base},/dev/nvidia-caps/nvidia-cap{base + 1}"
            expected[files] = (f"{TYPE}_{gi.profile}", gi.compute_instances[0].mig_uuid)
    assert {r["File"]: (r["Type"], seen.unique_ids[r["File"]]) for r in seen.records} == expected
    assert {"UUID", "MIG", "ENV_NVML"} <= set.intersection(*(set(r["Flags"].split(",")) for r in seen.records))


def test_with_mig_off_whole_gpus_are_found(make: Make, root: Path, plugin: Path, tmp_path: Path) -> None:
    emulator = make("h100-80gb-sxm5:2", mig=False)
    seen = slurmd(emulator, root, plugin, tmp_path, f"gpu:{TYPE}:2")
    assert [record["File"] for record in seen.records] == ["/dev/nvidia0", "/dev/nvidia1"]
    assert {record["Type"] for record in seen.records} == {TYPE}
