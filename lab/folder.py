"""The lab's folder: made, filled with everything that daemons read, and removed.

A folder is a lab's if `lab.json` is in it. That file is the first to come and the last to go, so an interrupted `up`
or `down` leaves a folder that both can continue with, and no other folder is ever removed.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from dynamig.errors import Refused
from lab import bridge, cgroups, components, nodes, pki
from lab.slurm import daemons as slurm
from lab.spec import CONTROL, LabSpec, Layout, parse_spec

KEPT_BY_DOWN = "log"
CONTROL_CLIENTS = ("controller-manager", "scheduler")


def read_spec(layout: Layout) -> LabSpec | None:
    """None if there is no lab in this folder. Raises Refused if the folder holds something else."""
    if layout.spec.exists():
        return parse_spec(layout.spec.read_text(), layout.spec)
    if layout.root.exists() and (others := [p.name for p in layout.root.iterdir() if p.name != KEPT_BY_DOWN]):
        raise Refused(
            "NOT_A_LAB", f"{layout.root} holds {', '.join(sorted(others)[:5])} and no lab.json", "use another --dir"
        )
    return None


def claim(layout: Layout, spec: LabSpec) -> None:
    """The folder is this lab's."""
    layout.root.mkdir(parents=True, exist_ok=True)
    pki.write(layout.spec, spec.to_json())


def fill(layout: Layout, spec: LabSpec) -> None:
    """All folders, keys and configuration files are there, as this version of the lab writes them."""
    names = [node.name for node in spec.nodes]
    for folder in _folders(layout, names):
        folder.mkdir(parents=True, exist_ok=True)
    for machine in (CONTROL, *names):
        _hosts(layout, machine, names)
    pki.ensure(layout, names)
    _kubeconfigs(layout, spec)
    for name in names:
        for path, text in nodes.files(layout, spec, name).items():
            pki.write(path, text)
        components.write_configuration(layout, spec, name)
        components.copy_programs(components.DriverFiles(layout.node(name)))
    if spec.with_slurm:
        slurm.fill(layout, spec)
    if spec.lends:
        bridge.write_configuration(layout, spec)
    cgroups.ensure(layout, names)


def _folders(layout: Layout, names: Sequence[str]) -> list[Path]:
    folders = [layout.records, layout.logs]
    folders += [layout.machine(m) / "rootfs" / part for m in (CONTROL, *names) for part in ("upper/etc", "work", "mnt")]
    return folders + [layout.node(name) / part for name in names for part in nodes.FOLDERS]


def _hosts(layout: Layout, machine: str, names: Sequence[str]) -> None:
    """Inside every machine a node's name is 127.0.0.1, where its kubelet and slurmd listen."""
    path = layout.machine(machine) / "rootfs/upper/etc/hosts"
    if not path.exists():
        path.write_text(f"127.0.0.1 localhost {socket.gethostname()} {' '.join(names)}\n")


def _kubeconfigs(layout: Layout, spec: LabSpec) -> None:
    server, authority = f"https://127.0.0.1:{spec.ports.apiserver}", layout.pki / "ca.crt"
    names = [node.name for node in spec.nodes]
    by_path = {cert.cert: cert for cert in pki.certificates(layout, names)}
    wanted = {layout.admin_kubeconfig: layout.pki / "admin.crt"}
    wanted |= {layout.control / f"{c}.kubeconfig": pki.control_folder(layout) / f"{c}.crt" for c in CONTROL_CLIENTS}
    wanted |= {layout.node(n) / "kubelet.kubeconfig": pki.node_folder(layout, n) / "kubelet.crt" for n in names}
    for path, cert in wanted.items():
        pki.write(path, pki.kubeconfig(server, authority, pki.certificate_user(by_path[cert])))


def mounted_below(mountinfo: str, root: Path) -> list[str]:
    """Mount points at or below `root` in a /proc/self/mountinfo."""
    points = [line.split()[4] for line in mountinfo.splitlines()]
    return [point for point in points if Path(point).is_relative_to(root)]


def remove(layout: Layout, *, keep_logs: bool) -> None:
    """Nothing of the lab is left on disk, its logs excepted if they are to be kept.

    Raises: Refused while something is mounted inside (the lab itself mounts nothing that the host can see).
    """
    if points := mounted_below(Path("/proc/self/mountinfo").read_text(), layout.root):
        raise Refused("MOUNTED", f"mounted inside the lab's folder: {', '.join(points)}", "unmount it")
    for entry in layout.root.iterdir():
        if entry == layout.spec or (keep_logs and entry == layout.logs):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    layout.spec.unlink(missing_ok=True)
    if not keep_logs:
        layout.root.rmdir()
