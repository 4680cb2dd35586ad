"""dynamig's own parts in the lab: manifests, emulated GPUs, and per node a driver with its identity of production.

The driver is never an administrator: it uses a token of its service account that is bound to its Node, which is what
the admission policies look at.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dynamig.errors import Refused, Unavailable
from lab import pki
from lab.api import Https
from lab.cache import digest
from lab.commands import clean_env, run
from lab.daemons import Daemon, api
from lab.probes import DriverProbe
from lab.spec import LabSpec, Layout

REPOSITORY = Path(__file__).resolve().parents[1]
MANIFESTS = REPOSITORY / "deploy/chart/templates"
LAB_ROLES = Path(__file__).parent / "manifests/lab-roles.yaml"
BUILD = REPOSITORY / "build"
LIBRARY = BUILD / "libnvidia-ml.so.1"
NVML_LIST = BUILD / "nvml-list"
DYNAMIG = Path(sys.executable).parent / "dynamig"
NAMESPACE = "dynamig-system"
ACCOUNT = "dynamig-driver"
TOKEN_S = 30 * 24 * 3600
WATCH_S = 25
"""How long a GPU must answer again: three looks of its driver, where a site wants minutes."""
FIRST_KINDS = ("Namespace", "CustomResourceDefinition")
"""What other manifests need to be there before them."""

SLURM_COMMAND = ("/usr/bin/env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", "lab", "slurm")
"""`python -m lab slurm` from any folder: how a driver, which runs on the host, reaches scontrol."""

IN_CONTAINER = "/run/nvidia-emulator"
CONTAINER_LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """What a node's driver reads, all below the node's folder."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "driver.yaml"

    @property
    def token(self) -> Path:
        return self.folder / "driver.token"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "driver.kubeconfig"

    @property
    def emulator(self) -> Path:
        return self.folder / "emulator"

    @property
    def library(self) -> Path:
        """A copy: the machine sees the node's folder only, and a rebuild must not change it under a running client."""
        return self.folder / "lib/libnvidia-ml.so.1"

    @property
    def nvml_list(self) -> Path:
        """For jobs of Slurm; pods have it in their image."""
        return self.folder / "lib/nvml-list"

    @property
    def control_socket(self) -> Path:
        return self.folder / "run/dynamig.sock"


def problems() -> list[str]:
    """What has to be built before a driver can run."""
    wanted = {LIBRARY: "make emulator", NVML_LIST: "make emulator", DYNAMIG: "make venv"}
    found = [f"{path} is missing: run `{how}`" for path, how in wanted.items() if not path.exists()]
    if not manifest_files(MANIFESTS):
        found.append(f"{MANIFESTS} has no manifests")
    return found


def manifest_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.yaml"))


def manifests(files: Iterable[Path]) -> list[dict[str, Any]]:
    """All objects of the files, those first that others need. Raises Refused for what is not plain YAML."""
    objects: list[dict[str, Any]] = []
    for path in files:
        try:
            objects += [item for item in yaml.safe_load_all(path.read_text()) if item]
        except yaml.YAMLError as error:
            raise Refused("BAD_MANIFEST", f"{path}: {error}", "the lab applies plain YAML, no templates") from error
    return sorted(objects, key=lambda item: item.get("kind") not in FIRST_KINDS)


def apply(kubectl: Callable[..., str], files: Iterable[Path]) -> None:
    """The cluster has these objects as they are in the files."""
    if items := manifests(files):
        bundle = {"apiVersion": "v1", "kind": "List", "items": items}
        argv = ("apply", "--server-side", "--force-conflicts", "--field-manager=dynamig-lab", "--filename=-")
        kubectl(*argv, stdin=json.dumps(bundle))


def copy_programs(files: DriverFiles) -> None:
    """The node has the library and `nvml-list` as they were last built, if they were."""
    for source, target in ((LIBRARY, files.library), (NVML_LIST, files.nvml_list)):
        if source.exists() and not (target.exists() and target.read_bytes() == source.read_bytes()):
            temporary = target.with_name(f".{target.name}.new")
            shutil.copy2(source, temporary)
            temporary.rename(target)


def init_emulator(files: DriverFiles, gpus: str, node: str) -> None:
    """The node has its emulated GPUs. They are made once; the seed follows from the node's name."""
    if files.emulator.exists():
        return
    temporary = files.emulator.with_name("emulator.unfinished")
    shutil.rmtree(temporary, ignore_errors=True)
    seed = int(hashlib.sha256(node.encode()).hexdigest()[:6], 16)
    run([str(DYNAMIG), "emulator", "init", str(temporary), "--gpus", gpus, "--seed", str(seed)], env=_env(files))
    temporary.rename(files.emulator)


