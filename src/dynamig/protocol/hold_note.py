"""The note `dynamig.io/hold` on a claim, as a value: what is held for it, or about to be.

Written before the act that it speaks of: by the bridge before it asks Slurm and before it allocates, without Slurm by
the node's driver before it prepares. Whoever finds the claim later and has no record of his own goes by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimView
from dynamig.protocol.identity import JobKey


@dataclass(frozen=True, slots=True, order=True)
class NotedDevice:
    """A device that the claim has, was to have, or had: its place may be in use as long as the claim is held."""

    pool: str
    device: str
    gpu: GpuUuid


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which Slurm job is to pay, or pays, and what came of it so far.

    `set_uid`: of the claim set; `number`: from 1, one for each hold that is asked for; `job`: the one that pays, known
    from the commit on, and its `shards`; `priority`: of the job whose place this one takes, plus one. `commits`: times
    that the set was committed to this job, and when last; `excluded`: nodes where kube-scheduler could not place the
    pod, the latest last. `bare_since`: since when the set lives without a job on a node that takes jobs. Seconds of
    the epoch.
    """

    set_uid: str
    number: int
    job: JobKey | None = None
    shards: int = 0
    priority: int | None = None
    commits: int = 0
    committed: float | None = None
    excluded: tuple[str, ...] = ()
    bare_since: float | None = None


@dataclass(frozen=True, slots=True)
class HoldNote:
    """`attempt` is None in the note of a driver that works without Slurm."""

    devices: tuple[NotedDevice, ...] = ()
    attempt: Attempt | None = None

    def to_json(self) -> str:
        body: dict[str, Any] = {"devices": [_device(d) for d in self.devices]}
        if self.attempt is not None:
            body |= _attempt(self.attempt)
        return json.dumps(body, sort_keys=True)


def hold_note(claim: ClaimView) -> HoldNote | None:
    """The note on a claim; None if there is none, or none that can be read."""
    try:
        body = json.loads(claim.annotations[names.HOLD])
        devices = tuple(NotedDevice(str(d["pool"]), str(d["device"]), GpuUuid(str(d["gpu"]))) for d in body["devices"])
        return HoldNote(devices, _read_attempt(body) if "set" in body else None)
    except (KeyError, ValueError, TypeError):
        return None


def noted_devices(claim: ClaimView) -> tuple[NotedDevice, ...]:
    """What the note on a claim says that it has, is to have, or had."""
    note = hold_note(claim)
    return () if note is None else note.devices


def _device(noted: NotedDevice) -> Mapping[str, str]:
    return {"pool": noted.pool, "device": noted.device, "gpu": noted.gpu}


_OPTIONAL = {"shards": int, "priority": int, "commits": int, "committed": float, "bare_since": float}
"""Fields of an attempt that are left out where they say nothing."""


def _attempt(attempt: Attempt) -> dict[str, Any]:
    body: dict[str, Any] = {"set": attempt.set_uid, "attempt": attempt.number}
    if attempt.job is not None:
        body["job"] = {"id": attempt.job.job_id, "since": attempt.job.since}
    if attempt.excluded:
        body["excluded"] = list(attempt.excluded)
    return body | {name: value for name in _OPTIONAL if (value := getattr(attempt, name))}


def _read_attempt(body: Mapping[str, Any]) -> Attempt:
    job = body.get("job")
    return Attempt(
        set_uid=str(body["set"]),
        number=int(body["attempt"]),
        job=None if job is None else JobKey(int(job["id"]), str(job["since"])),
        excluded=tuple(str(node) for node in body.get("excluded", ())),
        **{name: read(body[name]) for name, read in _OPTIONAL.items() if name in body},
    )
