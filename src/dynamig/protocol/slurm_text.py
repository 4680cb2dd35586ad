"""Text that we give Slurm, such that programs which read Slurm's commands survive it (case C-08). Pure.

Those programs take a line for a job or a node (Open OnDemand's reader of squeue, `get_jobs` of ood_core) and split it:
at `|`, with which `sacct --parsable2` joins fields and escapes nothing; at `;`, as older versions of Open OnDemand; at
commas, which part TRES, node lists and tables; at blanks, and then each word at `=`, as readers of `scontrol show` do.
So what people are to read is one line without all these but single blanks, and what programs of ours are to read is
JSON on one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NewType

SlurmText = NewType("SlurmText", str)
"""For people: one line of harmless characters, made by `slurm_text`."""

LONGEST = 1024
"""Bytes of a job's comment; slurmctld refuses a job, and an update, with more: ESLURM_PATHNAME_TOO_LONG
(_test_job_desc_fields in job_mgr.c; tried, 26.05.5). admin_comment has no limit there."""

_HARMFUL = re.compile(r"[^A-Za-z0-9 _./:@+()#~-]")
_CUT = " ..."


def slurm_text(text: str) -> SlurmText:
    """The text with `_` for each harmful character, and with an end that says so if it was too long. Applied twice it
    changes nothing more."""
    line = _HARMFUL.sub("_", " ".join(text.split()))
    if len(line) > LONGEST:
        line = line[: LONGEST - len(_CUT)].rstrip() + _CUT
    return SlurmText(line)


def listed(names: Sequence[str], most: int = 2) -> str:
    """`a`, `a and b`, `a and b and 7 more`."""
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return " and ".join([*names[:most], *more])


def slurm_json(value: Any) -> str:
    """JSON in ASCII on one line, without `|`: that character is written as its number, which JSON takes everywhere."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).replace("|", "\\u007c")
