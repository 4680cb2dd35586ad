"""slurmrestd's API v0.0.45 (Slurm 26.05): bodies to values and back. Pure; nothing else knows the wire.

Only the fields that are used are named; msgspec skips the rest, which is most of an answer (8 kB a job). Shapes were
recorded from slurmrestd 26.05.5, see `tests/unit/slurm/recorded`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from dynamig.errors import Unavailable
from dynamig.protocol.identity import JobKey
from dynamig.protocol.slurm_jobs import HoldRequest, SlurmNodeName
from dynamig.slurm.errors import AUTH_STATUS, SlurmError, translated
from dynamig.slurm.values import Controller, HeldGres, JobChanges, NodeInfo, SlurmJob

VERSION = "v0.0.45"
BASE = f"/slurm/{VERSION}"

CONF = f"{BASE}/conf"
JOB_STATES = f"{BASE}/jobs/state/"
NODES = f"{BASE}/nodes/"
SUBMIT = f"{BASE}/job/submit"


def job_path(job: int | str) -> str:
    """`job`: an id, or a SLUID: GET and DELETE take either (tried; updates and /resources take ids only)."""
    return f"{BASE}/job/{quote(str(job), safe='')}"


def resources_path(job_id: int) -> str:
    return f"{BASE}/resources/{job_id}"


def node_path(name: str) -> str:
    return f"{BASE}/node/{quote(name, safe='')}"


def partition_path(name: str) -> str:
    return f"{BASE}/partition/{quote(name, safe='')}"


class Number(Struct):
    set: bool = False
    infinite: bool = False
    number: float = 0

    @property
    def value(self) -> int | None:
        """None where there is none: not set, or without limit."""
        return int(self.number) if self.set and not self.infinite else None


class ErrorEntry(Struct):
    error_number: int = 0
    error: str = ""
    description: str = ""


class Answer(Struct):
    errors: list[ErrorEntry] = field(default_factory=list)


class StepId(Struct):
    sluid: str = ""


class JobEntry(Struct):
    job_id: int
    job_state: list[str]
    step_id: StepId
    submit_time: Number
    admin_comment: str = ""
    comment: str = ""
    state_reason: str = ""
    user_name: str = ""
    partition: str = ""
    batch_host: str = ""
    nodes: str = ""
    time_limit: Number = field(default_factory=Number)
    priority: Number = field(default_factory=Number)
    tres_per_node: str = ""
    node_count: Number = field(default_factory=Number)
    cpus: Number = field(default_factory=Number)
    memory_per_node: Number = field(default_factory=Number)
    start_time: Number = field(default_factory=Number)
    suspend_time: Number = field(default_factory=Number)
    pre_sus_time: Number = field(default_factory=Number)


class JobsAnswer(Answer):
    jobs: list[JobEntry] | None = None


class StateEntry(Struct):
    job_id: str
    state: list[str]


class StatesAnswer(Answer):
    jobs: list[StateEntry] | None = None


class GresEntry(Struct):
    name: str
    count: int
    type: str | None = None
    index: str | None = None


class NodeResources(Struct):
    node: str
    gres: list[GresEntry] | None = None


class ResourcesAnswer(Answer):
    nodes: list[NodeResources] | None = None


class NodeEntry(Struct):
    name: str
    state: list[str]
    reason: str = ""
    reason_changed_at: Number = field(default_factory=Number)
    gres: str = ""
    gres_used: str = ""
    effective_cpus: int = 0
    alloc_cpus: int = 0
    real_memory: int = 0
    alloc_memory: int = 0
    extra: str = ""
    comment: str = ""


class NodesAnswer(Answer):
    nodes: list[NodeEntry] | None = None


class SubmitAnswer(Answer):
    job_id: int | None = None


class StatusError(Struct):
    code: int = 0
    string: str = ""
    message: str = ""


class StatusEntry(Struct):
    error: StatusError


class StatusAnswer(Answer):
    status: list[StatusEntry] | None = None


class ConfMeta(Struct):
    BOOT_TIME: int
    SLURM_VERSION: str


class ConfAnswer(Answer):
    slurm_conf_meta: ConfMeta | None = None


class Maximums(Struct):
    time: Number


class PartitionEntry(Struct):
    name: str
    maximums: Maximums


class PartitionsAnswer(Answer):
    partitions: list[PartitionEntry] | None = None


A = TypeVar("A", bound=Answer)


def read(kind: type[A], what: str, status: int, body: bytes) -> A:
    """The answer. Raises the error of ours that it carries, wherever it carries it; Unavailable if it is unreadable."""
    try:
        answer = msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        if status in AUTH_STATUS:  # slurmrestd's own refusal is plain text
            raise translated(what, status, ()) from error
        said = body[:120].decode(errors="replace")
        raise Unavailable(
            "SLURM_BAD_ANSWER", f"{what}: HTTP {status}, {error}: {said!r}", f"does slurmrestd have {VERSION}?"
        ) from error
    if (found := _errors(answer)) or not 200 <= status < 300:
        raise translated(what, status, found)
    return answer


def _errors(answer: Answer) -> list[SlurmError]:
    found = [SlurmError(e.error_number, f"{e.error} ({e.description})") for e in answer.errors]
    if isinstance(answer, StatusAnswer):
        found += [SlurmError(s.error.code, s.error.message or s.error.string) for s in answer.status or ()]
    return found


# -- answers ----------------------------------------------------------------------------------------------------------


def job(entry: JobEntry) -> SlurmJob:
    node = entry.batch_host or entry.nodes
    return SlurmJob(
        key=JobKey(entry.job_id, entry.step_id.sluid or str(entry.submit_time.value)),
        states=frozenset(entry.job_state),
        reason="" if entry.state_reason == "None" else entry.state_reason,
        admin_comment=entry.admin_comment,
        comment=entry.comment,
        user=entry.user_name,
        partition=entry.partition,
        node=SlurmNodeName(node) if node else None,
        minutes=entry.time_limit.value,
        priority=entry.priority.value,
        submitted=entry.submit_time.value or 0,
        gres=entry.tres_per_node,
        nodes=entry.node_count.value or 1,
        cpus=entry.cpus.value or 1,
        memory=entry.memory_per_node.value,
        started=entry.start_time.value or 0,
        turned=entry.suspend_time.value or 0,
        ran=entry.pre_sus_time.value or 0,
    )


def states(answer: StatesAnswer) -> Mapping[int, frozenset[str]]:
    """Job id -> states. Tasks of arrays and parts of heterogeneous jobs are left out: they are never ours."""
    return {int(j.job_id): frozenset(j.state) for j in answer.jobs or () if j.job_id.isdigit()}


def resources(answer: ResourcesAnswer) -> Mapping[SlurmNodeName, tuple[HeldGres, ...]]:
    return {SlurmNodeName(n.node): tuple(_held(g) for g in n.gres or ()) for n in answer.nodes or ()}


def _held(entry: GresEntry) -> HeldGres:
    index = int(entry.index) if entry.index is not None and entry.index.isdigit() else None
    return HeldGres(entry.name, entry.type or "", entry.count, index)


def node(entry: NodeEntry) -> NodeInfo:
    return NodeInfo(
        name=SlurmNodeName(entry.name),
        states=frozenset(entry.state),
        reason=entry.reason,
        reason_since=entry.reason_changed_at.value or 0,
        gres=entry.gres,
        gres_used=entry.gres_used,
        cpus=entry.effective_cpus - entry.alloc_cpus,
        memory=entry.real_memory - entry.alloc_memory,
        extra=entry.extra,
        comment=entry.comment,
    )


def controller(answer: ConfAnswer, what: str) -> Controller:
    meta = answer.slurm_conf_meta
    if meta is None:
        raise Unavailable("SLURM_BAD_ANSWER", f"{what}: no slurm_conf_meta")
    return Controller(meta.BOOT_TIME, meta.SLURM_VERSION)


# -- requests ---------------------------------------------------------------------------------------------------------


def hold_name(request: HoldRequest) -> str:
    """The job's name: for people in squeue. What identifies the job is its admin_comment."""
    return f"dynamig-{request.identity.role.value}"


