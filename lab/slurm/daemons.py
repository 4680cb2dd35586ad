"""Slurm's daemons as data, and the files and accounts that they need.

    control  munged-control  slurmctld  slurmrestd      n1  munged-n1  slurmd-n1

Each runs under its own account, as packages of distributions have it: munged as munge, slurmctld as slurm (it gives
root up itself), slurmrestd as a user without any rights (it refuses root and slurm), slurmd as root.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from dynamig.errors import Unavailable
from lab import components, machines, pki
from lab.daemons import HOST_VIEW, Daemon
from lab.probes import MungeProbe, SlurmctldProbe, SlurmdProbe, SlurmrestdProbe
from lab.slurm import clients, config
from lab.spec import CONTROL, LabSpec, Layout

DEPLOY = Path(__file__).resolve().parents[2] / "deploy/slurm"
GROUND = Path(__file__).parent / "ground.sh"
HOOKS = ("prolog.d", "epilog.d")
JOB_SUBMIT = "job_submit.lua"
PLACEHOLDER = "00-lab"
"""A script that does nothing. slurmd fails the prolog, and drains the node, if its folder has no script at all."""

MUNGE_KEY_BYTES, JWT_KEY_BYTES = 128, 32


def ground_name(machine: str) -> str:
    return f"slurm-ground-{machine}"


def resumed_name(node: str) -> str:
    return f"slurm-resumed-{node}"


def etc(layout: Layout, machine: str) -> Path:
    return layout.machine(machine) / config.FOLDER / "etc"


def fill(layout: Layout, spec: LabSpec) -> None:
    """Configuration, keys and the site's scripts are in every machine's folder."""
    texts = {**config.files(layout, spec), JOB_SUBMIT: (DEPLOY / JOB_SUBMIT).read_text()}
    munge_key = _key(layout.pki / "munge.key", MUNGE_KEY_BYTES)
    for machine in (CONTROL, *(node.name for node in spec.nodes)):
        folder = etc(layout, machine)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            pki.write(folder / name, text)
            (folder / name).chmod(0o644)  # everybody who submits a job reads them
        _place_key(folder.parent / "munge.key", munge_key)
        _client(layout.machine(machine))
        for name in HOOKS:
            _copy_scripts(Path(spec.slurm_hooks) / name if spec.slurm_hooks else None, folder / name)
        if spec.slurm_hooks:
            _copy_script((Path(spec.slurm_hooks) / config.TASK_PROLOG).read_text(), folder / config.TASK_PROLOG)
    _place_key(etc(layout, CONTROL).parent / "jwt.key", _key(layout.pki / "jwt.key", JWT_KEY_BYTES))


def _client(state: Path) -> None:
    """What the scripts of `deploy/slurm` need of dynamig in a machine: the command and its socket.

    A machine has no Python of ours, so the command runs in a view of the host's files (machine.sh, HOST_VIEW).
    """
    command = state / config.FOLDER / "dynamig"
    command.write_text(f'#!/bin/sh\nexec chroot {HOST_VIEW} {components.DYNAMIG} "$@"\n')
    command.chmod(0o755)
    settings = {"DYNAMIG": command, "DYNAMIG_SOCKET": components.DriverFiles(state).control_socket}
    pki.write(state / config.FOLDER / "slurm.env", "".join(f"{k}={v}\n" for k, v in settings.items()))


def _key(path: Path, size: int) -> bytes:
    """Random bytes, made once, in a folder that no machine sees."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(size))
    return path.read_bytes()


def _place_key(path: Path, key: bytes) -> None:
    """The machine's copy; `ground.sh` gives it to the daemon's account."""
    if not path.exists() or path.read_bytes() != key:
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(key)


def _copy_scripts(source: Path | None, target: Path) -> None:
    """`target` holds the scripts of `source`, executable, and no others. slurmd looks there anew for every job."""
    target.mkdir(exist_ok=True)
    scripts = {path.name: path.read_text() for path in source.iterdir()} if source is not None else {}
    scripts[PLACEHOLDER] = "#!/bin/sh\nexit 0\n"
    for stale in [path for path in target.iterdir() if path.name not in scripts]:
        stale.unlink()
    for name, text in scripts.items():
        _copy_script(text, target / name)


def _copy_script(text: str, target: Path) -> None:
    temporary = target.parent.parent / f".{target.name}.new"  # outside: slurmd runs whatever lies in the folder
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.rename(target)


