"""Slurm's errors in our four families, by number and never by text.

Numbers and names: `slurm/slurm_errno.h` of 26.05. What a caller may conclude was tried on 26.05.5; the traps:

- a DELETE answers 200 with the error inside `status`, so every answer is searched for errors, whatever its HTTP status;
- a DELETE that could not reach slurmctld answers 403 with number 1, "Operation not permitted": that says nothing about
  permissions, so number 1 is an unavailable controller here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynamig.errors import Conflict, DynamigError, Refused, Unavailable

NOT_FOUND = "NOT_FOUND"
JOB_ENDED = "JOB_ENDED"

INVALID_JOB_ID = 2017
UNKNOWN_NODE = 2018
NOT_PRIVILEGED = 2010  # ESLURM_USER_ID_MISSING; what an update of a node says to somebody without the right

_ENDED = frozenset({2021, 2084})  # ALREADY_DONE, JOB_FINISHED
_CHANGED = frozenset({2020, 2073, 2085, 2086})  # in transition, not pending, not running, neither
_FORBIDDEN = frozenset({2002, NOT_PRIVILEGED, 2095})  # ACCESS_DENIED, PRIO_RESET_FAIL
_AUTH = frozenset({1007, 6000, 6001, 9008})  # protocol authentication, bad or expired credential, REST_AUTH_FAIL
_LATER = frozenset({2007, 2016, 2019, 2027, 2061, 2105, 2125, 2131})
"""MAX_JOB_COUNT, NODES_BUSY, WRITING_TO_FILE, IN_STANDBY_MODE, PROLOG_RUNNING, SUBMISSIONS_DISABLED, DEFER, standby."""

AUTH_STATUS = frozenset({401, 511})
_OF_REQUESTS = range(2000, 3000)
"""Error numbers of slurmctld about what was asked."""


@dataclass(frozen=True, slots=True)
class SlurmError:
    """One error of an answer. `number`: of slurm_errno.h; -1 and 1 say nothing more than that it failed."""

    number: int
    text: str


def translated(what: str, status: int, errors: Sequence[SlurmError]) -> DynamigError:
    """The error of ours for an answer that has errors or is no success. The first known number counts."""
    error = next((e for e in errors if e.number > 1), errors[0] if errors else SlurmError(0, f"HTTP {status}"))
    told = f"{what}: {error.text}"
    if error.number in _AUTH or status in AUTH_STATUS:
        return Refused("SLURM_AUTH", told, "the token is wrong or has expired: `scontrol token`")
    if error.number == INVALID_JOB_ID:
        return Refused(NOT_FOUND, told)
    if error.number in _ENDED:
        return Conflict(JOB_ENDED, told, "read the job again")
    if error.number in _CHANGED:
        return Conflict("JOB_CHANGED", told, "read the job again")
    if error.number in _FORBIDDEN:
        return Refused("SLURM_FORBIDDEN", told, "the bridge needs SlurmUser's or an operator's token")
    if error.number in _OF_REQUESTS and error.number not in _LATER:
        return Refused(f"SLURM_{error.number}", told)
    return Unavailable("SLURM_UNAVAILABLE", f"{told} ({error.number})", "is slurmctld up? `scontrol ping`")
