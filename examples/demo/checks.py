"""What must have been true, decided from what was seen. Pure.

Each check compares sources that do not know of each other: NVML on the node, in the container and in the native job,
the claim's status, squeue, and the files on the node's disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations

from dynamig.cli.holdings import Holding
from dynamig.cli.words import ranges
from examples.demo import cast
from examples.demo.changes import job_name, of_gpus, place
from examples.demo.evidence import Check, Evidence, Test, Wrong, check, must
from examples.demo.seen import MIB, GpuSeen, JobSeen, Moment, Snapshot, mine

WANTED_MIB = 30 * 1024
"""What `2-inference.yaml` asks for."""


def all_checks(evidence: Evidence) -> list[Check]:
    """In the order of the story."""
    return [test(evidence) for test in _TESTS]


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
    must(len(inside.gpus) == 1, f"{what} sees {len(inside.gpus)} GPUs")
    if wanted is None:
        must(not inside.mig, f"{what} sees MIG devices: {', '.join(inside.mig)}")
        uuid = next(iter(inside.gpus))
    else:
        must(len(inside.mig) == 1, f"{what} sees {len(inside.mig)} MIG devices")
        uuid, device = next(iter(inside.mig.items()))
        must(device.profile == wanted, f"{what} sees {device.name}, not {wanted}")
        must(device.parent in inside.gpus, f"{what} sees the MIG device of a GPU that it does not see")
    return _claimed_and_there(moment, pod, uuid, wanted)


def _claimed_and_there(moment: Moment, pod: str, uuid: str, wanted: str | None) -> Holding:
    """The claim of `pod` that names this UUID; the hardware has it where the ResourceSlice says it is."""
    held = next((h for h in moment.api.of_pod(pod) if h.uuid == uuid), None)
    if held is None:
        raise Wrong(f"{pod} sees {uuid}, its claim says {', '.join(str(h.uuid) for h in moment.api.of_pod(pod))}")
    gpu = moment.gpus.get(held.gpu or "")
    if wanted is None:
        empty = gpu is not None and uuid == held.gpu and not gpu.mig_on and not gpu.instances
        must(empty, f"NVML on the node has {gpu} for {uuid}")
        return held
    found = next((i for i in gpu.instances if uuid in i.uuids), None) if gpu else None
    where = tuple(found.memory_slices) if found else None
    must(where == held.memory_slices, f"{uuid}: NVML has it on {where}, the claim's device is {held.memory_slices}")
    return held


def _alone(role: cast.Role) -> Callable[[Evidence], str]:
    def look(e: Evidence) -> str:
        (held,) = sees_its_own(e.full, role)
        return f"{held.uuid} on {place(held)}"

    return look


def _inference(e: Evidence) -> str:
    held = {*sees_its_own(e.full, cast.INFERENCE)}
    must(len(held) == 1, f"{len(held)} devices: {', '.join(str(h.uuid) for h in held)}")
    (one,) = held
    sizes = {d.memory_mib for c in cast.INFERENCE.sees for d in e.full.inside[cast.INFERENCE.pod, c].mig.values()}
    offered = [int(d.capacity["memory"] / MIB) for d in e.full.api.devices if d.type == "mig"]
    smallest = min(size for size in offered if size >= WANTED_MIB)
    must(sizes == {smallest}, f"{sizes} MiB, the smallest that would do has {smallest} MiB")
    return f"{smallest} MiB ({one.profile}) on {place(one)}, {one.uuid} in both"


def _training(e: Evidence) -> str:
    (held,) = sees_its_own(e.full, cast.TRAINING)
    return f"{held.uuid}, {held.pool}, MIG mode off"


# -- all together ------------------------------------------------------------------------------------------------------


def overlaps(gpus: Iterable[GpuSeen]) -> int:
    """Pairs of instances of one GPU that share a memory slice."""
    pairs = (pair for gpu in gpus for pair in combinations(gpu.instances, 2))
    return sum(bool(set(a.memory_slices) & set(b.memory_slices)) for a, b in pairs)


def _shared_gpu(e: Evidence) -> str:
    must(overlaps(e.full.gpus.values()) == 0, "instances of one GPU overlap")
    held = [h for role in cast.SHARING for h in e.full.api.of_pod(role.pod)]
    pools = {h.pool for h in held}
    must(len(pools) == 1, f"they are on {', '.join(sorted(pools)) or 'no GPU'}")
    return f"{pools.pop()}: " + ", ".join(f"{h.pods[0]} on {ranges(h.memory_slices)}" for h in held)


def _books(e: Evidence) -> str:
    """Both ways: nothing is on a claim that is not there, nothing is there that is on no claim."""
    for moment in (e.full, e.later, e.last):
        there = {uuid for gpu in moment.gpus.values() for i in gpu.instances for uuid in i.uuids}
        booked = {str(h.uuid) for h in moment.api.holdings if h.profile is not None}
        only_there, only_booked = ", ".join(there - booked) or "-", ", ".join(booked - there) or "-"
        must(there == booked, f"only on the hardware: {only_there}; only on claims: {only_booked}")
    count = [sum(len(gpu.instances) for gpu in moment.gpus.values()) for moment in (e.full, e.later, e.last)]
    return "MIG devices on both sides: " + ", then ".join(map(str, count))


def _disks(e: Evidence) -> str:
    told = []
    for name, node in sorted(e.later.nodes.items()):
        held = {(h.namespace, h.claim) for h in e.later.api.holdings if h.node == name}
        wanted = {uid for uid, claim in e.later.api.claims.items() if tuple(claim.split("/", 1)) in held}
        must(
            node.cdi == wanted, f"{name}: {len(node.cdi)} files, {len(wanted)} claims, {len(node.cdi ^ wanted)} differ"
        )
        must(node.journal == wanted, f"{name}: {len(node.journal)} journal records, {len(wanted)} claims")
        told.append(f"{name}: {len(wanted)}")
    return ", ".join(told)


# -- Slurm -------------------------------------------------------------------------------------------------------------


def _paid(e: Evidence) -> str:
    """For each pod one job of the namespace's user runs; its shards are where the hardware has what is seen."""
    told = []
    for role in cast.ROLES:
        job = _payer(e.later.api, role)
        must(job.running, f"{job_name(job)} is {job.state}")
        must(job.user == cast.USER, f"{job_name(job)} is {job.user}'s")
        must(bool(job.shards) and not job.gpus, f"{job_name(job)} has {of_gpus(job)}")
        at = {h.gpu for h in sees_its_own(e.later, role)}
        must({*e.later.gpus_of(job)} == at, f"{role.pod} is on {at}, its job has {of_gpus(job)} of {job.node}")
        told.append(f"{role.pod} {sum(job.shards.values())}")
    return f"as {cast.USER}, shards: " + ", ".join(told)


