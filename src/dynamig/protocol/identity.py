"""Whose a Slurm job is and what it is for (PROTOCOL P2). Job ids are given out again after a controller crash: an id
alone proves nothing.

A job of ours says all of it in its `admin_comment`, which only operators can set; together with the id and the SLUID
(or the submit time where there is none) it names one job for ever.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from dynamig.protocol.slurm_text import slurm_json

OWNER = "dynamig"


class Role(Enum):
    HOLD = "hold"
    """Pays for a claim set."""
    BALLAST = "ballast"
    """Fills a GPU for a moment, so that Slurm picks another one."""


@dataclass(frozen=True, slots=True, order=True)
class JobIdentity:
    """`set_uid`: UID of the pod, or of a shared claim; `attempt`: from 1, one for each hold that is asked for; `part`:
    tells the jobs of one attempt apart, 0 for the hold, for ballast Slurm's index of the GPU that it fills."""

    set_uid: str
    attempt: int
    role: Role = Role.HOLD
    part: int = 0


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a job of ours says of itself. `pod`: for people; `claims`: UIDs of those that it pays for; `nodes`: Slurm's
    names, on one of which it is to run; `shards`: of one GPU; `cpus`, `memory`: whole processors and MiB. The amounts
    are those that were asked for: somebody may have changed the job since."""

    identity: JobIdentity
    pod: str = ""
    claims: frozenset[str] = frozenset()
    nodes: tuple[str, ...] = ()
    shards: int = 0
    cpus: int = 1
    memory: int = 1

    def to_admin_comment(self) -> str:
        who = self.identity
        return slurm_json(
            {
                "owner": OWNER,
                "set": who.set_uid,
                "attempt": who.attempt,
                "role": who.role.value,
                "part": who.part,
                "pod": self.pod,
                "claims": sorted(self.claims),
                "nodes": list(self.nodes),
                "shards": self.shards,
                "cpus": self.cpus,
                "memory": self.memory,
            }
        )


def purpose_of(admin_comment: str) -> Purpose | None:
    """What the job is for; None for one that is not ours."""
    try:
        body = json.loads(admin_comment)
        if body["owner"] != OWNER:
            return None
        identity = JobIdentity(str(body["set"]), int(body["attempt"]), Role(body["role"]), int(body.get("part", 0)))
        return Purpose(
            identity,
            pod=str(body.get("pod", "")),
            claims=frozenset(str(uid) for uid in body.get("claims", ())),
            nodes=tuple(str(node) for node in body.get("nodes", ())),
            shards=int(body.get("shards", 0)),
            cpus=int(body.get("cpus", 1)),
            memory=int(body.get("memory", 1)),
        )
    except (ValueError, KeyError, TypeError):
        return None


def identity_of(admin_comment: str) -> JobIdentity | None:
    """The identity in an admin_comment; None for a job that is not ours."""
    purpose = purpose_of(admin_comment)
    return None if purpose is None else purpose.identity


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """One job that Slurm once had. `since`: SLUID, or the submit time in seconds of the epoch as text."""

    job_id: int
    since: str


def surviving(twins: Iterable[tuple[JobKey, bool]], named: JobKey | None) -> JobKey | None:
    """Of several jobs with one identity the one that stays (P2): the one that the claim's annotation names, else a
    running one, else the lowest id. `twins`: each with whether it runs. None if there are none."""
    known = sorted(twins, key=lambda twin: (not twin[1], twin[0]))
    if named is not None and any(key == named for key, _ in known):
        return named
    return known[0][0] if known else None
