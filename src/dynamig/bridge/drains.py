"""GPUs that do not answer: Slurm is to start nothing on their nodes, and their pods are told (case C-71). Pure.

Slurm keeps single GPUs of a node from nobody, so the whole node is drained: what runs there goes on, and the reason is
where administrators look for it, in `sinfo -R` (docs/decisions/0020-a-silent-gpu-drains-its-node.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dynamig.bridge.actions import Drain, Tell, Undrain
from dynamig.bridge.sets import ClaimSet
from dynamig.bridge.world import NodeView, World
from dynamig.protocol import names
from dynamig.protocol.slurm_jobs import SlurmNode, SlurmNodeName
from dynamig.protocol.slurm_text import SlurmText, slurm_text


def drains(world: World) -> Iterator[Drain | Undrain]:
    """For each node of Slurm whose drain by us is not as its driver's report wants it. Somebody else's reason stays,
    and where the report is old nothing is concluded."""
    views: dict[SlurmNodeName, list[NodeView]] = {}
    for node in world.nodes.values():
        views.setdefault(node.slurm, []).append(node)
    for name, of_node in views.items():
        slurm = world.slurm_nodes.get(name)
        if slurm is not None and all(node.fresh for node in of_node):
            yield from _change(slurm, _why(of_node))


def _change(slurm: SlurmNode, why: SlurmText) -> Iterator[Drain | Undrain]:
    ours = slurm.drained and slurm.reason.startswith(names.DRAINED)
    if why and (ours or not slurm.reason) and slurm.reason != names.DRAINED + why:
        yield Drain(slurm.name, why)
    elif ours and not why:
        yield Undrain(slurm.name)


def _why(views: Sequence[NodeView]) -> SlurmText:
    """Which of the GPUs that Slurm gives out do not answer; empty if all do. Two that say they are the same node are
    both heard."""
    silent = {(i, gpu, n.unhealthy[gpu]) for n in views for i, gpu in n.map.items() if gpu in n.unhealthy}
    return slurm_text(" and ".join(f"GPU {i}: {heard} ({gpu} does not answer)" for i, gpu, heard in sorted(silent)))


def sick(of: ClaimSet, world: World) -> tuple[Tell, ...]:
    """Words to pods on a GPU that does not answer: they stay, and only their owners know whether they still work."""
    gpu = of.gpu
    homes = (world.nodes.get(claim.view.held_by_node or "") for claim in of.claims)
    node = next((n for n in homes if n is not None and gpu in n.unhealthy), None)
    if gpu is None or node is None or not of.pods:
        return ()
    why = f"{gpu} of node {node.name} does not answer: {node.unhealthy[gpu]}"
    return (Tell(of, names.GPU_UNHEALTHY, f"{why}. The pod is left as it is: delete it if it works no more"),)