def _comments(e: Evidence) -> str:
    """squeue's words name what the containers see, and nothing else."""
    for role in cast.ROLES:
        job = _payer(e.later.api, role)
        seen = {uuid for c in role.sees for uuid in _uuids(e.later, role.pod, c)}
        words = set(job.comment.split())
        named = {w for w in words if w.startswith("MIG-")} or {w for w in words if w.startswith("GPU-")}
        must(named == seen, f"{role.pod} sees {', '.join(seen)}; squeue says: {job.comment}")
        must(f"{cast.NAMESPACE}/{role.pod}" in job.comment, f"{role.pod} is not in: {job.comment}")
    return f"{len(cast.ROLES)} comments, pod and UUIDs"


def _payer(now: Snapshot, role: cast.Role) -> JobSeen:
    jobs = now.paying(role.pod)
    must(len(jobs) == 1, f"{len(jobs)} jobs pay for {role.pod}: {', '.join(str(job.job_id) for job in jobs) or '-'}")
    return jobs[0]


def _uuids(moment: Moment, pod: str, container: str) -> Iterable[str]:
    inside = moment.inside[pod, container]
    return inside.mig or inside.gpus


def _lent(e: Evidence) -> str:
    """Slurm's books and the drivers' files agree on whole GPUs, and the jobs saw them without anything of ours."""
    for moment in (e.full, e.later, e.last):
        booked = {uuid: j.job_id for j in moment.api.jobs if j.gpus for uuid in moment.gpus_of(j)}
        must(booked == dict(moment.loans), f"Slurm: {booked}; drivers: {dict(moment.loans)}")
    for name, looks in e.looks.items():
        must(bool(looks), f"{name} has not looked")
        dirty = [look for look in looks if look.mig_on or look.instances]
        must(not dirty, f"{name} saw {dirty[0] if dirty else None}")
    return ", ".join(f"{name} looked {len(looks)} times: never a slice" for name, looks in e.looks.items())


def _apart(e: Evidence) -> str:
    """No GPU is lent and cut at once, nor held in shards and whole."""
    for moment in e.moments:
        both = [uuid for uuid in moment.loans if moment.gpus[uuid].instances or moment.gpus[uuid].mig_on]
        must(not both, f"lent and cut at once: {', '.join(both)}")
        whole = {at for job in moment.api.jobs if job.gpus for at in job.places}
        parts = {at for job in moment.api.jobs if job.shards for at in job.places}
        must(not whole & parts, f"held whole and in shards: {whole & parts}")
    return f"{len(e.moments)} moments"


# -- waiting -----------------------------------------------------------------------------------------------------------


def empty_gpus(moment: Moment) -> list[str]:
    """GPUs on which the hardware has nothing, that are lent to nobody and that no claim has whole."""
    whole = {h.gpu for h in moment.api.holdings if h.profile is None}
    return [u for u, gpu in moment.gpus.items() if not gpu.instances and u not in moment.loans and u not in whole]


def _pod_waited(e: Evidence) -> str:
    pod, job = e.full.api.pod(cast.PIPELINE.pod), _payer(e.full.api, cast.PIPELINE)
    if pod is None or not pod.waits or pod.node:
        raise Wrong(f"pipeline is {pod.phase if pod else 'missing'}, on node {pod.node if pod else None}")
    must(not e.full.api.of_pod(pod.name), "pipeline holds a device")
    must(job.waits, f"{job_name(job)} is {job.state}")
    must(job.reason in pod.waits, f"Slurm says {job.reason}, the pod says {pod.waits}")
    must(not empty_gpus(e.full), f"it waited although {', '.join(empty_gpus(e.full))} had nothing on it")
    return pod.waits


