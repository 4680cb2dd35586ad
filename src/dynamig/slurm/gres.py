"""The GRES strings of a Slurm node, read: what it has, what is in use, and on which GPU. Pure.

`gres` counts by name and type: `gpu:h100:2,shard:h100:16(S:0)`. `gres_used` adds where: `gpu:h100:1(IDX:1)` lists GPU
indices, `shard:h100:2(2/8,-/8)` gives for each GPU in order the shards in use and its total, with `-` for a GPU that a
job has whole. Types appear and vanish on restarts of slurmctld, so they are read but never compared.

Names and types are an administrator's words, dots and all: `gpu:h100.80gb:2`. The same line has the node's other GRES,
such as `bandwidth:lustre:no_consume:4G`; `gres` writes whole multiples of 1024 with K to P (_build_node_gres_str and
_get_suffix in gres.c, 26.05.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dynamig.protocol.slurm_jobs import SlurmGpu

_WORD = r"[^\s:;,()]+"
_RECORD = re.compile(
    rf"(?P<name>{_WORD})(?::(?P<type>{_WORD}?))??(?::no_consume)?:(?P<count>\d+)(?P<unit>[KMGTP]?)"
    r"(?:\((?P<where>[^)]*)\))?(?P<more>,|$)"
)
_UNITS = {"": 1, **{unit: 1024**power for power, unit in enumerate("KMGTP", start=1)}}
_INDICES = "IDX:"


@dataclass(frozen=True, slots=True)
class Gres:
    """One record. `where`: the text in brackets, without them; empty if there is none."""

    name: str
    type: str
    count: int
    where: str


def parse(text: str) -> tuple[Gres, ...]:
    """All records of a `gres` or `gres_used` string. Raises ValueError for anything else."""
    found, position, more = list[Gres](), 0, text not in ("", "(null)", "N/A")
    while more:
        match = _RECORD.match(text, position)
        if match is None:
            raise ValueError(f"not a GRES string: {text!r}, at {position}")
        count = int(match["count"]) * _UNITS[match["unit"]]
        found.append(Gres(match["name"], match["type"] or "", count, match["where"] or ""))
        position, more = match.end(), bool(match["more"])
    return tuple(found)


def total(records: Iterable[Gres], name: str) -> int:
    return sum(record.count for record in records if record.name == name)


def indices(text: str) -> frozenset[int]:
    """`0,2-3` as numbers. Nothing for the empty text and for N/A."""
    found = set[int]()
    for part in text.split(",") if text not in ("", "N/A") else ():
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def gpus(gres: str, gres_used: str) -> tuple[SlurmGpu, ...]:
    """A node's GPUs in the order of Slurm's indices. Raises ValueError for text that is not as described above.

    A node whose shards slurmctld counts without saying on which GPU (static EXTERNAL nodes of 26.05: there is no
    exclusion there) gets GPUs without shards.
    """
    has, used = parse(gres), parse(gres_used)
    whole = frozenset[int]().union(*(indices(g.where.removeprefix(_INDICES)) for g in used if g.name == "gpu"))
    shards = [_per_gpu(g.where) for g in used if g.name == "shard" and "/" in g.where]
    found = []
    for index in range(total(has, "gpu")):
        here = [record[index] for record in shards if index < len(record)]
        taken = index in whole or any(in_use is None for in_use, _ in here)
        found.append(SlurmGpu(index, max((t for _, t in here), default=0), sum(u or 0 for u, _ in here), taken))
    return tuple(found)


def _per_gpu(where: str) -> list[tuple[int | None, int]]:
    """(in use, total) for each GPU; None in use for one that is taken whole."""
    pairs = (part.partition("/") for part in where.split(","))
    return [(None if used == "-" else int(used), int(of)) for used, _, of in pairs]
