"""The kubelet's two gRPC services on unix sockets: registration, and DRA prepare and unprepare.

The kubelet watches `plugins_registry/` for sockets, asks GetInfo, connects to the endpoint it names and says
whether it took the plugin. After a kubelet restart it does the same again with the same sockets.
Source: k8s.io/kubelet, pkg/apis/pluginregistration/v1 and pkg/apis/dra/v1; behaviour tried on 1.37.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from dynamig.errors import Refused
from dynamig.kube.proto import dra_v1_pb2 as dra
from dynamig.kube.proto import dra_v1_pb2_grpc as dra_grpc
from dynamig.kube.proto import registration_v1_pb2 as registration
from dynamig.kube.proto import registration_v1_pb2_grpc as registration_grpc
from dynamig.protocol.claims import ClaimRef

log = structlog.get_logger(__name__)

SUPPORTED: Final = "v1.DRAPlugin"
WORKERS: Final = 128
"""Threads for the kubelet's calls. They mostly wait; the kubelet has one call per pod that starts or ends."""

UNIX_PATH_MAX: Final = 107
"""Bytes that sockaddr_un has for a path, the closing zero apart."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One device of a prepared claim, as the kubelet takes it."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]


Prepare = Callable[[ClaimRef], Sequence[Answer] | str]
Unprepare = Callable[[ClaimRef], str | None]


class Plugin:
    """Serves both sockets. `prepare` and `unprepare` return an error text instead of raising: one claim's failure
    is its own, the others of the same call are answered."""

    def __init__(
        self,
        kubelet_dir: Path,
        driver: str,
        prepare: Prepare,
        unprepare: Unprepare,
        on_registration: Callable[[bool], None],
    ) -> None:
        self._driver = driver
        self._endpoint = kubelet_dir / "plugins" / driver / "dra.sock"
        self._registry = kubelet_dir / "plugins_registry" / f"{driver}-reg.sock"
        self._dra = _serve(self._endpoint, WORKERS)
        dra_grpc.add_DRAPluginServicer_to_server(_Dra(prepare, unprepare), self._dra)
        self._registration = _serve(self._registry, 2)
        registration_grpc.add_RegistrationServicer_to_server(
            _Registration(driver, self._endpoint, on_registration), self._registration
        )

    def start(self) -> None:
        """The service first, then the socket that makes the kubelet call it."""
        self._dra.start()
        self._registration.start()

    def stop(self, grace: float) -> None:
        """No new calls; those in progress get `grace` seconds. The kubelet keeps the driver's slices for a while.

        The service goes first: a kubelet that sees the registration socket vanish drops the calls that it is in.
        """
        self._dra.stop(grace).wait()
        self._registration.stop(0).wait()


class _Dra(dra_grpc.DRAPluginServicer):
    def __init__(self, prepare: Prepare, unprepare: Unprepare) -> None:
        self._prepare = prepare
        self._unprepare = unprepare

    def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's own name
        refs = [_ref(c) for c in request.claims]
        with ThreadPoolExecutor(max_workers=max(1, len(refs))) as pool:  # claims of one pod share its 45 s
            answers = dict(zip((r.uid for r in refs), pool.map(self._prepare, refs), strict=True))
        return dra.NodePrepareResourcesResponse(claims={uid: _prepared(a) for uid, a in answers.items()})

    def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        errors: Mapping[str, str | None] = {c.uid: self._unprepare(_ref(c)) for c in request.claims}
        return dra.NodeUnprepareResourcesResponse(
            claims={uid: dra.NodeUnprepareResourceResponse(error=e or "") for uid, e in errors.items()}
        )


class _Registration(registration_grpc.RegistrationServicer):
    def __init__(self, driver: str, endpoint: Path, on_registration: Callable[[bool], None]) -> None:
        self._info = registration.PluginInfo(
            type="DRAPlugin", name=driver, endpoint=str(endpoint), supported_versions=[SUPPORTED]
        )
        self._on_registration = on_registration

    def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._info

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.plugin_registered:
            log.info("registered_with_kubelet")
        else:
            log.error("kubelet_refused_registration", error=request.error)
        self._on_registration(bool(request.plugin_registered))
        return registration.RegistrationStatusResponse()


def _ref(claim: Any) -> ClaimRef:
    return ClaimRef(str(claim.namespace), str(claim.name), str(claim.uid))


def _prepared(answer: Sequence[Answer] | str) -> Any:
    if isinstance(answer, str):
        return dra.NodePrepareResourceResponse(error=answer)
    devices = [
        dra.Device(
            request_names=list(a.requests),
            pool_name=a.pool,
            device_name=a.device,
            cdi_device_ids=list(a.cdi_ids),
        )
        for a in answer
    ]
    return dra.NodePrepareResourceResponse(devices=devices)


def _serve(path: Path, workers: int) -> grpc.Server:
    """A server on `path`. A socket that a killed process left is replaced: the driver holds its node's lock."""
    if len(str(path)) > UNIX_PATH_MAX:
        raise Refused("PATH_TOO_LONG", f"socket {path} is longer than {UNIX_PATH_MAX} bytes", "shorten kubeletDir")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(max_workers=workers, thread_name_prefix=path.stem))
    server.add_insecure_port(f"unix:{path}")
    return server
