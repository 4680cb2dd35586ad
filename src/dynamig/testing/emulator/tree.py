"""What the kernel driver shows beside NVML: /proc, /dev and /sys of an emulated node, as far as clients read them.

Written once by `init`; what follows the instances is kept by the library (emulator/src/tree.c). The list of files
and their readers is in emulator/README.md.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dynamig.testing.emulator.layout import MAX_GPUS

NVIDIA_MAJOR = 195
_CAPS_MODE = {"config": 0o400, "monitor": 0o444}
_CAPS_MINOR = {"config": 1, "monitor": 2}


@dataclass(frozen=True, slots=True)
class TreeGpu:
    """What the tree tells of one GPU. `bdf` as sysfs spells it; `device`: PCI device << 16 | vendor."""

    bdf: str
    minor: int
    uuid: str
    product: str
    device: int
    numa_node: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Majors:
    """Device numbers that nobody on this host uses, so that no node leads to a real driver by accident."""

    caps: int
    uvm: int

    @staticmethod
    def free() -> Majors:
        used = set(_majors_in_use(Path("/proc/devices").read_text()))
        free = [major for major in range(511, 383, -1) if major not in used]
        return Majors(caps=free[0], uvm=free[1])


def _majors_in_use(proc_devices: str) -> Iterator[int]:
    for line in proc_devices.splitlines():
        if (first := line.split(maxsplit=1)) and first[0].isdigit():
            yield int(first[0])


def can_make_devices(directory: Path, major: int) -> bool:
    """Whether this process may make character devices here; without, plain files stand in for them."""
    probe = directory / ".probe"
    try:
        os.mknod(probe, stat.S_IFCHR | 0o600, os.makedev(major, 0))
    except PermissionError:
        return False
    probe.unlink()
    return True


def _first_minor(gpu: int, gis: int, cis: int) -> int:
    """Of a GPU's capabilities; of that after the last one: what follows the table."""
    return 3 + gpu * gis * (1 + cis)


def capability_minors(gis: int, cis: int) -> Iterator[str]:
    """Lines of mig-minors: every combination, not only the living ones (kernel-open/nvidia/nv-caps.c)."""
    yield "config 1"
    yield "monitor 2"
    for gpu in range(MAX_GPUS):
        for gi in range(gis):
            minor = _first_minor(gpu, gis, cis) + gi * (1 + cis)
            yield f"gpu{gpu}/gi{gi}/access {minor}"
            yield from (f"gpu{gpu}/gi{gi}/ci{ci}/access {minor + 1 + ci}" for ci in range(cis))


def write_proc(
    root: Path, gpus: list[TreeGpu], majors: Majors, *, driver_version: str, boot_id: str, gis: int, cis: int
) -> None:
    driver = root / "driver/nvidia"
    _text(driver / "version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver_version}  (dynamig emulator)\n")
    _text(driver / "params", "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n")
    for name, minor in _CAPS_MINOR.items():
        path = driver / "capabilities/mig" / name
        _text(path, f"DeviceFileMinor: {minor}\nDeviceFileMode: {_CAPS_MODE[name]}\nDeviceFileModify: 1\n")
        path.chmod(_CAPS_MODE[name])
    for gpu in gpus:
        (driver / f"capabilities/gpu{gpu.minor}/mig").mkdir(parents=True)
        _text(driver / "gpus" / gpu.bdf / "information", _information(gpu))
    _text(root / "driver/nvidia-caps/mig-minors", "\n".join(capability_minors(gis, cis)) + "\n")
    _text(root / "driver/nvidia-caps/sys-minors", f"fabric-imex-mgmt {_first_minor(MAX_GPUS, gis, cis)}\n")
    _text(root / "devices", _devices(majors))
    _text(
        root / "modules",
        "nvidia_uvm 1544192 0 - Live 0x0000000000000000\nnvidia 56860672 1 nvidia_uvm, Live 0x0000000000000000\n",
    )
    _text(root / "sys/kernel/random/boot_id", boot_id + "\n")


def new_boot_id() -> str:
    return str(uuid.uuid4())


