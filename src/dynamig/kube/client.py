"""One client of the Kubernetes API over lightkube, speaking plain JSON objects, with errors of ours.

Typed models would tie the driver to one Kubernetes version; the few fields that are used are read in `protocol`.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import yaml
from lightkube import ApiError, Client, KubeConfig
from lightkube.config.client_adapter import verify_cluster
from lightkube.core.exceptions import ConfigError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource

from dynamig.errors import Conflict, DynamigError, Refused, Unavailable
from dynamig.protocol.seen import Found, Gone, Seen, Unknown

T = TypeVar("T")

ResourceClaim = create_namespaced_resource("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims")
ResourceClaimTemplate = create_namespaced_resource(
    "resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates"
)
ResourceSlice = create_global_resource("resource.k8s.io", "v1", "ResourceSlice", "resourceslices")
DeviceTaintRule = create_global_resource("resource.k8s.io", "v1", "DeviceTaintRule", "devicetaintrules")
"""Served by Kubernetes 1.37 and newer."""
DeviceClass = create_global_resource("resource.k8s.io", "v1", "DeviceClass", "deviceclasses")
Lease = create_namespaced_resource("coordination.k8s.io", "v1", "Lease", "leases")
Node = create_global_resource("", "v1", "Node", "nodes")
Namespace = create_global_resource("", "v1", "Namespace", "namespaces")
ConfigMap = create_namespaced_resource("", "v1", "ConfigMap", "configmaps")
Event = create_namespaced_resource("", "v1", "Event", "events")
Pod = create_namespaced_resource("", "v1", "Pod", "pods")

READ_TIMEOUT = 8.0
"""Seconds for one request. The kubelet's whole prepare has 45; a request that takes longer is tried again."""

WATCH_SECONDS = 240
"""Seconds after which the server is asked to end a watch, however quiet it was."""

LONGEST_SILENCE = WATCH_SECONDS + 30.0
"""Seconds after which a watch that says nothing is broken: its server should have ended it."""

KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""A peer that is gone without a word (a cut cable, a machine that lost power) is noticed within half a minute."""


class WatchfulTransport(httpx2.HTTPTransport):
    """A watch that says nothing ends, too: lightkube waits for its next word without a limit, and a connection of which
    only our end is left would keep us blind."""

    def __init__(self, verify: ssl.SSLContext) -> None:
        super().__init__(verify=verify, socket_options=KEEPALIVE)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        limits = request.extensions["timeout"]
        if limits["read"] is None:
            request.extensions["timeout"] = {**limits, "read": LONGEST_SILENCE}
        return super().handle_request(request)


def connect(kubeconfig: Path | None, *, field_manager: str | None = None, timeout: float = READ_TIMEOUT) -> Client:
    """A client for `kubeconfig`, or for the pod's own service account. Nothing is sent yet. `timeout`: seconds that one
    request may take.

    Tokens from files are read again when the server refuses the old one (lightkube's token file authentication).
    """
    try:
        given = KubeConfig.from_file(_readable(kubeconfig)) if kubeconfig else KubeConfig.from_service_account()
        config = given.get()
        if config is None or config.user is None:
            raise ConfigError("its current context names no user")
        transport = WatchfulTransport(verify_cluster(config.cluster, config.user, config.abs_file))
        return Client(config, timeout=httpx2.Timeout(timeout), field_manager=field_manager, transport=transport)
    except ConfigError as error:
        where = kubeconfig or "the pod's service account"
        raise Refused("BAD_KUBECONFIG", f"{where}: {error}", "give a readable kubeconfig") from error


def _readable(path: Path) -> Path:
    """The path, if a kubeconfig is there: lightkube lets errors of YAML and of missing keys through."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Refused("BAD_KUBECONFIG", f"{path} cannot be read: {error}", "give another kubeconfig") from error
    if not isinstance(content, dict) or not content.get("clusters") or not content.get("contexts"):
        raise Refused("BAD_KUBECONFIG", f"{path} names no cluster and context", "give another kubeconfig")
    return path


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Errors of the client leave this block as errors of ours, chained."""
    try:
        yield
    except ApiError as error:
        raise _family(error, what) from error
    except httpx2.HTTPError as error:
        raise Unavailable(
            "API_UNAVAILABLE", f"{what}: {type(error).__name__}: {error}", "is the API server up?"
        ) from error
    except ConfigError as error:  # a token file is read when it is needed, not when the kubeconfig is
        raise Unavailable("NO_TOKEN", f"{what}: {error}", "put a token there; it is read again") from error


def seen(what: str, read: Callable[[], T]) -> Seen[T]:
    """What the API server has: only its own 404 makes `Gone`; a refusal or silence is `Unknown`."""
    try:
        with translated(what):
            return Found(read())
    except DynamigError as error:
        if error.code == "NOT_FOUND":
            return Gone(f"{what}: the API server does not have it")
        return Unknown(str(error))


def _family(error: ApiError, what: str) -> DynamigError:
    told = f"{what}: {error.status.message}"
    match error.status.code:
        case 404:
            return Refused("NOT_FOUND", told)
        case 409:
            return Conflict("CONFLICT", told, "read again and decide anew")
        case 401:
            return Unavailable("NOT_LOGGED_IN", told, "the token or certificate is not accepted: did it expire?")
        case 403:
            return Refused("FORBIDDEN", told, "compare with deploy/chart/templates: the service account lacks it")
        case 400 | 422:
            return Refused("INVALID", told)
        case _:
            return Unavailable("API_UNAVAILABLE", told, "it is tried again")


def plain(obj: Any) -> dict[str, Any]:
    """The object as the API sent it."""
    return dict(obj)
