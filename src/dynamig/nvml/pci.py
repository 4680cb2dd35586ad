"""Where a GPU sits, from sysfs: NUMA node and PCIe root. What sysfs does not tell is None, never a guess."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = re.compile(r"/(pci[0-9a-f]{4}:[0-9a-f]{2})(/|$)")


def numa_node(bus_id: str, sys_root: Path) -> int | None:
    """The kernel writes -1 where the firmware did not say."""
    try:
        number = int((_device(bus_id, sys_root) / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


def pcie_root(bus_id: str, sys_root: Path) -> str | None:
    """For example `pci0000:00`: the root complex in the device's real path (deviceattribute library of KEP-4381)."""
    found = _ROOT.search(str(_device(bus_id, sys_root).resolve()))
    return found.group(1) if found else None


def _device(bus_id: str, sys_root: Path) -> Path:
    return sys_root / "bus/pci/devices" / bus_id
