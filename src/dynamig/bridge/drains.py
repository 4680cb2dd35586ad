"""Nodes that Slurm is to start nothing on, because a GPU that it would give out does not answer (case C-71). Pure.

Slurm keeps single GPUs of a node from nobody, so the whole node is drained: what runs there goes on, and the reason is
where administrators look for it, in `sinfo -R` (docs/decisions/0020-a-silent-gpu-drains-its-node.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dynamig.bridge.actions import Drain, Undrain
from dynamig.bridge.world import NodeView, World
from dynamig.protocol import names
from dynamig.protocol.slurm_jobs import SlurmNode


def drains(world: World) -> Iterator[Drain | Undrain]:
    """For each node of Slurm whose drain by us is not as its driver's report wants it. Somebody else's reason stays,
    and where the report is old nothing is concluded."""
    for slurm in world.slurm_nodes.values():
        views = [node for node in world.nodes.values() if node.slurm == slurm.name]
        if views and all(node.fresh for node in views):
            yield from _change(slurm, _why(views))


def _change(slurm: SlurmNode, why: str) -> Iterator[Drain | Undrain]:
    ours = slurm.drained and slurm.reason.startswith(names.DRAINED)
    if why and (ours or not slurm.reason) and slurm.reason != names.DRAINED + why:
        yield Drain(slurm.name, why)
    elif ours and not why:
        yield Undrain(slurm.name)


def _why(views: Sequence[NodeView]) -> str:
    """Which of the GPUs that Slurm gives out do not answer; empty if all do. Two that say they are the same node are
    both heard."""
    silent = {(i, gpu, n.unhealthy[gpu]) for n in views for i, gpu in n.map.items() if gpu in n.unhealthy}
    return "; ".join(f"GPU {i} ({gpu}) does not answer: {heard}" for i, gpu, heard in sorted(silent))
