"""`dynamig gpus` and `dynamig ps`: the cluster's GPUs and who has what, from the API server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dynamig.cli import draw, view
from dynamig.cli.output import Json, show
from dynamig.errors import DynamigError, Refused
from dynamig.kube.client import ResourceClaim, ResourceSlice, connect, plain, translated
from dynamig.protocol import names

Kubeconfig = Annotated[
    str | None,
    typer.Option("--kubeconfig", envvar="KUBECONFIG", help="Default: $KUBECONFIG, else ~/.kube/config."),
]
Driver = Annotated[str, typer.Option("--driver-name", help="DRA driver whose GPUs to show.")]
NodeName = Annotated[str | None, typer.Option("--node", help="Only this node.")]

NEXT_STEPS = {
    "API_UNAVAILABLE": "try `kubectl get --raw /readyz` with the same kubeconfig",
    "FORBIDDEN": "the user needs the verb list on resourceslices and resourceclaims of resource.k8s.io",
    "NOT_FOUND": "resource.k8s.io/v1 is served by Kubernetes 1.34 and newer",
}


def gpus(
    kubeconfig: Kubeconfig = None, driver_name: Driver = names.DRIVER_NAME, node: NodeName = None, json: Json = False
) -> None:
    """Every GPU as a bar of memory slices: who holds which, what is free.

    A block is one device of a claim, with its profile; `whole` is the full GPU. Dots are free memory slices.

    Crosses are withdrawn: an instance of unknown owner is there; nothing is cut on it and nothing destroyed.

    A holder that is not ready has its state behind it: `dynamig ps --help` explains the words.

    In a pipe each GPU is one line of columns, nothing cut.
    """
    views = _on_node(_views(kubeconfig, driver_name), node)
    body = [view.gpu_json(v) for v in views]
    if views:
        show(body, lambda page: draw.gpus(views, page), as_json=json)
    else:
        show(body, _no_gpu(driver_name, node), as_json=json)


def ps(
    kubeconfig: Kubeconfig = None, driver_name: Driver = names.DRIVER_NAME, node: NodeName = None, json: Json = False
) -> None:
    views = _on_node(_views(kubeconfig, driver_name), node)
    body = [view.holding_json(h) for v in views for h in v.holdings]
    if body:
        show(body, lambda page: draw.holdings(views, page), as_json=json)
    else:
        show(body, Text(f"no claim has a device{f' on node {node}' if node else ''}"), as_json=json)


ps.__doc__ = "Every device that a claim has, with its pod, state and UUID.\n\nStates:\n\n" + "\n\n".join(
    f"{state.value}: {meaning}." for state, meaning in view.STATES.items()
)


def _views(kubeconfig: str | None, driver_name: str) -> tuple[view.GpuView, ...]:
    with _advice():
        client = connect(_kubeconfig(kubeconfig))
        with translated("reading ResourceSlices and ResourceClaims"):
            slices = [plain(s) for s in client.list(ResourceSlice)]
            claims = [plain(c) for c in client.list(ResourceClaim, namespace="*")]
    return view.gpu_views(slices, claims, driver_name)


def _on_node(views: Sequence[view.GpuView], node: str | None) -> list[view.GpuView]:
    return [v for v in views if node in (None, v.node)]


def _no_gpu(driver: str, node: str | None) -> Text:
    where = f" on node {node}" if node else ""
    return Text(f"no GPU is published by {driver}{where}; see `kubectl get resourceslices`: does the driver run?")


@contextmanager
def _advice() -> Iterator[None]:
    """Errors leave with a next step for a person at a command line."""
    try:
        yield
    except DynamigError as error:
        if advice := NEXT_STEPS.get(error.code):
            raise type(error)(error.code, error.what, advice) from error
        raise


def _kubeconfig(given: str | None, home: Callable[[], Path] = Path.home) -> Path:
    """The first file of a list such as $KUBECONFIG holds that exists, as kubectl skips missing ones."""
    paths = [Path(p) for p in given.split(os.pathsep) if p] if given else [home() / ".kube/config"]
    for path in paths:
        if path.exists():
            return path
    listed = ", ".join(map(str, paths))
    raise Refused("BAD_KUBECONFIG", f"no kubeconfig: {listed} does not exist", "give --kubeconfig or set KUBECONFIG")
