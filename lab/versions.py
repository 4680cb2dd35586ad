"""Versions of everything that the lab does not build from this repository. Change them here and nowhere else."""

from __future__ import annotations

KUBERNETES = "1.37.2"
"""Built from its own Go modules; module versions of k8s.io/* follow as v0.<minor>.<patch>."""

GO_MINIMUM = (1, 26)
"""What go.mod of that Kubernetes asks for."""

DEBIAN_SUITE = "forky"
"""Brings etcd 3.5, containerd 2.1 (CDI on), runc 1.3, Slurm 26.05."""

DEBIAN_PACKAGES = (
    "busybox-static",
    "containerd",
    "containernetworking-plugins",
    "etcd-server",
    "iproute2",
    "munge",
    "runc",
    "slurm-client",
    "slurm-wlm-jwt-plugin",
    "slurmctld",
    "slurmd",
    "slurmrestd",
)
