"""GPUs that do not answer: Slurm is to start nothing on their nodes, and their pods are told (case C-71). Pure.

Slurm keeps single GPUs of a node from nobody, so the whole node is drained: what runs there goes on, and the reason is
where administrators look for it, in `sinfo -R` (docs/decisions/0020-a-silent-gpu-drains-its-node.md). What they do to a
drain of ours counts more than what we would do (docs/decisions/0023-whose-drain-it-is.md).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from dynamig.bridge.actions import Drain, Tell, Undrain
from dynamig.bridge.drain_memory import DrainMemory, Mark, is_ours, memory_of, next_memory
from dynamig.bridge.sets import ClaimSet
from dynamig.bridge.world import NodeView, World
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.outages import Outage
from dynamig.protocol.slurm_jobs import SlurmNode
from dynamig.protocol.slurm_text import SlurmText, slurm_text

UNKNOWN = sys.maxsize
"""Index of a GPU of which only NVML has told, on a node without a map."""


def drains(world: World) -> Iterator[Drain | Undrain]:
    """For each node of Slurm whose drain by us is not as its driver's report wants it. Somebody else's reason stays,
    and where the report is old nothing is concluded."""
    for name, views in world.of_slurm().items():
        slurm = world.slurm_nodes.get(name)
        if slurm is not None and _are_fresh(views):
            yield from _change(slurm, views)


def remembered(slurm: SlurmNode, views: Sequence[NodeView]) -> DrainMemory:
    """What the node's Extra is to say of our drains; by an old report, what it says now."""
    return next_memory(slurm, frozenset(_troubles(slurm, views))) if _are_fresh(views) else memory_of(slurm)


def _change(slurm: SlurmNode, views: Sequence[NodeView]) -> Iterator[Drain | Undrain]:
    troubles = _troubles(slurm, views)
    memory = next_memory(slurm, frozenset(troubles))
    wanted = [words for mark, words in troubles.items() if mark not in memory.overruled]
    ours = is_ours(slurm)
    if wanted and (ours or not slurm.reason):
        why = slurm_text(" and ".join(wanted))
        if not (ours and _says(slurm.reason, why)):
            yield Drain(slurm.name, why)
    elif not wanted and ours and all(view.reported > slurm.reason_since for view in views):
        yield Undrain(slurm.name)  # by a report that may know of what the drain is for, as `no driver answers`


def _says(reason: str, why: SlurmText) -> bool:
    """Whether the reason is ours, for this; slurmctld itself adds ` : Not responding` to whatever stands there."""
    return f"{reason} : ".startswith(f"{names.DRAINED}{why} : ")


def _are_fresh(views: Sequence[NodeView]) -> bool:
    """Of two that say they are the same node each may lack what the other reports."""
    return all(view.fresh for view in views)


def _troubles(slurm: SlurmNode, views: Sequence[NodeView]) -> Mapping[Mark, str]:
    """Why GPUs that Slurm gives out are out of use, in the order of their indices: one whose index is not in its
    driver's map is lent to nobody either, and which it is nobody guesses."""
    given, known = {g.index for g in slurm.gpus}, {i for view in views for i in view.map}
    absent = given - known if known else set[int]()
    found = [(gpu, outage) for view in views for gpu, outage in view.slurm_outages.items()]
    if not found and not absent:  # almost always, on each of a thousand nodes
        return {}
    indices = {gpu: i for view in views for i, gpu in view.map.items()}
    mapped = [(indices.get(gpu, UNKNOWN), gpu, outage) for gpu, outage in found]
    troubles = {(i, (gpu, o.since)): _words(gpu, o) for i, gpu, o in mapped if i in given or i == UNKNOWN}
    troubles |= {(i, (GpuUuid(f"index {i}"), 0)): "its driver knows no GPU of this index" for i in absent}
    return {mark: f"{_called(i)}: {words}" for (i, mark), words in sorted(troubles.items())}


def _called(index: int) -> str:
    return "a GPU of unknown index" if index == UNKNOWN else f"GPU {index}"


def _words(gpu: GpuUuid, outage: Outage) -> str:
    if outage.until is None:
        return f"{outage.heard} ({gpu} does not answer)"
    until = datetime.fromtimestamp(outage.until, UTC)
    return f"{outage.heard} ({gpu} answers again and is watched until {until:%H:%M:%S} UTC)"


def sick(of: ClaimSet, world: World) -> tuple[Tell, ...]:
    """Words to pods on a GPU that does not answer: they stay, and only their owners know whether they still work."""
    gpu = of.gpu
    homes = (world.nodes.get(claim.view.held_by_node or "") for claim in of.claims)
    node = next((n for n in homes if n is not None and _is_silent(gpu, n)), None)
    if gpu is None or node is None or not of.pods:
        return ()
    why = f"{gpu} of node {node.name} does not answer: {node.outages[gpu].heard}"
    then = "The pod is left as it is: delete it if it works no more; it then ends once the GPU answers"
    return (Tell(of, names.GPU_UNHEALTHY, f"{why}. {then}"),)


def _is_silent(gpu: GpuUuid | None, node: NodeView) -> bool:
    return gpu is not None and gpu in node.outages and node.outages[gpu].silent
