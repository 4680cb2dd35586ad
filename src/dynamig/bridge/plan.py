"""Where a claim set should be held. Pure: from what Slurm and Kubernetes say now to one hold request's essentials.

Slurm, not the bridge, picks the GPU of a shard job: the lowest index with enough free shards. A GPU with a place for
the set is *reached* if Slurm would pick it, or if the GPUs before it, which have the shards but no place, are filled
for a moment by ballast (docs/decisions/0013-ballast.md). Where none is reached now, the set waits for nodes on which
Slurm would not start it now; on the others it would only get shards without a place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dynamig.bridge.fits import why_not
from dynamig.bridge.sets import ClaimSet
from dynamig.bridge.world import NodeView, World
from dynamig.mig import GpuUuid
from dynamig.protocol.slurm_jobs import JobState, SlurmGpu, SlurmNode, SlurmNodeName


@dataclass(frozen=True, slots=True, order=True)
class Pick:
    """One device for one request of one claim."""

    claim_uid: str
    request: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Devices for every request of a set, on one GPU. `cost`: shards; `lost`: partitions that it makes impossible;
    `devices`: by claim UID what `status.allocation.devices` is to be, with the configuration of claim and classes and
    the claim's tolerations; no part of equality."""

    gpu: GpuUuid
    picks: tuple[Pick, ...]
    cost: int
    lost: int
    devices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class NoChoice:
    """Why a set does not fit on a GPU, in words for its user. `unmatched`: the GPU has nothing of what it asks for."""

    why: str
    unmatched: bool = False


class Chooser(Protocol):
    """Devices for a set on one GPU: the best by policy that costs at most `most` shards, beside what is there now."""

    def __call__(self, of: ClaimSet, gpu: GpuUuid, *, most: int | None = None) -> Choice | NoChoice: ...

    def when_empty(self, of: ClaimSet, gpu: GpuUuid) -> Choice | NoChoice:
        """The same as if nothing were on the GPU."""
        ...


@dataclass(frozen=True, slots=True)
class Filler:
    """Ballast: all shards that are free on one GPU of the plan's only node."""

    index: int
    shards: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A hold to ask for. `choice`: what is expected if it can start now; `ballast`: what must be filled for that."""

    nodes: tuple[SlurmNodeName, ...]
    cost: int
    choice: Choice | None = None
    ballast: tuple[Filler, ...] = ()


@dataclass(frozen=True, slots=True)
class NoPlan:
    """Nothing that could be asked of Slurm now would help; shown to the user."""

    why: str


MOST_KINDS = 3
"""Kinds of GPU whose devices are named to a user whose selectors match none of them."""


def plan_hold(
    of: ClaimSet, world: World, choose: Chooser, *, excluded: Sequence[str] = (), stuck: Sequence[str] = ()
) -> Plan | NoPlan:
    """The hold that starts now at the best place, else one that waits; else why there is none.

    Best: the least ballast, then the fewest partitions lost, then the fewest shards, then node and GPU order
    (deterministic). `excluded`: Kubernetes nodes where kube-scheduler could not place the pods, the latest last; those
    that were excluded first come back first where no other can serve. `stuck`: where Slurm lets the set wait.
    """
    for first in range(len(excluded)):
        if isinstance(planned := _plan_but_for(of, world, choose, excluded[first:], stuck), Plan):
            return planned
    return _plan_but_for(of, world, choose, (), stuck)


def _plan_but_for(
    of: ClaimSet, world: World, choose: Chooser, excluded: Sequence[str], stuck: Sequence[str]
) -> Plan | NoPlan:
    if why := _apart(of):
        return NoPlan(why)
    known = _candidates(of, world)
    unfit = {n.name: why for n in known if (why := no_place_for(of, n))}
    fit = [n for n in known if n.name not in unfit and n.name not in excluded]
    nodes = [n for n in fit if n.name not in stuck] or fit
    ready = [(n, world.slurm_nodes[n.slurm]) for n in nodes if n.ready and n.slurm in world.slurm_nodes]
    if not ready:
        reasons = ((n.name, n.why_not or unfit.get(n.name)) for n in known)
        waiting = "; ".join(f"{name}: {why}" for name, why in reasons if why)
        return NoPlan(f"no node is ready for holds ({waiting or 'none is managed'})")
    if not of.claims:
        return Plan(tuple(n.slurm for n, _ in ready), 0)
    now = sorted(
        ((rank, plan) for node, slurm in ready for rank, plan in _reached(of, node, slurm, choose)), key=lambda p: p[0]
    )
    return _join(now) if now else _wait(of, ready, choose, world)


def _apart(of: ClaimSet) -> str:
    """Why no node can have a pod, of whose hand-made claims each is held for itself; empty if they are together."""
    homes = {c.view.ref.name: c.view.held_by_node for c in of.leans_on}
    if len(set(homes.values())) < 2:
        return ""
    told = ", ".join(f"{claim} on {node}" for claim, node in sorted(homes.items()))
    return f"its claims are on different nodes ({told}): write both requests into one claim, or into a template"


def _candidates(of: ClaimSet, world: World) -> Sequence[NodeView]:
    """Nodes in order of their names: where the hand-made claims of its pod are, if it has any."""
    bound = {c.view.held_by_node for c in of.leans_on}
    return [n for n in sorted(world.nodes.values(), key=lambda n: n.name) if not bound or bound == {n.name}]


def no_place_for(of: ClaimSet, node: NodeView) -> str:
    """Why kube-scheduler would let no pod of the set be there; empty if one may be, as far as is known here. One that
    may not keeps a shared claim from no other."""
    reasons = [why_not(pod.rules, node.name, node.marks) for pod in of.pods]
    return reasons[0] if reasons and all(reasons) else ""


Rank = tuple[int, int, int, str, int]
"""Ballast, partitions lost, shards, node, Slurm's index of the GPU."""


