"""The driver's configuration file (docs/reference/driver-config.md).

Paths point into trees that may be emulated or mounted elsewhere: `devRoot` is the folder that holds `dev/`,
`procRoot` the one that stands for `/proc`.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from dynamig import settings
from dynamig.cdi import ContainerEdits, Mount
from dynamig.protocol import names
from dynamig.settings import DNS_SUBDOMAIN, SLURM_NODE, AbsolutePath, Settings


class Policy(Enum):
    """What a GPU is offered as."""

    DYNAMIC = "dynamic"
    WHOLE = "whole"
    IGNORE = "ignore"


class ModePolicy(Enum):
    """Who switches MIG mode. `require`: nobody here. `on-demand`: we, where no reset is needed (Hopper on)."""

    REQUIRE = "require"
    ON_DEMAND = "on-demand"


class GpuPolicy(Settings):
    policy: Policy = Policy.DYNAMIC
    mig_mode: ModePolicy = ModePolicy.ON_DEMAND
    profiles: frozenset[str] | None = Field(default=None, description="allow-list of profile names")


class GpuPolicies(Settings):
    """The node's default, and exceptions by GPU UUID or PCI bus id."""

    default: GpuPolicy = GpuPolicy()
    by_gpu: dict[str, GpuPolicy] = Field(default_factory=dict)

    def of(self, uuid: str, pci_bus_id: str) -> GpuPolicy:
        return self.by_gpu.get(uuid) or self.by_gpu.get(pci_bus_id) or self.default


class MountConfig(Settings):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "bind")


class EditsConfig(Settings):
    env: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*=")], ...] = ()
    mounts: tuple[MountConfig, ...] = ()

    def value(self) -> ContainerEdits:
        return ContainerEdits(
            env=self.env,
            mounts=tuple(Mount(m.host_path, m.container_path, m.options) for m in self.mounts),
        )


def _command(given: object) -> object:
    return [given] if isinstance(given, str) else given


class SlurmConfig(Settings):
    """Given where slurmd runs on the node as well: claims are held by the bridge, GPUs are lent to native jobs."""

    node_name: Annotated[str, Field(pattern=SLURM_NODE, max_length=253)] | None = Field(
        default=None, description="absent: as in Kubernetes"
    )
    scontrol: Annotated[tuple[str, ...], BeforeValidator(_command), Field(min_length=1)] = ("scontrol",)
    answer_seconds: Annotated[float, Field(gt=0, le=30)] = 10.0
    ask_seconds: Annotated[float, Field(ge=1)] = 30.0
    device_map: dict[int, str] | None = Field(default=None, description="Slurm's GPU index to GPU UUID or PCI bus id")


class DriverConfig(Settings):
    node_name: Annotated[str, Field(pattern=DNS_SUBDOMAIN, max_length=253)]
    driver_name: Annotated[str, Field(pattern=DNS_SUBDOMAIN, max_length=63)] = names.DRIVER_NAME
    namespace: Annotated[str, Field(pattern=DNS_SUBDOMAIN, max_length=63)] = names.NAMESPACE
    kubeconfig: AbsolutePath | None = Field(default=None, description="absent: the pod's service account")
    kubelet_dir: AbsolutePath = Path("/var/lib/kubelet")
    state_dir: AbsolutePath = Path("/var/lib/dynamig")
    cdi_dir: AbsolutePath = Path("/var/run/cdi")
    dev_root: AbsolutePath = Path("/")
    proc_root: AbsolutePath = Path("/proc")
    sys_root: AbsolutePath = Path("/sys")
    socket: AbsolutePath = Path("/run/dynamig/driver.sock")
    gpus: GpuPolicies = GpuPolicies()
    watch_seconds: Annotated[int, Field(ge=0, le=86400, strict=True)] = 300
    container_edits: EditsConfig = EditsConfig()
    slurm: SlurmConfig | None = None


def load(path: Path) -> DriverConfig:
    return settings.load(path, DriverConfig, "docs/reference/driver-config.md")
