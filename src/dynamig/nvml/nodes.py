"""Device nodes and capability numbers, as the kernel driver tells of them under /proc and /dev.

Minors of capabilities are read from /proc/driver/nvidia/capabilities, never computed (MIG.md section 10 has the
formula that one driver uses). `proc_root` and `dev_root` let an emulated or a containerised tree stand in.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from dynamig.errors import Unavailable
from dynamig.mig import CiId, GiId
from dynamig.protocol.gpus import DeviceNode

CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


@dataclass(frozen=True, slots=True)
class DeviceTree:
    """The trees in which device nodes (`dev_root`/dev) and the kernel driver's files (`proc_root`) are found."""

    dev_root: Path = Path("/")
    proc_root: Path = Path("/proc")

    def boot_id(self) -> str:
        """Changes with each boot, and with it every instance is gone (MIG user guide)."""
        return self._read(self.proc_root / "sys/kernel/random/boot_id").strip()

    def gpu_nodes(self, minor: int) -> tuple[DeviceNode, ...]:
        """The GPU's own node and the control nodes that any CUDA process needs."""
        return tuple(self._node(f"/dev/{name}") for name in (f"nvidia{minor}", *CONTROL_NODES))

    def capability_nodes(self, minor: int, gi: GiId, ci: CiId) -> tuple[DeviceNode, DeviceNode]:
        """The two nodes that open exactly this GPU instance and this compute instance."""
        base = self.proc_root / f"driver/nvidia/capabilities/gpu{minor}/mig/gi{gi}"
        return self._capability(base / "access"), self._capability(base / f"ci{ci}" / "access")

    def _capability(self, access: Path) -> DeviceNode:
        fields = dict(line.split(":", 1) for line in self._read(access).splitlines() if ":" in line)
        try:
            number = int(fields["DeviceFileMinor"])
        except (KeyError, ValueError):
            raise Unavailable("DEVICE_NODE_MISSING", f"{access} has no DeviceFileMinor", _NODES) from None
        return self._node(f"/dev/nvidia-caps/nvidia-cap{number}")

    def _node(self, path: str) -> DeviceNode:
        host = self.dev_root / path.lstrip("/")
        try:
            found = os.stat(host)
        except OSError as error:
            raise Unavailable("DEVICE_NODE_MISSING", f"device node {host}: {error.strerror}", _NODES) from error
        if not stat.S_ISCHR(found.st_mode):
            raise Unavailable("DEVICE_NODE_MISSING", f"{host} is not a character device", _NODES)
        return DeviceNode(path, str(host), os.major(found.st_rdev), os.minor(found.st_rdev))

    @staticmethod
    def _read(path: Path) -> str:
        try:
            return path.read_text()
        except OSError as error:
            raise Unavailable("DEVICE_NODE_MISSING", f"{path}: {error.strerror}", _NODES) from error


_NODES = "is the kernel driver loaded? `nvidia-modprobe -u -c 0` makes the nodes; prepare is tried again"
