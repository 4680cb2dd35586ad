"""What a lab is made of: names, ports, folders. Pure; the file `lab.json` in the lab's folder holds it.

Ports come in one block of 100 per lab:

    base + 0  kube-apiserver          base + 5  slurmctld
    base + 1  etcd, clients           base + 6  slurmrestd
    base + 2  etcd, peers             base + 7  dynamig's bridge: readiness, metrics
    base + 3  kube-controller-manager base + 10 + 4 i   kubelet of node i
    base + 4  kube-scheduler          base + 11 + 4 i   kubelet's health of node i
                                      base + 12 + 4 i   slurmd of node i

Everything listens on 127.0.0.1 only. Default blocks lie in 20000-29999, below the ports that Linux gives to outgoing
connections (32768 and up); the first one tried follows from the folder, so that a lab finds its ports again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dynamig.errors import Refused

BLOCK = 100
FIRST_BASE, LAST_BASE = 20_000, 29_900
MAX_NODES = (BLOCK - 10) // 4
SOCKET_PATH_MAX = 107
"""Bytes of a unix socket's path: sun_path of unix(7), 108 with the closing zero."""

LONGEST_SOCKETS = (
    "kubelet/plugins_registry/gpu.nvidia.com-reg.sock",
    "kubelet/plugins/gpu.nvidia.com/dra.sock",
    "kubelet/pod-resources/kubelet.sock",
    "run/containerd.sock.ttrpc",
)
"""Sockets below a node's folder."""

NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")
GPUS = re.compile(r"[a-z0-9][a-z0-9.-]*:[1-9][0-9]*(,[a-z0-9][a-z0-9.-]*:[1-9][0-9]*)*")
PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/+@-]*")
"""overlayfs splits its options at commas and colons, scripts and configuration files at blanks."""

CONTROL = "control"
"""The machine of the control plane; not a node's name."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """`gpus` is what `dynamig emulator init --gpus` takes: `model:count,...`."""

    name: str
    gpus: str

    @property
    def models(self) -> tuple[tuple[str, int], ...]:
        """(model, number) in the order of the GPUs' minors."""
        parts = (part.rpartition(":") for part in self.gpus.split(","))
        return tuple((model, int(number)) for model, _, number in parts)

    @property
    def gpu_count(self) -> int:
        return sum(number for _, number in self.models)


@dataclass(frozen=True, slots=True)
class LabSpec:
    """`slurm_hooks`: a folder whose `prolog.d` and `epilog.d` hold the scripts that Slurm runs on the nodes around
    every job, like `deploy/slurm`. With it a node's driver takes part in Slurm: it lends GPUs, and holds no claim by
    itself. None: prolog and epilog do nothing. `notebook`: nodes have the image of `notebook.py`."""

    nodes: tuple[NodeSpec, ...]
    base_port: int
    with_driver: bool = True
    with_slurm: bool = True
    slurm_hooks: str | None = None
    notebook: bool = False

    @property
    def lends(self) -> bool:
        """Drivers lend GPUs to native jobs of Slurm."""
        return self.with_slurm and self.with_driver and self.slurm_hooks is not None

    def index(self, node: str) -> int:
        return [n.name for n in self.nodes].index(node)

    @property
    def ports(self) -> Ports:
        return Ports(self.base_port)

    def pod_subnet(self, node: str) -> str:
        """A /24 per node, another 10.x for (nearly) every block of ports, outside 10.96/16 of the services."""
        return f"10.{128 + self.base_port // BLOCK % 100}.{self.index(node) + 1}.0/24"

    def to_json(self) -> str:
        return json.dumps({"v": 1, **asdict(self)}, indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class Ports:
    base: int

    @property
    def apiserver(self) -> int:
        return self.base

    @property
    def etcd(self) -> int:
        return self.base + 1

    @property
    def etcd_peer(self) -> int:
        return self.base + 2

    @property
    def controller_manager(self) -> int:
        return self.base + 3

    @property
    def scheduler(self) -> int:
        return self.base + 4

    @property
    def slurmctld(self) -> int:
        return self.base + 5

    @property
    def slurmrestd(self) -> int:
        return self.base + 6

    @property
    def bridge(self) -> int:
        return self.base + 7

    def kubelet(self, index: int) -> int:
        return self.base + 10 + 4 * index

    def kubelet_health(self, index: int) -> int:
        return self.base + 11 + 4 * index

    def slurmd(self, index: int) -> int:
        return self.base + 12 + 4 * index

    def all(self, nodes: int) -> tuple[int, ...]:
        """Every port that a lab of so many nodes listens on."""
        per_node = [port for i in range(nodes) for port in (self.kubelet(i), self.kubelet_health(i), self.slurmd(i))]
        return (*range(self.base, self.base + 8), *per_node)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are below the lab's folder (`root` is absolute and resolved)."""

    root: Path

    @property
    def id(self) -> str:
        """Short name of this folder, for things outside of it (cgroups, locks)."""
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:10]

    @property
    def spec(self) -> Path:
        return self.root / "lab.json"

    @property
    def records(self) -> Path:
        return self.root / "run"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def pki(self) -> Path:
        """Keys of the two authorities and of the administrator: never visible inside a machine."""
        return self.root / "pki"

    @property
    def admin_kubeconfig(self) -> Path:
        return self.root / "admin.kubeconfig"

    @property
    def control(self) -> Path:
        return self.root / "control"

    def node(self, name: str) -> Path:
        return self.root / "nodes" / name

    def machine(self, name: str) -> Path:
        return self.control if name == CONTROL else self.node(name)

    def record(self, daemon: str) -> Path:
        return self.records / f"{daemon}.json"

    def log(self, daemon: str) -> Path:
        return self.logs / f"{daemon}.log"

    @property
    def cgroup(self) -> str:
        """Parent of the nodes' cgroups, below each hierarchy's mount point."""
        return f"dynamig-lab-{self.id}"


