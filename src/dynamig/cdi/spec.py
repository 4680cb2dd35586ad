"""CDI specifications of claims, as plain values.

One specification a claim, one CDI device per allocated device. A container gets the device nodes of just the
devices that its requests name, and what every container of ours needs (libraries, environment) from the
specification's own edits.
Source: CDI specification 0.6.0, the newest that containerd 1.7 and 2.x both read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dynamig.protocol.gpus import DeviceNode

CDI_VERSION: Final = "0.6.0"

VOID: Final = "NVIDIA_VISIBLE_DEVICES=void"
"""Tells NVIDIA's own runtime hook to add nothing, whatever the image asks for."""


@dataclass(frozen=True, slots=True)
class Mount:
    host_path: str
    container_path: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "bind")


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What a site adds to every container of ours. `env`: NAME=value."""

    env: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()


def device_id(kind: str, uid: str, device: str) -> str:
    """The fully qualified CDI name that the kubelet passes to the container runtime."""
    return f"{kind}={_device_name(uid, device)}"


def claim_spec(
    kind: str, uid: str, devices: Mapping[str, Sequence[DeviceNode]], edits: ContainerEdits
) -> dict[str, Any]:
    """The specification of one claim; `devices` maps device name to exactly the nodes it opens.

    The nodes' numbers are in it, so that the runtime looks nothing up when a container starts.
    """
    return {
        "cdiVersion": CDI_VERSION,
        "kind": kind,
        "devices": [
            {"name": _device_name(uid, name), "containerEdits": {"deviceNodes": [_node(n) for n in nodes]}}
            for name, nodes in sorted(devices.items())
        ],
        "containerEdits": {
            "env": [VOID, *edits.env],
            **({"mounts": [_mount(m) for m in edits.mounts]} if edits.mounts else {}),
        },
    }


def device_names(spec: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(d["name"] for d in spec.get("devices") or ())


def _device_name(uid: str, device: str) -> str:
    return f"{uid}-{device}"


def _node(node: DeviceNode) -> dict[str, Any]:
    return {
        "path": node.path,
        "hostPath": node.host_path,
        "type": "c",
        "major": node.major,
        "minor": node.minor,
        "permissions": "rw",
    }


def _mount(mount: Mount) -> dict[str, Any]:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": list(mount.options),
    }
