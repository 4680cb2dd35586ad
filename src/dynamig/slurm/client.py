"""slurmctld through slurmrestd: jobs, nodes and the controller itself, as values.

Reads of one thing answer Found, Gone or Unknown: Gone only on the word of an answering controller. Everything else
raises errors of ours (`errors.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dynamig.errors import Conflict, DynamigError, Refused, Unavailable
from dynamig.protocol import names
from dynamig.protocol.identity import JobKey, identity_of
from dynamig.protocol.seen import Found, Gone, Seen, Unknown
from dynamig.protocol.slurm_jobs import HoldRequest, SlurmNodeName
from dynamig.protocol.slurm_text import slurm_json
from dynamig.slurm import v0_0_45 as wire
from dynamig.slurm.errors import JOB_ENDED, NOT_FOUND
from dynamig.slurm.rest import Rest
from dynamig.slurm.values import Controller, HeldGres, JobChanges, NodeInfo, SlurmJob

T = TypeVar("T")


class SlurmClient:
    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    # -- the controller ------------------------------------------------------------------------------------------------

    def controller(self) -> Controller:
        """Raises Unavailable if slurmctld does not answer; Refused SLURM_AUTH for a token that it refuses.

        A ping's answer would not tell a dead controller from a bad token, so the configuration is asked for.
        """
        what = "slurmctld"
        return wire.controller(self._rest.get(wire.ConfAnswer, wire.CONF, what), what)

    def check_rights(self) -> None:
        """Nothing if the token may do all that a bridge does. Raises Refused SLURM_FORBIDDEN if not."""
        self._rest.proven()

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def job(self, job_id: int) -> Seen[SlurmJob]:
        """Whatever job has this id now."""
        return _seen(f"job {job_id}", lambda: self._job(job_id))

    def same_job(self, key: JobKey) -> Seen[SlurmJob]:
        """This very job: `Gone` too when its id is another job's now."""
        found = self.job(key.job_id)
        if isinstance(found, Found) and found.value.key != key:
            return Gone(f"job id {key.job_id} belongs to job {found.value.key.since} now, not to {key.since}")
        return found

    def job_states(self) -> Mapping[int, frozenset[str]]:
        """States of all jobs that slurmctld knows, by id: cheap (5.7 ms for 1,276 jobs), for polling."""
        return wire.states(self._rest.get(wire.StatesAnswer, wire.JOB_STATES, "states of jobs"))

    def resources(self, job_id: int) -> Seen[Mapping[SlurmNodeName, tuple[HeldGres, ...]]]:
        """What a running job holds, by node. `Gone` for a job that does not run: pending, suspended, or over."""
        what = f"resources of job {job_id}"
        path = wire.resources_path(job_id)
        try:
            return _seen(what, lambda: wire.resources(self._rest.get(wire.ResourcesAnswer, path, what)))
        except Conflict as error:
            return Gone(str(error))

    def submit(self, request: HoldRequest) -> JobKey:
        """A new job that pays for a hold.

        Raises: Refused if it can never run; Unavailable if that is not known. It may be there after Unavailable: look
        for it by identity before submitting again.
        """
        what = f"submitting {request.identity.role.value} {request.identity.attempt} of set {request.identity.set_uid}"
        self._rest.proven()  # admin_comment and user_id need the same right, and their errors would not say so
        minutes = request.minutes if request.minutes is not None else self._longest(request.partition)
        answer = self._rest.post(wire.SubmitAnswer, wire.SUBMIT, what, wire.submit_body(request, minutes))
        if answer.job_id is None:
            raise Unavailable("SLURM_BAD_ANSWER", f"{what}: no job id in the answer")
        job = self._job(answer.job_id)
        if identity_of(job.admin_comment) != request.identity:
            raise Unavailable("JOB_LOST", f"{what}: id {answer.job_id} is another job's already", "submit it again")
        return job.key

    def update(self, key: JobKey, changes: JobChanges) -> None:
        """The job has these values. Raises Conflict JOB_ENDED if it has ended or is not this job any more.

        slurmctld takes updates by id only; between our look and the update an id could change hands only if the
        controller was killed and started in between.
        """
        found = self.same_job(key)
        if isinstance(found, Unknown):
            raise Unavailable("SLURM_UNAVAILABLE", found.reason)
        if isinstance(found, Gone):
            raise Conflict(JOB_ENDED, f"job {key.job_id}: {found.proof}", "read again and decide anew")
        self._rest.post(wire.Answer, wire.job_path(key.job_id), f"updating job {key.job_id}", wire.update_body(changes))

    def cancel(self, key: JobKey) -> None:
        """The job has ended, or never was. Never another job that has its id now: cancelled by SLUID.

        Raises: Unavailable if that is not known (also for HTTP 403 of a controller that could not be reached).
        """
        found = self.same_job(key)
        if isinstance(found, Unknown):
            raise Unavailable("SLURM_UNAVAILABLE", found.reason)
        if isinstance(found, Gone):
            return
        try:
            self._rest.delete(wire.job_path(_unmistakable(key)), f"cancelling job {key.job_id}")
        except (Refused, Conflict) as error:
            if error.code not in (NOT_FOUND, JOB_ENDED):
                raise

    def _job(self, job_id: int) -> SlurmJob:
        what = f"job {job_id}"
        entries = self._rest.get(wire.JobsAnswer, wire.job_path(job_id), what).jobs or ()
        if not entries:
            raise Unavailable("SLURM_BAD_ANSWER", f"{what}: an answer without job and without error")
        return wire.job(entries[0])

    def _longest(self, partition: str) -> int | None:
        """Minutes that a job may run in the partition; None for no limit. The default limit is for people."""
        what = f"partition {partition}"
        answer = self._rest.get(wire.PartitionsAnswer, wire.partition_path(partition), what)
        found = next((p for p in answer.partitions or () if p.name == partition), None)
        if found is None:
            raise Refused("UNKNOWN_PARTITION", f"{what}: slurmctld has none of this name", "`sinfo` lists them")
        return found.maximums.time.value

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeInfo]:
        return [wire.node(entry) for entry in self._rest.get(wire.NodesAnswer, wire.NODES, "nodes").nodes or ()]

    def node(self, name: str) -> Seen[NodeInfo]:
        """`Gone` is read off the list of all nodes: for a name that slurmctld lacks, the question for the one node
        answers 200 with error number 0, which could mean anything."""
        try:
            found = next((node for node in self.nodes() if node.name == name), None)
        except DynamigError as error:
            return Unknown(str(error))
        return Found(found) if found else Gone(f"slurmctld has no node {name}")

    def write_extra(self, name: SlurmNodeName, key: str, value: Any) -> bool:
        """The JSON object in the node's Extra has `value` under `key` (None: not the key); other keys stay. False if it
        was so already.

        Raises: Refused if Extra holds something else than a JSON object: it is somebody's. slurmctld has no compare and
        swap: what another writes between our read and our write is lost.
        """
        before = self._node(name).extra
        after = merged_extra(before, key, value, name)
        if after == before:
            return False
        self._change(name, f"Extra of node {name}", {"extra": after})
        return True

    def drain(self, name: SlurmNodeName, reason: str) -> None:
        """The node takes no new jobs, for `reason`; what runs there goes on. Raises Conflict NODE_NOT_OURS where
        somebody else's reason stands, or slurmctld's own: it is neither read over nor written over."""
        self._check_ours(name)
        self._change(name, f"draining node {name}", wire.drain_body(names.DRAINED + reason))

    def undrain(self, name: SlurmNodeName) -> None:
        """The node is not drained by us. Whether it is up is not touched: a node that is down stays down (tried,
        26.05.5; RESUME would bring it up). Raises Conflict NODE_NOT_OURS for somebody else's reason."""
        self._check_ours(name)
        self._change(name, f"undraining node {name}", wire.undrain_body())

    def _check_ours(self, name: SlurmNodeName) -> None:
        """slurmctld has no compare and swap: a drain of the moment between this and the write that follows is lost."""
        reason = self._node(name).reason
        if reason and not reason.startswith(names.DRAINED):
            raise Conflict("NODE_NOT_OURS", f"node {name} has another's reason: {reason}", "it is left as it is")

    def _change(self, name: SlurmNodeName, what: str, body: Mapping[str, Any]) -> None:
        self._rest.post(wire.Answer, wire.node_path(name), what, body)

    def _node(self, name: SlurmNodeName) -> NodeInfo:
        """Raises Unavailable if slurmctld does not tell of it."""
        found = self.node(name)
        if not isinstance(found, Found):
            raise Unavailable("SLURM_UNAVAILABLE", found.reason if isinstance(found, Unknown) else found.proof)
        return found.value


