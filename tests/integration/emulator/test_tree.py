"""Files beside NVML: they follow the instances, and a container's view follows from them."""

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pynvml
import pytest

from dynamig.testing.emulator import Emulator, find_library
from tests.integration.emulator.clients import CODE, NO_PERMISSION, Nvml, code_of, nvml_list, open_nvml, run_python
from tests.integration.emulator.conftest import Make
from tests.integration.emulator.test_unknown_models import entry, profile, write

Client = tuple[Emulator, Nvml]
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mount namespaces, device nodes, other users")


def capability(directory: Path, path: str) -> int:
    text = (directory / "proc/driver/nvidia/capabilities" / path / "access").read_text()
    return int(text.split("DeviceFileMinor:")[1].split()[0])


def test_capability_files_and_nodes_come_and_go_with_the_instances(nvml: Client) -> None:
    emulator, client = nvml
    root = emulator.directory
    gi = client.create(9, 4, 4)
    ci = client.fill(gi)
    gi_id = client.info(gi).id
    assert capability(root, f"gpu0/mig/gi{gi_id}") == 3 + gi_id * 9
    assert capability(root, f"gpu0/mig/gi{gi_id}/ci0") == 3 + gi_id * 9 + 1
    nodes = {root / f"dev/nvidia-caps/nvidia-cap{n}" for n in (3 + gi_id * 9, 4 + gi_id * 9)}
    assert all(node.exists() for node in nodes)
    pynvml.nvmlComputeInstanceDestroy(ci)
    pynvml.nvmlGpuInstanceDestroy(gi)
    assert not any(node.exists() for node in nodes)
    assert list((root / "proc/driver/nvidia/capabilities/gpu0/mig").iterdir()) == []


