"""Whose a Slurm job is (PROTOCOL P2). Job ids are given out again after a controller crash: an id alone proves nothing.

The identity is written to the job's `admin_comment`, which only operators can set; together with the id and the SLUID
(or the submit time where there is none) it names one job for ever.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

OWNER = "dynamig"


class Role(Enum):
    HOLD = "hold"
    """Pays for a claim set."""
    BALLAST = "ballast"
    """Fills a GPU for a moment, so that Slurm picks another one."""


@dataclass(frozen=True, slots=True, order=True)
class JobIdentity:
    """What a job of ours is for. `set_uid`: UID of the pod, or of a shared claim; `attempt`: from 1, one per submit."""

    set_uid: str
    attempt: int
    role: Role = Role.HOLD

    def to_comment(self, *, pod: str, claims: Iterable[str]) -> str:
        """The job's admin_comment. `pod`: for people; `claims`: UIDs of the claims that the job pays for."""
        return json.dumps(
            {
                "owner": OWNER,
                "set": self.set_uid,
                "attempt": self.attempt,
                "role": self.role.value,
                "pod": pod,
                "claims": sorted(claims),
            },
            sort_keys=True,
        )


def identity_of(admin_comment: str) -> JobIdentity | None:
    """The identity in an admin_comment; None for a job that is not ours."""
    try:
        body = json.loads(admin_comment)
        if body["owner"] != OWNER:
            return None
        return JobIdentity(str(body["set"]), int(body["attempt"]), Role(body["role"]))
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """One job that Slurm once had. `since`: SLUID, or the submit time in seconds of the epoch as text."""

    job_id: int
    since: str


def claims_in(admin_comment: str) -> frozenset[str]:
    """UIDs of the claims that a job of ours pays for; empty for a job that is not ours."""
    if identity_of(admin_comment) is None:
        return frozenset()
    return frozenset(str(uid) for uid in json.loads(admin_comment).get("claims", ()))


def surviving(twins: Iterable[tuple[JobKey, bool]], named: JobKey | None) -> JobKey | None:
    """Of several jobs with one identity the one that stays (P2): the one that the claim's annotation names, else a
    running one, else the lowest id. `twins`: each with whether it runs. None if there are none."""
    known = sorted(twins, key=lambda twin: (not twin[1], twin[0]))
    if named is not None and any(key == named for key, _ in known):
        return named
    return known[0][0] if known else None
