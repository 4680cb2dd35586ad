"""Where a claim set should be held. Pure: from what Slurm and Kubernetes say now to one hold request's essentials.

Slurm, not the bridge, picks the GPU of a shard job: the lowest index with enough free shards. So a plan is *consistent*
if the GPU that Slurm would pick for its cost is the one whose placement has that cost; only such plans start now. Where
none is consistent the set waits for the nodes on which it can ever be placed, at the least cost it can have there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dynamig.bridge.world import NodeView, SetClaim, World
from dynamig.mig import GpuUuid
from dynamig.protocol.slurm_jobs import SlurmNode, SlurmNodeName


@dataclass(frozen=True, slots=True, order=True)
class Pick:
    """One device for one request of one claim."""

    claim_uid: str
    request: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Devices for every request of a set, on one GPU. `cost`: shards; `lost`: partitions that it makes impossible."""

    gpu: GpuUuid
    picks: tuple[Pick, ...]
    cost: int
    lost: int


@dataclass(frozen=True, slots=True)
class NoChoice:
    """Why a set does not fit on a GPU, in words for its user. `ever`: it would on that GPU if it were empty."""

    why: str
    ever: bool


class Chooser(Protocol):
    """Devices for a set on one GPU: the best by policy that costs at most `most` shards, beside what is there now."""

    def __call__(self, claims: Sequence[SetClaim], gpu: GpuUuid, *, most: int | None = None) -> Choice | NoChoice: ...

    def when_empty(self, claims: Sequence[SetClaim], gpu: GpuUuid) -> Choice | NoChoice:
        """The same as if nothing were on the GPU."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """A hold to ask for. `choice`: what is expected, if it can start now."""

    nodes: tuple[SlurmNodeName, ...]
    cost: int
    choice: Choice | None


@dataclass(frozen=True, slots=True)
class NoPlan:
    """No node can ever serve the set as things are configured; shown to the user."""

    why: str


def plan_hold(
    claims: Sequence[SetClaim], world: World, choose: Chooser, *, excluded: Iterable[SlurmNodeName] = ()
) -> Plan | NoPlan:
    """The hold that starts now on the best consistent GPU, else one that waits; else why there is none.

    Best: the fewest partitions lost, then the fewest shards, then node and GPU order (deterministic).
    """
    left_out = frozenset(excluded)
    nodes = [n for n in sorted(world.nodes.values(), key=lambda n: n.name) if n.slurm not in left_out]
    ready = [(n, world.slurm_nodes[n.slurm]) for n in nodes if n.ready and n.slurm in world.slurm_nodes]
    now = [(choice, node) for node, slurm in ready for choice in _consistent(claims, node, slurm, choose)]
    if now:
        choice, node = min(now, key=lambda pair: (pair[0].lost, pair[0].cost, pair[1].name, pair[0].gpu))
        return Plan((node.slurm,), choice.cost, choice)
    return _wait(claims, ready, choose, nodes)


def _consistent(claims: Sequence[SetClaim], node: NodeView, slurm: SlurmNode, choose: Chooser) -> Iterable[Choice]:
    if not slurm.usable:
        return
    for index, gpu in sorted(node.map.items()):
        free = next((g.free for g in slurm.gpus if g.index == index), 0)
        choice = choose(claims, gpu, most=free)
        if isinstance(choice, Choice):
            picked = slurm.pick(choice.cost)
            if picked is not None and picked.index == index:
                yield choice


def _wait(
    claims: Sequence[SetClaim],
    ready: Sequence[tuple[NodeView, SlurmNode]],
    choose: Chooser,
    nodes: Sequence[NodeView],
) -> Plan | NoPlan:
    possible: dict[SlurmNodeName, int] = {}
    reasons: list[str] = []
    for node, _ in ready:
        for gpu in node.map.values():
            choice = choose.when_empty(claims, gpu)
            if isinstance(choice, Choice):
                possible[node.slurm] = min(choice.cost, possible.get(node.slurm, choice.cost))
            else:
                reasons.append(choice.why)
    if possible:
        cost = min(possible.values())
        return Plan(tuple(sorted(n for n, c in possible.items() if c == cost)), cost, None)
    if reasons:
        return NoPlan(reasons[0])
    waiting = "; ".join(f"{n.name}: {n.why_not}" for n in nodes if not n.ready)
    return NoPlan(f"no node is ready for holds ({waiting or 'none is managed'})")
