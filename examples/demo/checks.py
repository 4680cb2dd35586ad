"""What must have been true, decided from what was seen. Pure.

Each check compares sources that do not know of each other: NVML on the node, NVML inside the container, the claim's
status, and the files on the node's disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from dynamig.cli.holdings import Holding
from dynamig.cli.words import ranges
from examples.demo import cast
from examples.demo.changes import place
from examples.demo.seen import MIB, GpuSeen, Moment

WANTED_MIB = 30 * 1024
"""What `4-inference.yaml` asks for."""


@dataclass(frozen=True, slots=True)
class Check:
    """`claims`: what must hold. `sources`: who was asked. `seen`: what they said."""

    claims: str
    sources: str
    seen: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """`full`: latecomer waits. `later`: it runs, `waited_s` after training was told to end. `end`: all are gone."""

    full: Moment
    later: Moment
    waited_s: float
    end: Moment


Test = Callable[[Evidence], Check]


def all_checks(evidence: Evidence) -> list[Check]:
    """In the order of the story."""
    return [test(evidence) for test in _TESTS]


class Wrong(Exception):
    """What was seen is not what must be; the text says how."""


def _check(claims: str, sources: str, look: Callable[[Evidence], str]) -> Test:
    """`look` returns what was seen, or raises Wrong with it."""

    def test(evidence: Evidence) -> Check:
        try:
            return Check(claims, sources, look(evidence), True)
        except Wrong as wrong:
            return Check(claims, sources, str(wrong), False)

    return test


def _must(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Wrong(otherwise)


# -- one role ----------------------------------------------------------------------------------------------------------


def sees_its_own(moment: Moment, role: cast.Role) -> tuple[Holding, ...]:
    """Each container of the role sees one device: of the profile expected, named on the claim, where it is published.

    Returns the holding of each container, in the order of `role.sees`.
    """
    return tuple(_one_device(moment, role.pod, container, wanted) for container, wanted in role.sees.items())


def _one_device(moment: Moment, pod: str, container: str, wanted: str | None) -> Holding:
    inside = moment.inside.get((pod, container))
    if inside is None:
        raise Wrong(f"{pod}/{container} reported nothing")
    what = f"{pod}/{container}"
    _must(len(inside.gpus) == 1, f"{what} sees {len(inside.gpus)} GPUs")
    if wanted is None:
        _must(not inside.mig, f"{what} sees MIG devices: {', '.join(inside.mig)}")
        uuid = next(iter(inside.gpus))
    else:
        _must(len(inside.mig) == 1, f"{what} sees {len(inside.mig)} MIG devices")
        uuid, device = next(iter(inside.mig.items()))
        _must(device.profile == wanted, f"{what} sees {device.name}, not {wanted}")
        _must(device.parent in inside.gpus, f"{what} sees the MIG device of a GPU that it does not see")
    return _claimed_and_there(moment, pod, uuid, wanted)


def _claimed_and_there(moment: Moment, pod: str, uuid: str, wanted: str | None) -> Holding:
    """The claim of `pod` that names this UUID; the hardware has it where the ResourceSlice says it is."""
    held = next((h for h in moment.api.of_pod(pod) if h.uuid == uuid), None)
    if held is None:
        raise Wrong(f"{pod} sees {uuid}, its claim says {', '.join(str(h.uuid) for h in moment.api.of_pod(pod))}")
    if wanted is None:
        gpu = moment.gpus.get(uuid)
        _must(gpu == GpuSeen(mig_on=False, instances=()), f"NVML on the node has {gpu} for {uuid}")
        return held
    gpu = moment.gpus.get(held.gpu or "")
    found = next((i for i in gpu.instances if uuid in i.uuids), None) if gpu else None
    where = tuple(found.memory_slices) if found else None
    _must(where == held.memory_slices, f"{uuid}: NVML has it on {where}, the claim's device is {held.memory_slices}")
    return held


def _notebook(e: Evidence) -> str:
    (held,) = sees_its_own(e.full, cast.NOTEBOOK)
    return f"{held.uuid} on {place(held)}"


def _training(e: Evidence) -> str:
    (held,) = sees_its_own(e.full, cast.TRAINING)
    return f"{held.uuid}, {held.pool}, MIG mode off"


def _pipeline(e: Evidence) -> str:
    held = sees_its_own(e.full, cast.PIPELINE)
    _must(len({h.gpu for h in held}) == 1, f"on several GPUs: {', '.join(str(h.gpu) for h in held)}")
    parts = ", ".join(f"{h.profile} on {ranges(h.memory_slices)}" for h in held)
    return f"{held[0].pool}: {parts}"


def _inference(e: Evidence) -> str:
    (held,) = sees_its_own(e.full, cast.INFERENCE)
    (device,) = e.full.inside[cast.INFERENCE.pod, "main"].mig.values()
    offered = [int(d.capacity["memory"] / MIB) for d in e.full.api.devices if d.type == "mig"]
    smallest = min(size for size in offered if size >= WANTED_MIB)
    _must(device.memory_mib == smallest, f"{device.memory_mib} MiB, the smallest that would do has {smallest} MiB")
    return f"{device.memory_mib} MiB ({held.profile}) on {place(held)}"


def _team(e: Evidence) -> str:
    held = {*sees_its_own(e.full, cast.ALICE), *sees_its_own(e.full, cast.BOB)}
    _must(len(held) == 1, f"{len(held)} devices: {', '.join(str(h.uuid) for h in held)}")
    return f"{next(iter(held)).uuid} in all three"


# -- all together ------------------------------------------------------------------------------------------------------


def overlaps(gpus: Iterable[GpuSeen]) -> int:
    """Pairs of instances of one GPU that share a memory slice."""
    pairs = (pair for gpu in gpus for pair in combinations(gpu.instances, 2))
    return sum(bool(set(a.memory_slices) & set(b.memory_slices)) for a, b in pairs)


def _shared_gpus(e: Evidence) -> str:
    _must(overlaps(e.full.gpus.values()) == 0, "instances of one GPU overlap")
    users = {
        gpu.pool: {h.claim for h in gpu.holdings} for gpu in e.full.api.gpus if len({h.claim for h in gpu.holdings}) > 1
    }
    _must(bool(users), "no GPU serves several claims")
    return "; ".join(f"{pool}: {len(claims)} claims" for pool, claims in users.items()) + "; no slice twice"


def _books(e: Evidence) -> str:
    """Both ways: nothing is on a claim that is not there, nothing is there that is on no claim."""
    there = {uuid for gpu in e.full.gpus.values() for i in gpu.instances for uuid in i.uuids}
    booked = {h.uuid for h in e.full.api.holdings if h.profile is not None}
    _must(there == booked, f"only on the hardware: {there - booked or '-'}; only on claims: {booked - there or '-'}")
    return f"{len(there)} MIG devices on both sides"


def _cdi(e: Evidence) -> str:
    told = []
    for name, node in sorted(e.full.nodes.items()):
        held = {(h.namespace, h.claim) for h in e.full.api.holdings if h.node == name}
        wanted = {uid for uid, claim in e.full.api.claims.items() if tuple(claim.split("/", 1)) in held}
        _must(
            node.cdi == wanted, f"{name}: {len(node.cdi)} files, {len(wanted)} claims, {len(node.cdi ^ wanted)} differ"
        )
        _must(node.journal == wanted, f"{name}: {len(node.journal)} journal records, {len(wanted)} claims")
        told.append(f"{name}: {len(wanted)}")
    return ", ".join(told)


# -- waiting -----------------------------------------------------------------------------------------------------------


def room_for(moment: Moment, profile: str) -> list[str]:
    """Published devices of `profile` on whose memory slices the hardware has nothing."""
    return [
        device.name
        for device in moment.api.devices
        if device.profile == profile and _empty_at(moment.gpus.get(device.gpu or ""), device.memory_slices)
    ]


def _empty_at(gpu: GpuSeen | None, slices: Sequence[int]) -> bool:
    """With MIG mode off the whole GPU is in use or was given back whole; here it is in use."""
    return gpu is not None and gpu.mig_on and not any(set(i.memory_slices) & set(slices) for i in gpu.instances)


def _waited(e: Evidence) -> str:
    pod = e.full.api.pod(cast.LATECOMER.pod)
    if pod is None or not pod.waits:
        raise Wrong(f"latecomer is {pod.phase if pod else 'missing'}, on node {pod.node if pod else None}")
    _must(not e.full.api.of_pod(pod.name), "latecomer holds a device")
    room = room_for(e.full, "3g.40gb")
    _must(not room, f"it waited although {', '.join(room)} had room")
    return pod.waits.partition(" preemption:")[0]


def _ran(e: Evidence) -> str:
    (held,) = sees_its_own(e.later, cast.LATECOMER)
    (before,) = e.full.api.of_pod(cast.TRAINING.pod) or (None,)
    _must(before is not None and before.gpu == held.gpu, f"it runs on {held.pool}, not where training was")
    return f"{e.waited_s:.1f} s after, {held.uuid} on {place(held)}"


# -- the end -----------------------------------------------------------------------------------------------------------


def _empty(e: Evidence) -> str:
    left = {uuid: len(gpu.instances) for uuid, gpu in e.end.gpus.items() if gpu.instances}
    _must(not left, f"instances left: {left}")
    return f"{len(e.end.gpus)} GPUs, no instance"


def _clean(e: Evidence) -> str:
    left = [
        f"{n}: {len(s.cdi)} CDI files, {len(s.journal)} records" for n, s in e.end.nodes.items() if s.cdi | s.journal
    ]
    _must(not left, "; ".join(left))
    return "no CDI file, no journal record"


def _nobody(e: Evidence) -> str:
    ours = [name for name in e.end.api.claims.values() if name.startswith(f"{cast.NAMESPACE}/")]
    _must(not e.end.api.pods, f"pods left: {', '.join(p.name for p in e.end.api.pods)}")
    _must(not ours, f"claims left: {', '.join(ours)}")
    return "no pod, no claim, no finalizer in the way"


_TESTS: tuple[Test, ...] = (
    _check("notebook sees one MIG device, the one on its claim", "container, claim, node", _notebook),
    _check("training sees one full GPU and no MIG device", "container, claim, node", _training),
    _check("pipeline's containers see one device each, of one GPU", "containers, claim, node", _pipeline),
    _check("inference has the smallest device with 30 GiB", "container, published devices", _inference),
    _check("two pods with three containers share one device", "containers, claim, node", _team),
    _check("several claims share a GPU, slice by slice", "node, claims", _shared_gpus),
    _check("hardware and claims agree, both ways", "nodes, claims", _books),
    _check("one CDI file and one journal record for each claim", "nodes' disks, claims", _cdi),
    _check("latecomer had to wait", "scheduler, nodes", _waited),
    _check("latecomer got a slice of the GPU that training left", "container, claim, node", _ran),
    _check("all GPUs are empty afterwards", "nodes", _empty),
    _check("nothing is left on the nodes' disks", "nodes' disks", _clean),
    _check("nothing is left in Kubernetes", "API server", _nobody),
)
