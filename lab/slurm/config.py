"""Slurm's configuration files for one lab: pure, the same text for every machine.

Why these settings: `docs/decisions/0010-slurm-adapter.md`. Source of the option names: slurm.conf(5) and gres.conf(5)
of Slurm 26.05.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Mapping

from dynamig.protocol.shards import units_of
from dynamig.testing.emulator import GpuModel, load_geometry, model_key
from lab.spec import CONTROL, LabSpec, Layout, NodeSpec

PROLOG_TIMEOUT_S = 90
"""The prolog waits up to a minute for a GPU to be handed over; slurmd kills it, and drains the node, after this."""

BATCH_START_TIMEOUT_S = 150
"""slurmctld gives a batch job up that has not started by then; the prolog's time counts."""

CPUS, SOCKETS, MEMORY_MIB = 16, 2, 64_000
"""What a node claims to have. More than this machine has, or jobs would wait for cores and not for GPUs."""

FOLDER = "slurm"
"""Below a machine's folder; `etc` in it is what /etc/slurm of the machine points to."""

TASK_PROLOG = "task_prolog"
"""One script, not a folder: Slurm reads no pattern here."""

SLURM_CONF, GRES_CONF, CGROUP_CONF = "slurm.conf", "gres.conf", "cgroup.conf"


def files(layout: Layout, spec: LabSpec) -> Mapping[str, str]:
    """Name below /etc/slurm -> text."""
    return {
        SLURM_CONF: slurm_conf(layout, spec, socket.gethostname()),
        GRES_CONF: gres_conf(spec),
        CGROUP_CONF: "CgroupPlugin=disabled\n",
    }


def slurm_conf(layout: Layout, spec: LabSpec, hostname: str) -> str:
    """All machines share this host's name, so nodes differ by NodeName, port and folder only."""
    hooks = [f"TaskProlog=/etc/slurm/{TASK_PROLOG}"] if spec.slurm_hooks else []
    lines = [*_cluster(layout, spec, hostname), *_jobs(), *hooks, *_partitions(), *_nodes(spec, hostname)]
    return "\n".join(lines) + "\n"


def _cluster(layout: Layout, spec: LabSpec, hostname: str) -> Iterator[str]:
    control = layout.machine(CONTROL) / FOLDER
    yield from (
        "ClusterName=lab",
        f"SlurmctldHost={hostname}(127.0.0.1)",
        f"SlurmctldPort={spec.ports.slurmctld}",
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",  # 127.0.0.1 only, by /etc/hosts of the machines
        "SlurmUser=slurm",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        "AuthAltTypes=auth/jwt",
        f"AuthAltParameters=jwt_key={control}/jwt.key",
        f"StateSaveLocation={control}/state",
        f"SlurmdSpoolDir={layout.node('%n')}/{FOLDER}/spool",
        "SlurmctldPidFile=/run/slurm/slurmctld.pid",
        "SlurmdPidFile=/run/slurm/slurmd.pid",
        "SlurmctldSyslogDebug=quiet",  # in the foreground they write to standard error, the lab's log
        "SlurmdSyslogDebug=quiet",
        "MailProg=/bin/true",
    )


def _jobs() -> Iterator[str]:
    yield from (
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "MpiDefault=none",
        "JobSubmitPlugins=lua",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "PriorityType=priority/basic",
        "SlurmdParameters=config_overrides",  # believe CPUs and RealMemory below
        "ReturnToService=2",  # a node whose slurmd was down is used again as soon as it registers
        "MaxJobCount=20000",
        "MinJobAge=300",
        "KillWait=5",
        "PrologFlags=Alloc",
        "Prolog=/etc/slurm/prolog.d/*",
        "Epilog=/etc/slurm/epilog.d/*",
        f"PrologTimeout={PROLOG_TIMEOUT_S}",
        f"EpilogTimeout={PROLOG_TIMEOUT_S}",
        f"BatchStartTimeout={BATCH_START_TIMEOUT_S}",
        "GresTypes=gpu,shard",
    )


def _partitions() -> Iterator[str]:
    common = "Nodes=ALL MaxTime=INFINITE DefaultTime=10:00 DefMemPerCPU=100 OverSubscribe=NO State=UP"
    yield f"PartitionName=all Default=YES PriorityTier=10 {common}"
    yield f"PartitionName=low PriorityTier=1 {common}"
    yield f"PartitionName=kubernetes PriorityTier=10 {common}"


def _nodes(spec: LabSpec, hostname: str) -> Iterator[str]:
    size = f"CPUs={CPUS} Sockets={SOCKETS} CoresPerSocket={CPUS // SOCKETS} ThreadsPerCore=1 RealMemory={MEMORY_MIB}"
    for index, node in enumerate(spec.nodes):
        where = f"NodeName={node.name} NodeHostname={hostname} NodeAddr=127.0.0.1 Port={spec.ports.slurmd(index)}"
        gres = f" Gres={node_gres(node)}" if spec.with_driver else ""
        yield f"{where} {size}{gres}"


def node_gres(node: NodeSpec) -> str:
    """GPUs by model, and shards on all of them: `gpu:h100:2,shard:16`."""
    kinds = Counter[str]()
    for model, number in node.models:
        kinds[gpu_type(model)] += number
    return ",".join(
        [*(f"gpu:{kind}:{number}" for kind, number in kinds.items()), f"shard:{shards_per_gpu(node) * node.gpu_count}"]
    )


def shards_per_gpu(node: NodeSpec) -> int:
    """What each GPU of the node is cut into for Slurm's books: the units of `dynamig.protocol.shards`.

    Equal on all GPUs of a node: Slurm maps shards to GPUs by position, and unequal untyped counts come out in another
    order than they were written in. So the GPU with the most units says how many, and one without MIG has shards too.
    """
    catalog = load_geometry()
    models = [catalog.model(model_key(model)) for model, _ in node.models]
    return max((_units(model) for model in models if model.profiles), default=1)


def _units(model: GpuModel) -> int:
    return units_of(range(s, s + p.memory_slices) for p in model.profiles for s in p.starts).count


def gres_conf(spec: LabSpec) -> str:
    """One line for each device, in the order of their minors: that order is Slurm's index."""
    lines = ["AutoDetect=off"]
    for node in spec.nodes if spec.with_driver else ():
        kinds = [gpu_type(model) for model, number in node.models for _ in range(number)]
        name = f"NodeName={node.name}"
        lines += [f"{name} Name=gpu Type={kind} File=/dev/nvidia{minor}" for minor, kind in enumerate(kinds)]
        shards = shards_per_gpu(node)
        lines += [f"{name} Name=shard Count={shards} File=/dev/nvidia{minor}" for minor in range(len(kinds))]
    return "\n".join(lines) + "\n"


def gpu_type(model: str) -> str:
    """`h100` of the emulator's `h100-80gb-sxm5`."""
    return model.partition("-")[0]