def _information(gpu: TreeGpu) -> str:
    fields = {
        "Model": gpu.product,
        "GPU UUID": gpu.uuid,
        "Bus Type": "PCIe",
        "Bus Location": gpu.bdf,
        "Device Minor": gpu.minor,
        "GPU Excluded": "No",
    }
    return "".join(f"{name}: \t {value}\n" for name, value in fields.items())


def _devices(majors: Majors) -> str:
    numbers = [(1, "mem"), (NVIDIA_MAJOR, "nvidia"), (NVIDIA_MAJOR, "nvidia-modeset"), (NVIDIA_MAJOR, "nvidiactl")]
    numbers += sorted([(majors.caps, "nvidia-caps"), (majors.uvm, "nvidia-uvm")])
    lines = "".join(f"{number:3} {name}\n" for number, name in numbers)
    return f"Character devices:\n{lines}\nBlock devices:\n259 blkext\n"


def write_dev(root: Path, gpus: list[TreeGpu], majors: Majors, *, character: bool) -> None:
    """GPU and control nodes, and the two MIG capabilities; those of instances come with the instances."""
    (root / "nvidia-caps").mkdir(parents=True)
    numbers = {f"nvidia{gpu.minor}": (NVIDIA_MAJOR, gpu.minor, 0o666) for gpu in gpus}
    numbers |= {"nvidiactl": (NVIDIA_MAJOR, 255, 0o666), "nvidia-modeset": (NVIDIA_MAJOR, 254, 0o666)}
    numbers |= {"nvidia-uvm": (majors.uvm, 0, 0o666), "nvidia-uvm-tools": (majors.uvm, 1, 0o666)}
    for name, minor in _CAPS_MINOR.items():
        numbers[f"nvidia-caps/nvidia-cap{minor}"] = (majors.caps, minor, _CAPS_MODE[name])
    for name, (major, minor, mode) in numbers.items():
        kind = stat.S_IFCHR if character else stat.S_IFREG
        os.mknod(root / name, kind | mode, os.makedev(major, minor) if character else 0)
        (root / name).chmod(mode)


def write_sys(root: Path, gpus: list[TreeGpu]) -> None:
    """PCI devices as links into /sys/devices, so that the root complex can be read from where the link leads."""
    listing = root / "bus/pci/devices"
    listing.mkdir(parents=True)
    cpus = f"0-{(os.cpu_count() or 1) - 1}\n"
    for gpu in gpus:
        domain, bus = gpu.bdf.split(":")[:2]
        real = root / f"devices/pci{domain}:{int(bus, 16) - 1:02x}/{domain}:{int(bus, 16) - 1:02x}:01.0" / gpu.bdf
        real.mkdir(parents=True)
        (listing / gpu.bdf).symlink_to(os.path.relpath(real, listing))
        (root / "bus/pci/drivers/nvidia").mkdir(parents=True, exist_ok=True)
        (root / "bus/pci/drivers/nvidia" / gpu.bdf).symlink_to(os.path.relpath(real, root / "bus/pci/drivers/nvidia"))
        (real / "driver").symlink_to(os.path.relpath(root / "bus/pci/drivers/nvidia", real))
        for name, content in _pci_files(gpu, cpus).items():
            (real / name).write_text(content)


def _pci_files(gpu: TreeGpu, cpus: str) -> dict[str, str]:
    prefetchable = 0x20_0000_0000
    bars = [(0xA000_0000, 0xA0FF_FFFF, 0x40200), (prefetchable, prefetchable + (gpu.memory_mib << 20) - 1, 0x14220C)]
    return {
        "vendor": "0x10de\n",
        "device": f"0x{gpu.device >> 16:04x}\n",
        "class": "0x030200\n",
        "subsystem_vendor": "0x10de\n",
        "subsystem_device": f"0x{gpu.device >> 16:04x}\n",
        "numa_node": f"{gpu.numa_node}\n",
        "local_cpulist": cpus,
        "resource": "".join(f"0x{a:016x} 0x{b:016x} 0x{c:016x}\n" for a, b, c in bars),
    }


def _text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