def submit_body(request: HoldRequest, minutes: int | None) -> dict[str, Any]:
    """An external job. `minutes`: None for no limit, which has to be said, or the partition's default would hold.

    `minimum_nodes` and `maximum_nodes` of 1 make Slurm choose one of `required_nodes`. It must not be requeued: a
    second run, elsewhere, would pay for nothing.
    """
    body: dict[str, Any] = {
        "name": hold_name(request),
        "flags": ["EXTERNAL_JOB"],
        "admin_comment": request.purpose.to_admin_comment(),
        "comment": request.comment,
        "required_nodes": list(request.purpose.nodes),
        "minimum_nodes": 1,
        "maximum_nodes": 1,
        "tasks": 1,
        "cpus_per_task": request.purpose.cpus,
        "memory_per_node": _number(request.purpose.memory),
        "time_limit": _number(minutes),
        "requeue": False,
        "current_working_directory": "/",
        "user_id": request.user,
        "account": request.account,
        "partition": request.partition,
        "qos": request.qos,
        "tres_per_node": f"gres/shard:{request.purpose.shards}" if request.purpose.shards else "",
    }
    if request.priority is not None:
        body["priority"] = _number(request.priority)
    if request.nice:
        body["nice"] = request.nice
    return {"job": {name: value for name, value in body.items() if value != ""}}


def update_body(changes: JobChanges) -> dict[str, Any]:
    texts = {"comment": changes.comment, "admin_comment": changes.admin_comment}
    numbers = {"time_limit": changes.minutes, "priority": changes.priority, "begin_time": changes.start}
    return {
        **{name: text for name, text in texts.items() if text is not None},
        **{name: _number(value) for name, value in numbers.items() if value is not None},
    }


def drain_body(reason: str) -> dict[str, Any]:
    return {"state": ["DRAIN"], "reason": reason}


def undrain_body() -> dict[str, Any]:
    return {"state": ["UNDRAIN"]}


def _number(value: int | None) -> dict[str, Any]:
    if value is None:
        return {"set": True, "infinite": True}
    return {"set": True, "infinite": False, "number": value}