def _join(now: Sequence[tuple[Rank, Plan]]) -> Plan:
    """The best plan, on all nodes where as good a one needs no ballast: Slurm chooses among them."""
    (ballast, lost, cost, *_), best = now[0]
    if ballast:
        return best
    nodes = dict.fromkeys(plan.nodes[0] for rank, plan in now if rank[:3] == (0, lost, cost))
    return replace(best, nodes=tuple(nodes))


def _reached(of: ClaimSet, node: NodeView, slurm: SlurmNode, choose: Chooser) -> Iterator[tuple[Rank, Plan]]:
    """Plans for GPUs of one node that Slurm would pick now, or would with ballast on those before it.

    Ballast goes only where the set has no place: to a GPU that pods share already, and native jobs cannot have, or to
    one that is not for pods at all.
    """
    if not slurm.has_room_for(of.needs.cpus, of.needs.memory):
        return
    places, in_the_way = list[SlurmGpu](), list[SlurmGpu]()
    for gpu in sorted(slurm.gpus, key=lambda g: g.index):
        uuid = node.map.get(gpu.index)
        choice = NoChoice("not in the device map") if uuid is None else choose(of, uuid, most=gpu.free)
        if isinstance(choice, NoChoice):
            in_the_way.append(gpu)
            continue
        if not any(g.free >= choice.cost for g in places):
            fillers = tuple(Filler(g.index, g.free) for g in in_the_way if g.free >= choice.cost)
            rank = (len(fillers), choice.lost, choice.cost, node.name, gpu.index)
            yield rank, Plan((node.slurm,), choice.cost, choice, fillers)
        places.append(gpu)


def _wait(of: ClaimSet, ready: Sequence[tuple[NodeView, SlurmNode]], choose: Chooser, world: World) -> Plan | NoPlan:
    """The least cost that the set can have anywhere, on the nodes where Slurm cannot start it now."""
    possible: dict[SlurmNodeName, int] = {}
    refused: list[NoChoice] = []
    for node, _ in ready:
        for gpu in node.map.values():
            choice = choose.when_empty(of, gpu)
            if isinstance(choice, Choice):
                possible[node.slurm] = min(choice.cost, possible.get(node.slurm, choice.cost))
            else:
                refused.append(choice)
    if not possible:
        why = _why_never(refused)
        return NoPlan(f"no GPU can serve it, not even an empty one (all claims of a pod are on one GPU): {why}")
    cost = min(possible.values())
    passing = _passing(world)
    nodes = [s for n, s in ready if possible.get(n.slurm) == cost and not _starts(of, s, cost, passing)]
    if not nodes:
        return NoPlan(f"GPUs have {cost} shards free, but no place that it fits in: it waits until one is freed")
    return Plan(tuple(n.name for n in nodes), cost)


def _why_never(refused: Sequence[NoChoice]) -> str:
    """One GPU's reason, of those that have what is asked for; else what each kind of GPU has."""
    if not refused:
        return "no GPU of a ready node is in its device map"
    if matching := [r.why for r in refused if not r.unmatched]:
        return matching[0]
    return "; ".join(list(dict.fromkeys(r.why for r in refused))[:MOST_KINDS])


Passing = Mapping[tuple[SlurmNodeName, int], int]


def _passing(world: World) -> Passing:
    """Shards by node and index of the GPU that are in use for a moment only: of ballast, and of holds that run and have
    not got devices. If they run where they have no place, they are about to leave; two sets that each took the other's
    shards for gone would ask for them in turn, for ever."""
    found = Counter[tuple[SlurmNodeName, int]]()
    for job in world.jobs:
        if job.state is JobState.RUNNING and job.node is not None and job.gpu is not None and job.gpu.index is not None:
            claims = (world.claims.get(uid) for uid in job.purpose.claims)
            if not any(c is not None and c.view.allocated for c in claims):
                found[job.node, job.gpu.index] += job.gpu.shards
    return found


def _starts(of: ClaimSet, slurm: SlurmNode, cost: int, passing: Passing) -> bool:
    """Whether Slurm could start it there now, or as soon as what only passes by is gone."""
    if not slurm.has_room_for(of.needs.cpus, of.needs.memory):
        return False
    return any(g.free + passing.get((slurm.name, g.index), 0) >= cost for g in slurm.gpus)


def plan_again(of: ClaimSet, world: World, gpu: GpuUuid, node: NodeView, cost: int) -> Plan | NoPlan:
    """For a set that lost its job while it lives on `gpu` (P9): the hold that starts on that very GPU now.

    It may fill free GPUs too, for the moment: its own is the only one that will do.
    """
    slurm = world.slurm_nodes.get(node.slurm)
    index = next((i for i, known in node.map.items() if known == gpu), None)
    if slurm is None or index is None or not slurm.has_room_for(of.needs.cpus, of.needs.memory):
        return NoPlan(f"Slurm does not start jobs on node {node.slurm} now")
    target = next((g for g in slurm.gpus if g.index == index), None)
    if target is None or target.free < cost:
        return NoPlan(f"GPU {index} of {node.slurm} has not {cost} shards free in Slurm now")
    before = [g for g in slurm.gpus if g.index < index and g.free >= cost]
    return Plan((node.slurm,), cost, None, tuple(Filler(g.index, g.free) for g in before))
