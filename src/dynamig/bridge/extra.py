"""What the Extra of Slurm's nodes says: of pods on their GPUs, for people who read `scontrol show node` (C6), and of
our drains, for the next look. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from dynamig.bridge.actions import Publish
from dynamig.bridge.drains import remembered
from dynamig.bridge.world import NodeView, SetClaim, World
from dynamig.protocol import names
from dynamig.protocol.claims import AllocatedDevice
from dynamig.protocol.device_status import outcomes

Held = Mapping[str | None, Sequence[SetClaim]]
"""Claims that are held, by node."""


def publications(world: World) -> tuple[Publish, ...]:
    """For each node whose Extra does not say what its claims have, and what is to be remembered of its drains. What
    others wrote there stays; where it is no JSON object it is theirs alone."""
    held = defaultdict[str | None, list[SetClaim]](list)
    for claim in world.claims.values():
        if claim.view.held:
            held[claim.view.held_by_node].append(claim)
    found = []
    for name, views in world.of_slurm().items():
        slurm = world.slurm_nodes.get(name)
        if slurm is None or slurm.extra is None:
            continue
        value = {**_claims(held, views, world), **remembered(slurm, views).to_extra()} or None
        if slurm.extra.get(names.EXTRA_KEY) != value:
            found.append(Publish(name, value))
    return tuple(found)


def _claims(held: Held, views: Sequence[NodeView], world: World) -> Mapping[str, Any]:
    entries = [
        _entry(claim, device, node, world)
        for node in views
        for claim in held.get(node.name, ())
        for device in claim.view.devices_of(world.driver)
    ]
    return {"claims": sorted(entries, key=lambda e: (e["device"], e["claim"]))} if entries else {}


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