def test_mig_minors_agree_with_the_capability_files(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:3")
    lines = (emulator.directory / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    table = dict(line.split() for line in lines)
    assert (table["config"], table["monitor"]) == ("1", "2")
    assert table["gpu0/gi1/ci2/access"] == "15"  # the user guide's example: 12, 13, 14, 15
    assert table["gpu31/gi14/ci7/access"] == "4322"  # the last of the kernel's table
    with open_nvml(emulator) as nvml:
        gi = nvml.create(15, 2, 2, gpu=2)
        nvml.fill(gi)
        gi_id = nvml.info(gi).id
    assert str(capability(emulator.directory, f"gpu2/mig/gi{gi_id}")) == table[f"gpu2/gi{gi_id}/access"]


def fabric_minor(emulator: Emulator) -> int:
    name, number = (emulator.directory / "proc/driver/nvidia-caps/sys-minors").read_text().split()
    assert name == "fabric-imex-mgmt"
    return int(number)


def test_no_capability_of_a_gpu_is_that_of_the_fabric(make: Make, tmp_path: Path) -> None:
    """Also where a model needs a larger table than the kernel's."""
    assert fabric_minor(make("h100-80gb-sxm5:32")) == 4323  # the kernel's
    small = profile("1g.4gb", 0, 1, list(range(64)), 1, constant=0)
    wide = make("wide", geometry=write(tmp_path / "g.yaml", entry("Wide", 64, [small])))
    table = (wide.directory / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    assert max(int(line.split()[1]) for line in table) == fabric_minor(wide) - 1 > 4323


@root_only
def test_nodes_are_character_devices_with_the_numbers_of_proc_devices(nvml: Client) -> None:
    emulator, client = nvml
    client.fill(client.create(9, 4, 4))
    devices = (emulator.directory / "proc/devices").read_text().splitlines()
    majors = {
        line.split()[1]: int(line.split()[0])
        for line in devices
        if len(line.split()) == 2 and line.split()[0].isdigit()
    }
    for node in (emulator.directory / "dev/nvidia-caps").iterdir():
        found = node.stat()
        assert stat.S_ISCHR(found.st_mode)
        assert os.major(found.st_rdev) == majors["nvidia-caps"]
        assert node.name == f"nvidia-cap{os.minor(found.st_rdev)}"
    gpu = (emulator.directory / "dev/nvidia0").stat()
    assert (os.major(gpu.st_rdev), os.minor(gpu.st_rdev)) == (195, 0)
    host = {line.split()[0] for line in Path("/proc/devices").read_text().splitlines() if line.strip()}
    assert str(majors["nvidia-caps"]) not in host


def test_sysfs_has_what_go_nvlib_needs(make: Make) -> None:
    emulator = make("h100-80gb-sxm5,a30-24gb")
    listing = emulator.directory / "sys/bus/pci/devices"
    assert sorted(p.name for p in listing.iterdir()) == ["0000:07:00.0", "0000:0f:00.0"]
    for path, device in zip(sorted(listing.iterdir()), ("0x2330", "0x20b7"), strict=True):
        assert (path / "vendor").read_text() == "0x10de\n"
        assert (path / "class").read_text() == "0x030200\n"
        assert (path / "device").read_text().strip() == device
        assert all(len(line.split()) == 3 for line in (path / "resource").read_text().splitlines())
        assert path.resolve().parents[1].name.startswith("pci0000:")
        assert (path / "driver").resolve().name == "nvidia"


def test_a_node_missing_under_dev_hides_the_device(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:2")
    with open_nvml(emulator) as nvml:
        ids = [
            nvml.info(pynvml.nvmlComputeInstanceGetInfo(nvml.fill(nvml.create(19, s, 1))).gpuInstance).id
            for s in (0, 1)
        ]
        (emulator.directory / f"dev/nvidia-caps/nvidia-cap{3 + ids[0] * 9}").unlink()
        assert [pynvml.nvmlDeviceGetGpuInstanceId(m) for m in nvml.mig_devices()] == [ids[1]]
        second = pynvml.nvmlDeviceGetUUID(nvml.gpu(1))
        (emulator.directory / "dev/nvidia0").unlink()
        assert pynvml.nvmlDeviceGetCount() == 1
        assert pynvml.nvmlDeviceGetUUID(nvml.gpu(0)) == second


IN_CONTAINER = """
set -eu
state=$1 libraries=$2 lister=$3; shift 3
mkdir -p "$TMPDIR/run/state"
mount --bind "$state" "$TMPDIR/run/state"
mount -o remount,bind,ro "$TMPDIR/run/state"
mkdir "$TMPDIR/keep"
for node in "$@"; do cp -a "$node" "$TMPDIR/keep"; done
mount -t tmpfs none /dev
mkdir /dev/nvidia-caps
for node in "$TMPDIR"/keep/*; do
    [ -e "$node" ] || continue
    case $node in */nvidia-cap[0-9]*) cp -a "$node" /dev/nvidia-caps ;; *) cp -a "$node" /dev ;; esac
done
exec env DYNAMIG_EMULATOR_DIR="$TMPDIR/run" LD_LIBRARY_PATH="$libraries" setpriv --bounding-set=-sys_admin "$lister"
"""


def in_container(emulator: Emulator, nodes: list[str], tmp_path: Path) -> dict[str, Any]:
    """nvml-list in a mount namespace with only DIR/state, read-only, and these nodes of DIR/dev."""
    library = find_library()
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", IN_CONTAINER, "sh"]
    command += [str(emulator.directory / "state"), str(library.parent), str(library.parent / "nvml-list")]
    command += [str(emulator.directory / "dev" / node) for node in nodes]
    done = subprocess.run(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    listed: dict[str, Any] = json.loads(done.stdout)
    return listed


@root_only
def test_a_container_sees_exactly_its_devices(make: Make, tmp_path: Path) -> None:
    emulator = make("h100-80gb-sxm5:2")
    with open_nvml(emulator) as nvml:
        for gpu, start in ((0, 0), (0, 1), (1, 4)):
            nvml.fill(nvml.create(19, start, 1, gpu))
    mine = emulator.show().gpus[0].gpu_instances[1]
    base = 3 + mine.gi_id * 9
    listed = in_container(
        emulator, ["nvidia0", f"nvidia-caps/nvidia-cap{base}", f"nvidia-caps/nvidia-cap{base + 1}"], tmp_path
    )
    [gpu] = listed["gpus"]
    assert gpu["uuid"] == emulator.show().gpus[0].uuid
    assert "gpu_instances" not in gpu  # not its business, and no failure
    [mig] = listed["mig_devices"]
    assert mig["uuid"] == mine.compute_instances[0].mig_uuid


@root_only
def test_a_container_without_nodes_sees_nothing(make: Make, tmp_path: Path) -> None:
    listed = in_container(make(), [], tmp_path)
    assert (listed["gpus"], listed["mig_devices"]) == ([], [])


AS_NOBODY = f"""{CODE}
import os, sys
pynvml.nvmlInit(); pynvml.nvmlShutdown()  # the library is loaded while its directory can be read
os.setgid(65534); os.setuid(65534)
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
print(code(pynvml.nvmlDeviceGetUUID, gpu), code(pynvml.nvmlDeviceCreateGpuInstance, gpu, 19),
      code(pynvml.nvmlDeviceSetMigMode, gpu, 0), code(pynvml.nvmlDeviceGetGpuInstanceById, gpu, 1))
"""


@root_only
def test_an_ordinary_user_may_look_and_not_touch(make: Make) -> None:
    emulator = make()
    for parent in (emulator.directory.parent, emulator.directory):
        parent.chmod(0o755)
    assert run_python(emulator, AS_NOBODY).split() == ["0", *[str(NO_PERMISSION)] * 3]


def test_nvml_list_agrees_with_what_the_control_side_shows(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:2,a30-24gb")
    with open_nvml(emulator) as nvml:
        for gpu, profile, start, size in ((0, 9, 4, 4), (0, 15, 0, 2), (2, 21, 3, 1)):
            nvml.fill(nvml.create(profile, start, size, gpu))
        nvml.create(19, 2, 1)  # without a compute instance
    done = nvml_list(emulator)
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    assert listed["driver_version"] == "580.95.05"
    shown = emulator.show()
    for gpu_listed, gpu_shown in zip(listed["gpus"], shown.gpus, strict=True):
        assert (gpu_listed["uuid"], gpu_listed["minor"]) == (gpu_shown.uuid, gpu_shown.minor)
        assert gpu_listed["pci_bus_id"] == gpu_shown.bus_id
        got = {
            (g["gi_id"], g["profile_id"], g["start"], g["size"], tuple(c["mig_uuid"] for c in g["compute_instances"]))
            for g in gpu_listed["gpu_instances"]
        }
        assert got == {
            (g.gi_id, g.profile_id, g.start, g.size, tuple(c.mig_uuid for c in g.compute_instances))
            for g in gpu_shown.gpu_instances
        }
    assert len(listed["mig_devices"]) == 3


def test_nvml_list_has_clear_exit_codes(make: Make, tmp_path: Path) -> None:
    emulator = make()
    assert nvml_list(emulator, "--watch", "never").returncode == 1
    shutil.rmtree(emulator.directory / "state")
    done = nvml_list(emulator)
    assert (done.returncode, done.stdout) == (3, "")
    assert "Driver Not Loaded" in done.stderr
    lister = str(find_library().parent / "nvml-list")
    empty = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    assert subprocess.run([lister], env=empty, capture_output=True, check=False).returncode == 2


def test_instances_by_a_stranger_are_there_and_marked(make: Make) -> None:
    emulator = make()
    gi = emulator.foreign(0, "2g.20gb", 2)
    [seen] = emulator.show().gpus[0].gpu_instances
    assert (seen.gi_id, seen.start, seen.foreign, len(seen.compute_instances)) == (gi, 2, True, 1)
    assert emulator.trace() == []
    with open_nvml(emulator) as nvml:
        assert len(nvml.mig_devices()) == 1
        assert code_of(nvml.create, 19, 2, 1) == 23


OWN_NODE = """
import os, sys, pynvml
from dynamig.testing.emulator import Emulator
pynvml.nvmlInit(); pynvml.nvmlShutdown()
Emulator(sys.argv[2]).init("h100-80gb-sxm5")  # everything is imported while the interpreter's files can be read
os.setgid(65534); os.setuid(65534)
Emulator(sys.argv[1]).init("h100-80gb-sxm5")
os.environ["DYNAMIG_EMULATOR_DIR"] = sys.argv[1]
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
pynvml.nvmlGpuInstanceCreateComputeInstance(pynvml.nvmlDeviceCreateGpuInstance(gpu, 9), 2)
print(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)))
print(os.path.isfile(sys.argv[1] + "/dev/nvidia0"))
pynvml.nvmlDeviceSetPersistenceMode(gpu, 1)
print(pynvml.nvmlDeviceSetMigMode(gpu, 1))
"""


@root_only
def test_an_ordinary_user_can_have_a_node_of_plain_files(make: Make) -> None:
    other = make()
    home = other.directory.parent / "nobody"
    home.mkdir()
    os.chown(home, 65534, 65534)
    for parent in (home.parent, home):
        parent.chmod(0o755)
    said = run_python(other, OWN_NODE, str(home / "node"), str(home.parent / "root")).splitlines()
    assert said == ["NVIDIA H100 80GB HBM3 MIG 3g.40gb", "True", "0"]
