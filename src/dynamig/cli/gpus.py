"""`dynamig gpus` and `dynamig ps`: the cluster's GPUs and who has what, from the API server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from dynamig.cli import draw, view
from dynamig.cli.output import Json, show
from dynamig.errors import Refused
from dynamig.kube.client import ResourceClaim, ResourceSlice, connect, plain, translated
from dynamig.protocol import names

Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", envvar="KUBECONFIG", help="Default: $KUBECONFIG, else ~/.kube/config.")
]
Driver = Annotated[str, typer.Option("--driver-name", help="DRA driver whose GPUs to show.")]
NodeName = Annotated[str | None, typer.Option("--node", help="Only this node.")]


def gpus(
    kubeconfig: Kubeconfig = None, driver_name: Driver = names.DRIVER_NAME, node: NodeName = None, json: Json = False
) -> None:
    """Every GPU as a bar of memory slices: who holds which, what is free."""
    views = [v for v in _views(kubeconfig, driver_name) if node in (None, v.node)]
    body = [{**_fields(v), "free": list(v.free)} for v in views]
    nothing = Text(f"no GPU is published by {driver_name}: is the driver running? `kubectl get resourceslices`")
    show(body, draw.gpus(views) if views else nothing, as_json=json)


def ps(
    kubeconfig: Kubeconfig = None, driver_name: Driver = names.DRIVER_NAME, node: NodeName = None, json: Json = False
) -> None:
    """Every device that a claim has, with its pod, state and MIG UUID."""
    rows = [h for v in _views(kubeconfig, driver_name) if node in (None, v.node) for h in v.holdings]
    show(rows, draw.holdings(rows) if rows else Text("no claim has a device"), as_json=json)


def _views(kubeconfig: Path | None, driver_name: str) -> tuple[view.GpuView, ...]:
    client = connect(kubeconfig or _default_kubeconfig())
    with translated("reading ResourceSlices and ResourceClaims"):
        slices = [plain(s) for s in client.list(ResourceSlice)]
        claims = [plain(c) for c in client.list(ResourceClaim, namespace="*")]
    return view.gpu_views(slices, claims, driver_name)


def _default_kubeconfig() -> Path:
    path = Path.home() / ".kube/config"
    if not path.exists():
        raise Refused("BAD_KUBECONFIG", f"{path} does not exist", "give --kubeconfig or set KUBECONFIG")
    return path


def _fields(value: view.GpuView) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}