def _pod_ran(e: Evidence) -> str:
    held = sees_its_own(e.later, cast.PIPELINE)
    must(len({h.gpu for h in held}) == 1, f"on several GPUs: {', '.join(str(h.gpu) for h in held)}")
    left = _gpu_of(e.full, _native(e.full.api, cast.SIMULATE))
    must(held[0].gpu == left, f"it runs on {held[0].gpu}, simulate had {left}")
    must(e.later.api.native(cast.SIMULATE.name) is None, "simulate has not ended")
    parts = ", ".join(f"{h.profile} on {ranges(h.memory_slices)}" for h in held)
    return f"{e.pod_waited_s:.1f} s after, {held[0].pool}: {parts}"


def _job_waited(e: Evidence) -> str:
    """As long as pods had the GPU, also after pipeline had got another one; then it got theirs."""
    for moment in (e.full, e.later):
        job = _native(moment.api, cast.EVALUATE)
        must(job.waits and not job.places, f"evaluate is {job.state} on {job.node}")
    job = _native(e.last.api, cast.EVALUATE)
    must(job.running, f"evaluate is {job.state}")
    theirs = {str(h.gpu) for role in cast.SHARING for h in e.later.api.of_pod(role.pod)}
    got = _gpu_of(e.last, job)
    must(theirs == {got}, f"evaluate has {got}, the pods had {', '.join(theirs)}")
    return f"{e.job_waited_s:.1f} s after the pods were told to leave, {job_name(job)} on {job.node}"


def _native(now: Snapshot, job: cast.NativeJob) -> JobSeen:
    found = now.native(job.name)
    if found is None:
        raise Wrong(f"{job.name} is not in the queue")
    return found


def _gpu_of(moment: Moment, job: JobSeen) -> str:
    found = moment.gpus_of(job)
    must(len(found) == 1, f"{job_name(job)} has {of_gpus(job)}")
    return found[0]


# -- the end -----------------------------------------------------------------------------------------------------------


def _empty(e: Evidence) -> str:
    left = {uuid: len(gpu.instances) for uuid, gpu in e.end.gpus.items() if gpu.instances}
    must(not left, f"instances left: {left}")
    return f"{len(e.end.gpus)} GPUs, no instance"


def _clean(e: Evidence) -> str:
    left = [
        f"{n}: {len(s.cdi)} CDI files, {len(s.journal)} records, {len(s.loans)} loans"
        for n, s in e.end.nodes.items()
        if s.cdi or s.journal or s.loans
    ]
    must(not left, "; ".join(left))
    return "no CDI file, no journal record, no loan"


def _nobody(e: Evidence) -> str:
    ours = [name for name in e.end.api.claims.values() if name.startswith(f"{cast.NAMESPACE}/")]
    jobs = [job_name(job) for job in e.end.api.jobs if mine(job)]
    must(not e.end.api.pods, f"pods left: {', '.join(p.name for p in e.end.api.pods)}")
    must(not ours, f"claims left: {', '.join(ours)}")
    must(not jobs, f"jobs left: {', '.join(jobs)}")
    return "no pod, no claim, no job"


_TESTS: tuple[Test, ...] = (
    check("notebook's cell sees one MIG device, its claim's", "HTTP, claim, node", _alone(cast.NOTEBOOK)),
    check("inference's containers share the smallest with 30 GiB", "containers, published devices", _inference),
    check("embedding sees one MIG device, its claim's", "container, claim, node", _alone(cast.EMBEDDING)),
    check("training sees one full GPU and no MIG device", "container, claim, node", _training),
    check("three pods share a GPU, no memory slice twice", "node, claims", _shared_gpu),
    check("one Slurm job pays for each pod, on the pod's GPU", "squeue, node, containers", _paid),
    check("squeue's comments say what the containers see", "squeue, containers", _comments),
    check("native jobs have whole GPUs, and see nothing of ours there", "squeue, drivers' disks, jobs", _lent),
    check("no GPU is lent and cut at once, in no picture above", "nodes, drivers' disks, squeue", _apart),
    check("hardware and claims agree, both ways", "nodes, claims", _books),
    check("one CDI file and one journal record for each claim", "nodes' disks, claims", _disks),
    check("pipeline had to wait, and was told what Slurm says", "squeue, pod, nodes", _pod_waited),
    check("pipeline got the GPU that simulate gave back", "containers, claim, node, squeue", _pod_ran),
    check("evaluate waited for pods, and got their GPU", "squeue, nodes, claims", _job_waited),
    check("all GPUs are empty afterwards", "nodes", _empty),
    check("nothing is left on the nodes' disks", "nodes' disks", _clean),
    check("nothing is left in Kubernetes and Slurm", "API server, squeue", _nobody),
)
