"""Is a daemon ready? Asked of the daemon, or of the cluster; a pid proves nothing.

A probe is data; `probe` answers None for ready, else the reason why not, in words for people.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, assert_never

import grpc

from dynamig.driver.control import ask
from dynamig.errors import DynamigError
from lab.api import TIMEOUT_S, Https
from lab.processes import Record
from lab.slurm import answers as slurm

DRIVER = "gpu.nvidia.com"


@dataclass(frozen=True, slots=True)
class MachineProbe:
    """The machine's first process has finished its set-up and become `pause`."""


@dataclass(frozen=True, slots=True)
class HealthProbe:
    """`path` answers 200."""

    server: Https
    path: str


@dataclass(frozen=True, slots=True)
class ContainerdProbe:
    """The CRI service answers, which it does once all plugins of containerd have started."""

    socket: Path


@dataclass(frozen=True, slots=True)
class KubeletProbe:
    """The kubelet is healthy and its Node is Ready, by word of this very process."""

    health_port: int
    api: Https
    node: str


@dataclass(frozen=True, slots=True)
class DriverProbe:
    """The driver says that it is registered with its kubelet, and the node's ResourceSlices are there.

    `socket` is the driver's control socket.
    """

    api: Https
    node: str
    socket: Path


@dataclass(frozen=True, slots=True)
class ReadyProbe:
    """/readyz answers 200 over plain HTTP; what it says otherwise is the reason."""

    port: int


@dataclass(frozen=True, slots=True)
class MungeProbe:
    """munged makes credentials."""


@dataclass(frozen=True, slots=True)
class SlurmctldProbe:
    """The controller answers a ping."""


@dataclass(frozen=True, slots=True)
class SlurmdProbe:
    """This very slurmd is registered, its node takes jobs and has the GRES that it should (`gpu:h100:2,shard:16`)."""

    node: str
    gres: str


@dataclass(frozen=True, slots=True)
class SlurmrestdProbe:
    """slurmrestd takes a fresh token of root and reaches the controller with it."""

    port: int


Probe = (
    MachineProbe
    | HealthProbe
    | ContainerdProbe
    | KubeletProbe
    | DriverProbe
    | ReadyProbe
    | MungeProbe
    | SlurmctldProbe
    | SlurmdProbe
    | SlurmrestdProbe
)


def probe(question: Probe, record: Record) -> str | None:
    """Why the daemon of this record is not ready; None if it is."""
    try:
        match question:
            case ReadyProbe(port):
                return _plain(port, "/readyz")
            case MachineProbe():
                return _machine(record)
            case HealthProbe(server, path):
                status, body = server.get(path)
                return None if status == 200 else f"{path}: {status} {_failed_checks(body)}"
            case ContainerdProbe(path):
                return _containerd(path)
            case KubeletProbe():
                return _kubelet(question, record)
            case DriverProbe():
                return _driver(question)
            case MungeProbe():
                return slurm.munge_problem(record)
            case SlurmctldProbe():
                return slurm.controller_problem(record)
            case SlurmdProbe(node, gres):
                return slurm.node_problem(slurm.show_node(record, node), gres, record.since)
            case SlurmrestdProbe(port):
                return slurm.rest_problem(record, port)
            case other:
                assert_never(other)
    except DynamigError as error:
        return error.what


def _machine(record: Record) -> str | None:
    try:
        program = os.readlink(f"/proc/{record.identity.pid}/exe")
    except FileNotFoundError:
        return "has ended"
    return None if Path(program).name == "pause" else "still mounting"


def _failed_checks(body: str) -> str:
    """Of a verbose health answer the lines that failed, else its beginning."""
    bad = [line for line in body.splitlines() if line.startswith("[-]")]
    return "; ".join(bad) or body[:100]


def _containerd(path: Path) -> str | None:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        version: Callable[..., bytes] = channel.unary_unary("/runtime.v1.RuntimeService/Version")
        try:
            version(b"", timeout=TIMEOUT_S)  # no bytes are an empty message
        except grpc.RpcError as error:
            return f"CRI: {error.code().name}"
    return None


def _kubelet(question: KubeletProbe, record: Record) -> str | None:
    if reason := _plain(question.health_port, "/healthz"):
        return reason
    node = question.api.get_json(f"/api/v1/nodes/{question.node}")
    if node is None:
        return "its Node does not exist"
    lease = question.api.get_json(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{question.node}")
    return node_problem(node, lease, record.since)


def node_problem(node: dict[str, Any], lease: dict[str, Any] | None, since: float) -> str | None:
    """Why a Node is not Ready by the word of a kubelet that was started at `since`; None if it is.

    A fresh kubelet reports conditions at once and renews its Lease up to ten seconds later, one that was there before
    renews only the Lease: either proves that the word is not its predecessor's. Conditions have whole seconds.
    """
    ready = next((c for c in node["status"].get("conditions", []) if c["type"] == "Ready"), None)
    if ready is None or ready["status"] != "True":
        return f"Node is not Ready: {ready['message'][:100] if ready else 'no condition'}"
    heard = [ready["lastHeartbeatTime"], *([lease["spec"]["renewTime"]] if lease else [])]
    if max(datetime.fromisoformat(time).timestamp() for time in heard) < int(since):
        return "Node has not been heard of since the kubelet was started"
    return None


def _plain(port: int, path: str) -> str | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode(errors="replace").strip()
        return None if answer.status == 200 else f"{path}: {answer.status} {body[:200]}"
    except (OSError, http.client.HTTPException) as error:
        return f"{path}: {error}"
    finally:
        connection.close()


def _driver(question: DriverProbe) -> str | None:
    status = ask(question.socket, "status")
    if not status["ready"]:
        return str(status["whyNotReady"])
    selector = f"spec.driver%3D{DRIVER},spec.nodeName%3D{question.node}"
    slices = question.api.get_json(f"/apis/resource.k8s.io/v1/resourceslices?fieldSelector={selector}")
    return None if slices and slices["items"] else "no ResourceSlice"