def prepare_ground(layout: Layout, machine: str) -> None:
    """The machine has accounts, links and owners as Slurm needs them (`ground.sh`)."""
    machines.run_inside(layout, machine, ["sh", "-c", GROUND.read_text(), "ground", str(layout.machine(machine))])


def resume(layout: Layout, node: str) -> None:
    """The node is not drained: slurmd does that when a prolog or epilog fails, and only a person takes it back.

    Raises Unavailable also where slurmctld says nothing of the node: without a controller scontrol succeeds, silently.
    """
    if not _is_drained(layout, node):
        return
    try:
        clients.run_as(layout, "root", ("scontrol", "update", f"nodename={node}", "state=resume"))
    except Unavailable:  # Slurm refuses it for a node that is not drained: the bridge ends drains of its own meanwhile
        if _is_drained(layout, node):
            raise


def _is_drained(layout: Layout, node: str) -> bool:
    nodes = json.loads(clients.run_as(layout, "root", ("scontrol", "--json", "show", "node", node)))["nodes"]
    if not nodes:
        raise Unavailable("NO_ANSWER", f"slurmctld says nothing of node {node}", "is it running?")
    return "DRAIN" in nodes[0]["state"]


def control_daemons(layout: Layout, spec: LabSpec) -> tuple[Daemon, ...]:
    return (_munged(layout, CONTROL), _slurmctld(layout, spec), _slurmrestd(layout, spec))


def node_daemons(layout: Layout, spec: LabSpec, node: str) -> tuple[Daemon, ...]:
    return (_munged(layout, node), _slurmd(layout, spec, node))


def _munged(layout: Layout, machine: str) -> Daemon:
    key = layout.machine(machine) / config.FOLDER / "munge.key"
    return Daemon(
        name=f"munged-{machine}",
        argv=(*_as("munge"), "/usr/sbin/munged", "--foreground", f"--key-file={key}"),
        probe=MungeProbe(),
        machine=machine,
        needs=frozenset({ground_name(machine)}),
        files=(key,),
    )


def _slurmctld(layout: Layout, spec: LabSpec) -> Daemon:
    return Daemon(
        name="slurmctld",
        argv=("/usr/sbin/slurmctld", "-D"),
        probe=SlurmctldProbe(),
        machine=CONTROL,
        needs=frozenset({f"munged-{CONTROL}"}),
        files=_read(layout, CONTROL, (config.SLURM_CONF, config.GRES_CONF)),
        ports=(spec.ports.slurmctld,),
        grace_s=20,  # it saves its state
    )


def _slurmrestd(layout: Layout, spec: LabSpec) -> Daemon:
    listen = f"127.0.0.1:{spec.ports.slurmrestd}"
    return Daemon(
        name="slurmrestd",
        argv=(*_as("slurmrest"), "/usr/sbin/slurmrestd", "-a", "rest_auth/jwt", "-s", "openapi/slurmctld", listen),
        probe=SlurmrestdProbe(spec.ports.slurmrestd),
        machine=CONTROL,
        needs=frozenset({"slurmctld"}),
        env=(("SLURM_JWT", "daemon"),),
        files=_read(layout, CONTROL, (config.SLURM_CONF,)),
        ports=(spec.ports.slurmrestd,),
    )


def _slurmd(layout: Layout, spec: LabSpec, node: str) -> Daemon:
    index = spec.index(node)
    gpus = {f"gpus-{node}"} if spec.with_driver else set[str]()
    gres = config.node_gres(spec.nodes[index]) if spec.with_driver else ""
    return Daemon(
        name=f"slurmd-{node}",
        argv=("/usr/sbin/slurmd", "-D", "-N", node),
        probe=SlurmdProbe(node, gres),
        machine=node,
        needs=frozenset({f"munged-{node}", resumed_name(node), *gpus}),
        files=_read(layout, node, (config.SLURM_CONF, config.GRES_CONF, config.CGROUP_CONF)),
        ports=(spec.ports.slurmd(index),),
    )


def _as(account: str) -> tuple[str, ...]:
    return ("/usr/bin/setpriv", f"--reuid={account}", f"--regid={account}", "--clear-groups", "--")


def _read(layout: Layout, machine: str, names: Iterable[str]) -> tuple[Path, ...]:
    return tuple(etc(layout, machine) / name for name in names)
