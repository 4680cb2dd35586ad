"""`dynamig gpus` and `dynamig ps`: the cluster's GPUs and who has what, from the API server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from dynamig.cli import draw, table, view
from dynamig.cli.cluster import read
from dynamig.cli.holdings import STATES, holding_json
from dynamig.cli.output import Json, show
from dynamig.errors import Refused
from dynamig.protocol import names

Kubeconfig = Annotated[
    str | None,
    typer.Option("--kubeconfig", envvar="KUBECONFIG", help="Default: $KUBECONFIG, else ~/.kube/config."),
]
Driver = Annotated[str, typer.Option("--driver-name", help="DRA driver whose GPUs to show.")]
NodeName = Annotated[str | None, typer.Option("--node", help="Only this node.")]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Only this namespace; the right to read its claims and pods is enough."),
]


def gpus(
    kubeconfig: Kubeconfig = None, driver_name: Driver = names.DRIVER_NAME, node: NodeName = None, json: Json = False
) -> None:
    """Every GPU as a bar of memory slices: who holds which, what is free.

    A block is one device of a claim, with its profile; `whole` is the full GPU. Dots are free memory slices.

    The block of a ready device is solid; one that is only allocated is broken, a failed one has exclamation marks,
    one that leaves has arrows.

    Dashes are memory slices that nobody holds and on which nothing that is published fits any more.

    Crosses are withdrawn: an instance of unknown owner is there; nothing is cut on it and nothing destroyed.

    A bar of one block that names a Slurm job: a native job has the whole GPU. Behind a pod stands the job that pays.

    A holder that is not ready has its state behind it: `dynamig ps --help` explains the words.

    In a pipe each GPU is one line of columns, nothing cut; `_` stands for blanks inside a column, `-` for nothing.

    Exit status 1 if there is no GPU.
    """
    views = _chosen(read(kubeconfig).views(driver_name), driver_name, node, as_json=json)
    show([view.gpu_json(v) for v in views], lambda page: draw.gpus(views, page), as_json=json)


def ps(
    kubeconfig: Kubeconfig = None,
    driver_name: Driver = names.DRIVER_NAME,
    node: NodeName = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    cluster = read(kubeconfig, namespace)
    waits = cluster.waiting(driver_name) if node is None else []
    views = cluster.views(driver_name)
    if namespace is not None:
        views = _on(node, views)
    elif not waits:
        views = _chosen(views, driver_name, node, as_json=json)
    body = [holding_json(h) for h in (*(h for v in views for h in v.holdings), *waits)]
    if body:
        show(body, lambda page: table.holdings(views, waits, page), as_json=json)
    else:
        where = f"{f' in namespace {namespace}' if namespace else ''}{f' on node {node}' if node else ''}"
        show(body, Text(f"no claim{where} has a device{'' if node else ', and none waits'}"), as_json=json)


ps.__doc__ = (
    "Every device that a claim has, with its pod, state, UUID and the Slurm job that pays, where one does; and every "
    "claim or pod that waits for one, with the reason.\n\nStates:\n\n"
    + "\n\n".join(f"{state.value}: {meaning}." for state, meaning in STATES.items())
    + "\n\nWith -n NAMESPACE what the user may not read is left out: the profile of a device that is not ready.\n\n"
    "In a pipe a device is one line of columns, nothing cut; `_` stands for blanks in a reason, `-` for nothing."
)


def _on(node: str | None, views: Sequence[view.GpuView]) -> list[view.GpuView]:
    return [v for v in views if node in (None, v.node)]


def _chosen(views: Sequence[view.GpuView], driver: str, node: str | None, *, as_json: bool) -> Sequence[view.GpuView]:
    """Those on the node, if one is named. Raises Refused NO_GPU if there is none, after the empty list for programs."""
    if found := _on(node, views):
        return found
    if as_json:
        show([], Text(), as_json=True)
    if node is not None and views:
        there = ", ".join(sorted({v.node for v in views if v.node}))
        raise Refused("NO_GPU", f"no GPU is published by {driver} on node {node}", f"nodes with GPUs: {there}")
    on = f" on node {node}" if node else ""
    raise Refused("NO_GPU", f"no GPU is published by {driver}{on}", "does the driver run? `kubectl get resourceslices`")
