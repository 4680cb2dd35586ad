"""What administrators say of this node's place in Slurm: the cluster's ConfigMap, else the driver's file, else nothing.

The ConfigMap has one key for each Kubernetes node that needs one; its value is YAML (docs/reference/gpu-map.md). What
it says of a node counts before the node's file, each of its two settings for itself
(docs/decisions/0015-who-pays-and-which-gpu.md).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dynamig import settings
from dynamig.errors import Refused, Unavailable
from dynamig.protocol import names
from dynamig.protocol.device_map import Given, Source
from dynamig.protocol.seen import Found, Gone, Seen, Unknown
from dynamig.settings import SLURM_NODE, Settings

Index = Annotated[int, Field(ge=0, strict=True)]
GpuName = Annotated[str, Field(pattern=r"^(GPU-[-0-9A-Za-z]+|[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])$")]
"""UUID as `nvidia-smi -L` shows it, or PCI bus id."""


class NodeEntry(Settings):
    """The value of one key."""

    slurm_node: Annotated[str, Field(pattern=SLURM_NODE, max_length=253)] | None = None
    gpus: Annotated[dict[Index, GpuName], Field(min_length=1)] | None = None


def given_for(node: str, entry: Seen[str], file: Given) -> Given:
    """What counts for Kubernetes node `node`. `entry`: the value of its key.

    Raises: Unavailable MAP_UNKNOWN while it is not known whether there is one; Refused BAD_CONFIG, with every error,
    for one that cannot be read.
    """
    match entry:
        case Unknown(reason):
            raise Unavailable("MAP_UNKNOWN", f"ConfigMap {names.GPU_MAP}: {reason}", "it is read when the API answers")
        case Gone():
            return file
        case Found(text):
            read = _read(node, text)
    return Given(
        slurm_node=read.slurm_node or file.slurm_node,
        gpus=file.gpus if read.gpus is None else read.gpus,
        source=file.source if read.gpus is None else Source.CONFIG_MAP,
    )


def _read(node: str, text: str) -> NodeEntry:
    where = f"ConfigMap {names.GPU_MAP}, key {node}"
    read = settings.parse(text, NodeEntry, where, "docs/reference/gpu-map.md")
    if read == NodeEntry():
        raise Refused("BAD_CONFIG", f"{where}: has neither slurmNode nor gpus", "docs/reference/gpu-map.md")
    return read
