"""What the Extra of Slurm's nodes says of pods on their GPUs, for people who read `scontrol show node` (C6). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dynamig.bridge.actions import Publish
from dynamig.bridge.world import NodeView, SetClaim, World
from dynamig.protocol import names
from dynamig.protocol.claims import AllocatedDevice
from dynamig.protocol.device_status import outcomes


def publications(world: World) -> tuple[Publish, ...]:
    """For each node whose Extra does not say what its claims have. What others wrote there stays; where it is no JSON
    object it is theirs alone."""
    held: dict[str | None, list[SetClaim]] = {}
    for claim in world.claims.values():
        if claim.view.held:
            held.setdefault(claim.view.held_by_node, []).append(claim)
    found = []
    for node in world.nodes.values():
        slurm = world.slurm_nodes.get(node.slurm)
        if slurm is None or slurm.extra is None:
            continue
        value = _value(held.get(node.name, ()), node, world)
        if slurm.extra.get(names.EXTRA_KEY) != value:
            found.append(Publish(node.slurm, value))
    return tuple(found)


def _value(here: Sequence[SetClaim], node: NodeView, world: World) -> Mapping[str, Any] | None:
    entries = [_entry(claim, device, node, world) for claim in here for device in claim.view.devices_of(world.driver)]
    return {"claims": sorted(entries, key=lambda e: (e["device"], e["claim"]))} if entries else None


def _entry(claim: SetClaim, device: AllocatedDevice, node: NodeView, world: World) -> dict[str, Any]:
    gpu = next((d.gpu for d in claim.noted if d.device == device.device), None)
    made = (
        o
        for o in outcomes(claim.view, world.driver)
        if o.prepared and (o.pool, o.device) == (device.pool, device.device)
    )
    return {
        "claim": f"{claim.view.ref.namespace}/{claim.view.ref.name}",
        "pods": sorted(claim.view.reserved_for),
        "gpu": next((i for i, known in node.map.items() if known == gpu), None),
        "device": device.device,
        "uuid": next((o.data["uuid"] for o in made), None),
    }
