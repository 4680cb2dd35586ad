"""The daemons of the control plane, as data; those of a node are in `nodes.py`.

All of them run inside the machine `control`: a mount and pid namespace whose root is the lab's Debian, with an
/etc/hosts in which the nodes' names mean 127.0.0.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab import pki
from lab.api import Https
from lab.cache import digest
from lab.probes import HealthProbe, MachineProbe, Probe
from lab.spec import CONTROL, LabSpec, Layout

KUBE = "/opt/lab/kube"
"""Where machines see the Kubernetes programs (machine.sh)."""

HOST_VIEW = "/opt/lab/guarded/host"
"""Where a machine shows the host's files to its root, if it was asked to (machine.sh)."""

MACHINE_SCRIPT = Path(__file__).parent / "machine.sh"


@dataclass(frozen=True, slots=True)
class Daemon:
    """One long-lived process.

    `machine`: whose namespaces it runs in; None for the host. `makes_machine`: it is the first process of that
    machine. `files`: configuration that it reads once, so that a change means a restart. `grace_s`: seconds between
    TERM and KILL when it is stopped by itself.
    """

    name: str
    argv: tuple[str, ...]
    probe: Probe
    machine: str | None = None
    makes_machine: bool = False
    needs: frozenset[str] = frozenset()
    relies_on: frozenset[str] = frozenset()
    """Needs whose restart puts its own readiness in question."""
    env: tuple[tuple[str, str], ...] = ()
    files: tuple[Path, ...] = ()
    ports: tuple[int, ...] = ()
    grace_s: float = 10.0
    ready_s: float = 60.0
    extra: tuple[str, ...] = field(default=())
    """Further facts that the running process depends on, like a digest of its program."""

    def digest(self) -> str:
        """Changes with everything that a running process was made from."""
        contents = [path.read_bytes() if path.exists() else b"" for path in self.files]
        return digest(*self.argv, *(f"{k}={v}" for k, v in self.env), *self.extra, *contents)


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Folders in the cache: complete or not there at all."""

    debian: Path
    kube: Path
    pause: Path
    notebook: Path


def machine_name(name: str) -> str:
    return f"machine-{name}"


def machine(layout: Layout, name: str, artifacts: Artifacts, gpus: int, shows: Sequence[Path] = ()) -> Daemon:
    """The holder of a machine's namespaces. TERM ends it, and with it everything inside.

    `shows`: folders of the host that its root may see, at HOST_VIEW.
    """
    folders = (artifacts.debian, layout.machine(name), artifacts.kube, artifacts.pause)
    return Daemon(
        name=machine_name(name),
        argv=("/bin/sh", str(MACHINE_SCRIPT), *map(str, folders), str(gpus), *map(str, shows)),
        probe=MachineProbe(),
        machine=name,
        makes_machine=True,
        needs=frozenset({"debian-root", "kubernetes", "pause"}),
        files=(MACHINE_SCRIPT,),
        grace_s=2,
        ready_s=20,
    )


def api(layout: Layout, spec: LabSpec) -> Https:
    """The API server, asked as the administrator."""
    admin = next(c for c in pki.certificates(layout, ()) if c.name == "admin")
    return Https(spec.ports.apiserver, layout.pki / "ca.crt", admin.cert, admin.key)


def control_plane(layout: Layout, spec: LabSpec, artifacts: Artifacts) -> tuple[Daemon, ...]:
    return (
        machine(layout, CONTROL, artifacts, gpus=0),
        _etcd(layout, spec),
        _apiserver(layout, spec),
        _controller_manager(layout, spec),
        _scheduler(layout, spec),
    )


def _etcd(layout: Layout, spec: LabSpec) -> Daemon:
    keys, ports = pki.control_folder(layout), spec.ports
    url, peer = f"https://127.0.0.1:{ports.etcd}", f"https://127.0.0.1:{ports.etcd_peer}"
    trust = f"{keys}/etcd-ca.crt"
    flags = (
        f"--data-dir={layout.control}/etcd",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        f"--cert-file={keys}/etcd.crt",
        f"--key-file={keys}/etcd.key",
        f"--trusted-ca-file={trust}",
        "--client-cert-auth",
        f"--peer-cert-file={keys}/etcd.crt",
        f"--peer-key-file={keys}/etcd.key",
        f"--peer-trusted-ca-file={trust}",
        "--peer-client-cert-auth",
        "--unsafe-no-fsync",  # a lab's data need not survive a power cut; fsync is most of etcd's time
    )
    server = Https(ports.etcd, layout.pki / "etcd-ca.crt", keys / "etcd-client.crt", keys / "etcd-client.key")
    return Daemon(
        name="etcd",
        argv=("/usr/bin/etcd", *flags),
        probe=HealthProbe(server, "/health"),
        machine=CONTROL,
        ports=(ports.etcd, ports.etcd_peer),
    )


def _apiserver(layout: Layout, spec: LabSpec) -> Daemon:
    keys, ports = pki.control_folder(layout), spec.ports
    flags = (
        "--bind-address=127.0.0.1",
        f"--secure-port={ports.apiserver}",
        f"--tls-cert-file={keys}/apiserver.crt",
        f"--tls-private-key-file={keys}/apiserver.key",
        f"--client-ca-file={keys}/ca.crt",
        f"--requestheader-client-ca-file={keys}/{pki.FRONT_PROXY_CA}.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--etcd-servers=https://127.0.0.1:{ports.etcd}",
        f"--etcd-cafile={keys}/etcd-ca.crt",
        f"--etcd-certfile={keys}/etcd-client.crt",
        f"--etcd-keyfile={keys}/etcd-client.key",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={keys}/service-accounts.pub",
        f"--service-account-signing-key-file={keys}/service-accounts.key",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",  # the address of this server means nothing to a pod
        "--kubelet-preferred-address-types=Hostname",
        f"--kubelet-certificate-authority={keys}/ca.crt",
        f"--kubelet-client-certificate={keys}/{pki.KUBELET_CLIENT}.crt",
        f"--kubelet-client-key={keys}/{pki.KUBELET_CLIENT}.key",
    )
    return Daemon(
        name="kube-apiserver",
        argv=(f"{KUBE}/kube-apiserver", *flags),
        probe=HealthProbe(api(layout, spec), "/readyz"),
        machine=CONTROL,
        needs=frozenset({"etcd"}),
        ports=(ports.apiserver,),
        grace_s=70,  # it waits up to a minute for open watches to end
        ready_s=120,
    )


def _controller_manager(layout: Layout, spec: LabSpec) -> Daemon:
    keys, port = pki.control_folder(layout), spec.ports.controller_manager
    flags = (
        *_client_flags(layout, "controller-manager", port),
        "--use-service-account-credentials=true",  # each controller with its own account and role
        f"--service-account-private-key-file={keys}/service-accounts.key",
        f"--root-ca-file={keys}/ca.crt",
        "--controllers=*,-node-ipam-controller",  # the CNI plugin hands out addresses
    )
    return Daemon(
        name="kube-controller-manager",
        argv=(f"{KUBE}/kube-controller-manager", *flags),
        probe=HealthProbe(Https(port, layout.pki / "ca.crt"), "/healthz"),
        machine=CONTROL,
        needs=frozenset({"kube-apiserver"}),
        ports=(port,),
    )


def _scheduler(layout: Layout, spec: LabSpec) -> Daemon:
    port = spec.ports.scheduler
    return Daemon(
        name="kube-scheduler",
        argv=(f"{KUBE}/kube-scheduler", *_client_flags(layout, "scheduler", port)),
        probe=HealthProbe(Https(port, layout.pki / "ca.crt"), "/healthz"),
        machine=CONTROL,
        needs=frozenset({"kube-apiserver"}),
        ports=(port,),
    )


def _client_flags(layout: Layout, name: str, port: int) -> tuple[str, ...]:
    keys, config = pki.control_folder(layout), f"{layout.control}/{name}.kubeconfig"
    return (
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={keys}/{name}.crt",
        f"--tls-private-key-file={keys}/{name}.key",
        f"--client-ca-file={keys}/ca.crt",
    )