def merged_extra(text: str, key: str, value: Any, name: str) -> str:
    """The text of Extra with one key set, or removed for None; as it was if that changes nothing."""
    try:
        whole = json.loads(text) if text else {}
    except ValueError:
        whole = None
    if not isinstance(whole, dict):
        what = f"Extra of node {name} is {text[:60]!r}, not a JSON object"
        raise Refused("EXTRA_NOT_JSON", what, "somebody uses it: empty it first")
    merged = {k: v for k, v in whole.items() if k != key} if value is None else {**whole, key: value}
    if merged == whole:
        return text
    return slurm_json(merged) if merged else ""


def _unmistakable(key: JobKey) -> str:
    """The SLUID. Raises Refused for a job without one: its id may be another job's by the time of the cancel."""
    if key.since.isdigit():
        raise Refused("NO_SLUID", f"job {key.job_id} has no SLUID", f"cancel it by hand: scancel {key.job_id}")
    return key.since


def _seen(what: str, read: Callable[[], T]) -> Seen[T]:
    """Only what slurmctld itself says makes Gone; a Conflict is its word too, and the caller's to read."""
    try:
        return Found(read())
    except Conflict:
        raise
    except DynamigError as error:
        return Gone(f"{what}: slurmctld does not know it") if error.code == NOT_FOUND else Unknown(str(error))
