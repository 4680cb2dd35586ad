"""dynamig's bridge in the lab: one process on the host with the identity of production.

In Kubernetes it is the service account `dynamig-bridge`, in Slurm the operator `dynamig`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab import pki
from lab.components import DYNAMIG, NAMESPACE, REPOSITORY, TOKEN_S, source_digest
from lab.daemons import Daemon
from lab.probes import ReadyProbe
from lab.spec import LabSpec, Layout

ACCOUNT = "dynamig-bridge"
SLURM_USER = "dynamig"
DEMO_NAMESPACE, STUDENT = "dynamig-demo", "alice"
"""The demo's pods are paid for as one of Slurm's users, with her limits."""


@dataclass(frozen=True, slots=True)
class BridgeFiles:
    """What the bridge reads, all below one folder."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "bridge.yaml"

    @property
    def token(self) -> Path:
        return self.folder / "bridge.token"

    @property
    def slurm_token(self) -> Path:
        return self.folder / "slurm.token"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "bridge.kubeconfig"


def files(layout: Layout) -> BridgeFiles:
    return BridgeFiles(layout.root / "bridge")


def write_configuration(layout: Layout, spec: LabSpec) -> None:
    """The bridge's configuration and kubeconfig are on disk."""
    here = files(layout)
    here.folder.mkdir(exist_ok=True)
    server = f"https://127.0.0.1:{spec.ports.apiserver}"
    pki.write(here.kubeconfig, pki.kubeconfig(server, layout.pki / "ca.crt", {"tokenFile": str(here.token)}))
    pki.write(here.config, yaml.safe_dump(configuration(here, spec), sort_keys=False))


def configuration(here: BridgeFiles, spec: LabSpec) -> dict[str, Any]:
    return {
        "slurm": {
            "url": f"http://127.0.0.1:{spec.ports.slurmrestd}",
            "user": SLURM_USER,
            "tokenFile": str(here.slurm_token),
        },
        "accounts": {DEMO_NAMESPACE: {"user": STUDENT, "partitions": ["all"], "minutes": 60, "maxMinutes": 240}},
        "defaultAccount": {"user": SLURM_USER, "partitions": ["all", "low", "kubernetes"]},
        "kubeconfig": str(here.kubeconfig),
        "namespace": NAMESPACE,
        "listen": f"127.0.0.1:{spec.ports.bridge}",
    }


def write_tokens(layout: Layout, kubectl: Callable[..., str], slurm_token: str) -> None:
    """Fresh tokens for both sides are on disk; the bridge reads them again when it needs to."""
    here = files(layout)
    pki.write(here.slurm_token, slurm_token)
    token = kubectl("create", "token", ACCOUNT, f"--namespace={NAMESPACE}", f"--duration={TOKEN_S}s")
    pki.write(here.token, token.strip())


def command(config: Path) -> tuple[str, ...]:
    return (str(DYNAMIG), "bridge", "run", "--config", str(config))


def daemon(layout: Layout, spec: LabSpec) -> Daemon:
    here = files(layout)
    return Daemon(
        name="bridge",
        argv=command(here.config),
        probe=ReadyProbe(spec.ports.bridge),
        needs=frozenset({"bridge-files", "slurmrestd"}),
        files=(here.config, here.kubeconfig),
        ports=(spec.ports.bridge,),
        extra=(source_digest(REPOSITORY / "src"),),
        grace_s=15,
    )
