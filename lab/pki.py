"""Who is who: certificate authorities, and a certificate for each component.

Nobody but the administrator is in system:masters. The scheduler, the controller manager and the kubelets have the
names that Kubernetes' default roles are bound to; etcd trusts an authority of its own, so that a kubelet's
certificate opens nothing there. Made with the openssl command; the private keys of the authorities and of the
administrator stay in a folder that no machine sees.
"""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from lab.commands import run
from lab.spec import Layout

DAYS = 3650
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
CLUSTER_CA = "ca"
ETCD_CA = "etcd-ca"
FRONT_PROXY_CA = "front-proxy-ca"
"""Would sign aggregated API servers' proxies; it signs nothing here, so nobody can speak for somebody else."""

KUBELET_CLIENT = "kube-apiserver-kubelet-client"
"""User name of the API server when it calls a kubelet."""

SERVICE_IP = "10.96.0.1"
"""First address of the services' range: the name that pods have for the API server."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """`folder`/`name`.crt and .key, signed by `authority`. `user` and `groups` are how Kubernetes reads the subject."""

    folder: Path
    name: str
    authority: str
    user: str
    groups: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    """Subject alternative names, like DNS:n1; a certificate with them may serve, one without is a client's."""

    @property
    def cert(self) -> Path:
        return self.folder / f"{self.name}.crt"

    @property
    def key(self) -> Path:
        return self.folder / f"{self.name}.key"


def control_folder(layout: Layout) -> Path:
    return layout.control / "pki"


def node_folder(layout: Layout, node: str) -> Path:
    return layout.node(node) / "pki"


def certificates(layout: Layout, nodes: Sequence[str]) -> tuple[Certificate, ...]:
    """Every certificate of the lab."""
    control = control_folder(layout)
    local = ("IP:127.0.0.1", "DNS:localhost")
    kubernetes = ("DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc", f"IP:{SERVICE_IP}")
    return (
        Certificate(layout.pki, "admin", CLUSTER_CA, "lab-admin", ("system:masters",)),
        Certificate(control, "apiserver", CLUSTER_CA, "kube-apiserver", serves=local + kubernetes),
        Certificate(control, KUBELET_CLIENT, CLUSTER_CA, KUBELET_CLIENT),
        Certificate(control, "controller-manager", CLUSTER_CA, "system:kube-controller-manager", serves=local),
        Certificate(control, "scheduler", CLUSTER_CA, "system:kube-scheduler", serves=local),
        Certificate(control, "etcd", ETCD_CA, "etcd", serves=local),
        Certificate(control, "etcd-client", ETCD_CA, "kube-apiserver"),
        *(
            Certificate(node_folder(layout, n), "kubelet", CLUSTER_CA, f"system:node:{n}", ("system:nodes",))
            for n in nodes
        ),
        *(
            Certificate(node_folder(layout, n), "kubelet-serving", CLUSTER_CA, n, serves=(f"DNS:{n}", *local))
            for n in nodes
        ),
    )


def ensure(layout: Layout, nodes: Sequence[str]) -> None:
    """Authorities, certificates, the service accounts' signing key and all kubeconfigs' trust are on disk."""
    for folder in (layout.pki, control_folder(layout), *(node_folder(layout, n) for n in nodes)):
        folder.mkdir(parents=True, exist_ok=True)
    for authority in (CLUSTER_CA, ETCD_CA, FRONT_PROXY_CA):
        _authority(layout.pki, authority)
        _copy(layout.pki / f"{authority}.crt", control_folder(layout))
    for node in nodes:
        _copy(layout.pki / f"{CLUSTER_CA}.crt", node_folder(layout, node))
    for certificate in certificates(layout, nodes):
        _issue(layout.pki, certificate)
    _service_account_key(control_folder(layout))


def kubeconfig(server: str, authority: Path, user: dict[str, object]) -> str:
    """A kubeconfig that verifies the server. `user` is the user entry of a kubeconfig."""
    trust = base64.b64encode(authority.read_bytes()).decode()
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": server, "certificate-authority-data": trust}}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "user"}}],
            "current-context": "lab",
        }
    )


def certificate_user(certificate: Certificate) -> dict[str, object]:
    """The certificate and key as a kubeconfig's user, contained in it."""

    def encoded(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    return {
        "client-certificate-data": encoded(certificate.cert),
        "client-key-data": encoded(certificate.key),
    }


def write(path: Path, text: str) -> None:
    """`path` has this text, readable by its owner only; it never has half of it."""
    if path.exists() and path.read_text() == text:
        return
    temporary = path.with_name(f".{path.name}.new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    temporary.rename(path)


def _copy(source: Path, folder: Path) -> None:
    write(folder / source.name, source.read_text())


def _authority(folder: Path, name: str) -> None:
    if (folder / f"{name}.crt").exists():
        return
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        key, cert = Path(scratch) / "key", Path(scratch) / "crt"
        subject = ("-subj", f"/CN=lab {name}", "-days", str(DAYS))
        run(["openssl", "req", "-x509", *NEW_KEY, *subject, "-keyout", str(key), "-out", str(cert)])
        key.rename(folder / f"{name}.key")
        cert.rename(folder / f"{name}.crt")  # last: its presence says that both are there


def _issue(authorities: Path, wanted: Certificate) -> None:
    if wanted.cert.exists():
        return
    subject = "".join([*(f"/O={group}" for group in wanted.groups), f"/CN={wanted.user}"])
    usage = "serverAuth, clientAuth" if wanted.serves else "clientAuth"
    extensions = f"keyUsage = critical, digitalSignature\nextendedKeyUsage = {usage}\n"
    if wanted.serves:
        extensions += f"subjectAltName = {', '.join(wanted.serves)}\n"
    signer = authorities / wanted.authority
    with tempfile.TemporaryDirectory(dir=wanted.folder) as scratch:
        key, request, cert, ext = (Path(scratch) / name for name in ("key", "csr", "crt", "ext"))
        ext.write_text(extensions)
        run(["openssl", "req", *NEW_KEY, "-subj", subject, "-keyout", str(key), "-out", str(request)])
        sign = ["openssl", "x509", "-req", "-in", str(request), "-out", str(cert), "-days", str(DAYS)]
        by = ["-CA", f"{signer}.crt", "-CAkey", f"{signer}.key", "-set_serial", f"0x{os.urandom(16).hex()}"]
        run([*sign, *by, "-extfile", str(ext)])
        key.rename(wanted.key)
        cert.rename(wanted.cert)


def _service_account_key(folder: Path) -> None:
    if (folder / "service-accounts.pub").exists():
        return
    key, public = folder / "service-accounts.key", folder / "service-accounts.pub.new"
    run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(key)])
    run(["openssl", "pkey", "-in", str(key), "-pubout", "-out", str(public)])
    public.rename(folder / "service-accounts.pub")