def spec_problems(nodes: Sequence[NodeSpec], base_port: int, root: Path) -> list[str]:
    """Everything that is wrong with a request for a lab, in words."""
    names = [node.name for node in nodes]
    problems = [f"node {n!r}: use lower-case letters, digits and -" for n in names if not NODE_NAME.fullmatch(n)]
    problems += [f"node {n!r}: the name is taken" for n in sorted(set(names)) if names.count(n) > 1 or n == CONTROL]
    problems += [
        f"--gpus {node.gpus!r} of {node.name}: expected model:count[,model:count], like h100-80gb-sxm5:2"
        for node in nodes
        if not GPUS.fullmatch(node.gpus)
    ]
    if not 1 <= len(nodes) <= MAX_NODES:
        problems.append(f"{len(nodes)} nodes: between 1 and {MAX_NODES} fit into a block of ports")
    if not 1024 <= base_port <= 65_535 - BLOCK:
        problems.append(f"--base-port {base_port}: expected 1024 to {65_535 - BLOCK}")
    return problems + folder_problems(names, root)


def folder_problems(names: Iterable[str], root: Path) -> list[str]:
    problems = []
    if not PLAIN_PATH.fullmatch(str(root)):
        problems.append(f"folder {root}: only letters, digits and . _ + @ - are possible in its path")
    sockets = [str(Layout(root).node(name) / socket) for name in names for socket in LONGEST_SOCKETS]
    longest = max(sockets, key=len, default="")
    if (excess := len(longest) - SOCKET_PATH_MAX) > 0:
        problems.append(
            f"folder {root} is {excess} bytes too long: {longest} would have {len(longest)} bytes and a unix"
            f" socket's path has {SOCKET_PATH_MAX}; use --dir with a shorter one"
        )
    return problems


def parse_spec(text: str, where: Path) -> LabSpec:
    """Raises: Refused for a file that this version of the lab did not write."""
    try:
        data = json.loads(text)
        if data["v"] != 1:
            raise Refused("NEWER_LAB", f"{where} has version {data['v']}", "use the version that made it")
        nodes = tuple(NodeSpec(node["name"], node["gpus"]) for node in data["nodes"])
        return LabSpec(
            nodes,
            int(data["base_port"]),
            with_driver=bool(data["with_driver"]),
            with_slurm=bool(data.get("with_slurm", True)),  # a lab from before Slurm gets it with its next `up`
            slurm_hooks=data.get("slurm_hooks"),
            notebook=bool(data.get("notebook", False)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Refused("BAD_LAB_FILE", f"{where}: {error!r}", "`lab down` removes the lab") from error


def gpus_per_node(names: Sequence[str], options: Sequence[str], default: str) -> tuple[NodeSpec, ...]:
    """Nodes from `--gpus` options: `MODEL:N` for all, `NODE=MODEL:N` for one. Raises Refused for an unknown node."""
    common, special = default, dict[str, str]()
    for option in options:
        node, found, gpus = option.rpartition("=")
        if not found:
            common = gpus
        elif node in names:
            special[node] = gpus
        else:
            raise Refused("UNKNOWN_NODE", f"--gpus {option}: no node {node!r}", f"nodes: {', '.join(names)}")
    return tuple(NodeSpec(name, special.get(name, common)) for name in names)


def choose_base(root: Path, nodes: int, listening: Collection[int], claimed: Collection[int]) -> int:
    """The first port of a block in which nobody listens and that no lab has claimed, beginning with the folder's own.

    Raises: Refused if there is none.
    """
    blocks = (LAST_BASE - FIRST_BASE) // BLOCK + 1
    start = int(Layout(root).id, 16) % blocks
    for step in range(blocks):
        base = FIRST_BASE + (start + step) % blocks * BLOCK
        if base not in claimed and not set(listening) & set(Ports(base).all(nodes)):
            return base
    raise Refused("NO_PORTS", f"no free block of ports in {FIRST_BASE}-{LAST_BASE + BLOCK - 1}", "use --base-port")
