"""Cgroups of the nodes' pods: one folder per lab and node in each hierarchy, made before and removed after.

On a machine with cgroup v1 every controller has a tree of its own; with v2 there is one, where a controller must be
switched on from the root down before a child can use it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dynamig.errors import Unavailable
from lab.spec import Layout

MOUNTS = Path("/proc/self/mounts")
REMOVAL_S = 10.0


def parent_path(layout: Layout, node: str) -> str:
    """What kubelet calls cgroupRoot: a path below every hierarchy's mount point."""
    return f"/{layout.cgroup}/{node}"


def parse_hierarchies(mounts: str) -> tuple[Path, ...]:
    """Mount points of all cgroup hierarchies in a /proc/mounts, each tree once."""
    points = [line.split()[1] for line in mounts.splitlines() if line.split()[2] in ("cgroup", "cgroup2")]
    return tuple(Path(point) for point in dict.fromkeys(points))


def hierarchies() -> tuple[Path, ...]:
    return parse_hierarchies(MOUNTS.read_text())


def ensure(layout: Layout, nodes: Iterable[str]) -> None:
    """Every node has its folder in every hierarchy, with all controllers that its parent has."""
    trees = hierarchies()
    for hierarchy in trees:
        for node in nodes:
            folder = hierarchy
            for part in (layout.cgroup, node):
                if len(trees) == 1:  # beside trees of v1, v2 has no controller that a kubelet looks for
                    _pass_down(folder)
                folder /= part
                folder.mkdir(exist_ok=True)
                _fill_cpuset(folder)


def remove(layout: Layout) -> None:
    """No cgroup of this lab is left. Raises Unavailable if a process still sits in one."""
    for hierarchy in hierarchies():
        top = hierarchy / layout.cgroup
        deadline = time.monotonic() + REMOVAL_S
        while top.exists():
            for folder, _, _ in os.walk(top, topdown=False):
                with suppress(OSError):  # busy while its last process is being reaped; asked again below
                    os.rmdir(folder)
            if top.exists() and time.monotonic() > deadline:
                raise Unavailable("CGROUP_BUSY", f"{top} cannot be removed", f"see cgroup.procs below {top}")
            time.sleep(0.05)


def _pass_down(folder: Path) -> None:
    """cgroup v2 only: children of `folder` get its controllers."""
    available = folder / "cgroup.controllers"
    if available.exists() and (names := available.read_text().split()):
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in names))


def _fill_cpuset(folder: Path) -> None:
    """cgroup v1 only: a new cpuset is empty and would take no process."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = folder / name
        if file.exists() and not (folder / "cgroup.controllers").exists() and not file.read_text().strip():
            file.write_text((folder.parent / name).read_text())