def token_problem(token: str, node_uid: str, now: float) -> str | None:
    """Why a service account token cannot be used any longer; None if it can (half its life is left at least).

    Source: the payload of the token, RFC 7519, with Kubernetes' private claim `kubernetes.io`.
    """
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        if claims["kubernetes.io"]["node"]["uid"] != node_uid:
            return "bound to another Node"
        return None if claims["exp"] - now > TOKEN_S / 2 else "expires soon"
    except (IndexError, KeyError, ValueError) as error:
        return f"unreadable: {error!r}"


def ensure_token(kubectl: Callable[..., str], server: Https, files: DriverFiles, node: str) -> None:
    """The driver's token is on disk, bound to the Node as it exists now."""
    found = server.get_json(f"/api/v1/nodes/{node}")
    if found is None:
        raise Unavailable("NO_NODE", f"Node {node} does not exist", "python -m lab status")
    uid = found["metadata"]["uid"]
    if files.token.exists() and token_problem(files.token.read_text(), uid, time.time()) is None:
        return
    bound = ("--bound-object-kind=Node", f"--bound-object-name={node}", f"--bound-object-uid={uid}")
    token = kubectl("create", "token", ACCOUNT, f"--namespace={NAMESPACE}", f"--duration={TOKEN_S}s", *bound)
    pki.write(files.token, token.strip())


def write_configuration(layout: Layout, spec: LabSpec, node: str) -> None:
    """The driver's configuration and kubeconfig are on disk."""
    files = DriverFiles(layout.node(node))
    server = f"https://127.0.0.1:{spec.ports.apiserver}"
    pki.write(files.kubeconfig, pki.kubeconfig(server, layout.pki / "ca.crt", {"tokenFile": str(files.token)}))
    config = driver_config(files, node)
    if spec.lends:
        on_node = (f"--dir={layout.root}", f"--machine={node}", "scontrol")
        config["slurm"] = {"nodeName": node, "scontrol": [*SLURM_COMMAND, *on_node]}
    pki.write(files.config, yaml.safe_dump(config, sort_keys=False))


def driver_config(files: DriverFiles, node: str) -> dict[str, Any]:
    """Paths are those of the host, which the node's machine shares."""
    folder = files.folder
    return {
        "nodeName": node,
        "kubeconfig": str(files.kubeconfig),
        "namespace": NAMESPACE,
        "kubeletDir": str(folder / "kubelet"),
        "stateDir": str(folder / "dynamig"),
        "cdiDir": str(folder / "cdi"),
        "devRoot": str(files.emulator),
        "procRoot": str(files.emulator / "proc"),
        "sysRoot": str(files.emulator / "sys"),
        "socket": str(files.control_socket),
        "gpus": {"default": {"policy": "dynamic", "migMode": "on-demand"}},
        "watchSeconds": WATCH_S,
        "containerEdits": {
            "env": [f"DYNAMIG_EMULATOR_DIR={IN_CONTAINER}"],
            "mounts": [
                _mount(files.library, CONTAINER_LIBRARY),
                _mount(files.emulator / "state", f"{IN_CONTAINER}/state"),
            ],
        },
    }


def _mount(host: Path, container: str) -> dict[str, Any]:
    return {"hostPath": str(host), "containerPath": container, "options": ["ro", "bind"]}


def driver(layout: Layout, spec: LabSpec, node: str) -> Daemon:
    """A process of the host, as it would be a privileged pod elsewhere: it needs the node's folder only."""
    files = DriverFiles(layout.node(node))
    return Daemon(
        name=f"driver-{node}",
        argv=(str(DYNAMIG), "driver", "run", "--config", str(files.config)),
        probe=DriverProbe(api(layout, spec), node, files.control_socket),
        needs=frozenset({f"driver-files-{node}"}),
        relies_on=frozenset({f"kubelet-{node}"}),  # a starting kubelet deletes its node's ResourceSlices
        env=tuple(_emulator_env(files).items()),
        files=(files.config, files.kubeconfig, files.library),
        extra=(source_digest(REPOSITORY / "src"),),
        grace_s=15,
    )


def source_digest(folder: Path) -> str:
    """Changes with our Python code: `lab up` restarts a driver that runs older code."""
    return digest(*(part for path in sorted(folder.rglob("*.py")) for part in (str(path), path.read_bytes())))


def nvml_list(files: DriverFiles) -> dict[str, Any]:
    """What an NVML client sees on the node."""
    listed: dict[str, Any] = json.loads(run([str(NVML_LIST)], env=_env(files)))
    return listed


def _emulator_env(files: DriverFiles) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(files.library.parent), "DYNAMIG_EMULATOR_DIR": str(files.emulator)}


def _env(files: DriverFiles) -> dict[str, str]:
    return clean_env(**_emulator_env(files), **{k: v for k, v in os.environ.items() if k == "PYTHONPATH"})
