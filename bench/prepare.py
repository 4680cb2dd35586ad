"""What the driver adds to a prepare and an unprepare, beyond NVML and the API server.

The real service over the real journal and CDI files, on emulated GPUs, with the API server in memory. The time
inside NVML is taken off: it is the emulator's here and the hardware's elsewhere. What remains stands against a
floor measured in turn with it: the same durable writes and removals of the same sizes, and nothing else.
Runs twice: on an empty node, and on one with 55 other claims prepared on 8 GPUs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from bench.emulated import GPUS_PER_NODE, emulated_node, filesystem_of, run_on, state_folder
from bench.figures import Figure, Report, Series, series
from bench.node import PER_GPU, DriverNode, driver_on, log_to
from bench.stopwatch import Lap, lap
from dynamig.disk import remove_durably, write_durably
from dynamig.testing.emulator import Emulator

GOAL_MS = 20.0
"""The design's p99 for prepare without NVML and API server."""

WARM_UP = 5
"""Rounds that are not counted: first use of code, folders and file system."""

FREE = ", where they cost nothing, so the ratios say nothing: set TMPDIR to a disk"

CROWD = GPUS_PER_NODE * PER_GPU - 1


def report(*, quick: bool) -> Report:
    rounds = 20 if quick else 200
    figures: list[Figure] = []
    with state_folder() as state:
        disk = filesystem_of(state)
    for others in (0, CROWD):
        measured = _measured(rounds, others)
        for act in ("prepare", "unprepare"):
            figures += _figures(f"{act}, {others} others", measured[act])
    calls = _measured(1, CROWD, trace=True)["nvml_calls"]
    figures += [Figure(Series(f"NVML calls in one {act}", "calls", (count,))) for act, count in calls.items()]
    on_disk = f"the floor's fsyncs are on {disk}{FREE if disk == 'tmpfs' else ''}; one claim at a time"
    return Report(tuple(figures), (*_verdict(figures), on_disk))


def _measured(rounds: int, others: int, *, trace: bool = False) -> Mapping[str, Any]:
    with emulated_node(trace=trace) as emulator, state_folder() as state:
        found: Mapping[str, Any] = run_on(emulator, "bench.prepare", emulator, state, rounds, others)
        return found


def _figures(name: str, rows: Mapping[str, Any]) -> list[Figure]:
    """From the laps and floors of one kind of call."""
    laps = [Lap(**{**row, "writes": tuple(row["writes"])}) for row in rows["laps"]]
    writes = len(laps[0].writes)
    floor = series(f"its {writes} durable writes alone", "ms", rows["floors"], scale=1e3)
    ours = [one.total - one.nvml for one in laps]
    computing = [one.total - one.nvml - one.disk for one in laps]
    return [
        Figure(series(f"{name}: without NVML", "ms", ours, scale=1e3), floor),
        Figure(series(f"{name}: computing only", "ms", computing, scale=1e3)),
        Figure(series(f"{name}: in emulated NVML", "ms", [one.nvml for one in laps], scale=1e3)),
    ]


def _verdict(figures: Sequence[Figure]) -> list[str]:
    told = []
    for one in (f.series for f in figures if f.against is not None and f.series.name.startswith("prepare")):
        if (p99 := one.quantile(0.99)) is not None:
            told.append(f"{one.name}: p99 {p99:.1f} ms, {'meets' if p99 < GOAL_MS else 'MISSES'} {GOAL_MS:.0f} ms")
    return told


# In the process that has the emulated node


def measure(node: DriverNode, emulator: Emulator, scratch: Path, rounds: int, others: int) -> dict[str, Any]:
    """Laps of prepare and unprepare, each followed by its floor; the last round's NVML calls (0 without a trace)."""
    node.fill(others)
    places = node.places()[others:]
    rows: dict[str, Any] = {act: {"laps": [], "floors": []} for act in ("prepare", "unprepare")}
    calls: dict[str, int] = {}
    sizes: Mapping[str, int] = {}
    for number in range(-WARM_UP, rounds):
        ref = node.allocated(f"visitor-{number}", places[number % len(places)])
        for act, call in (("prepare", partial(node.prepare, ref)), ("unprepare", partial(node.unprepare, ref))):
            before = sum(emulator.counters().values())
            _, timed = lap(call, node.nvml, node.disk)
            calls[act] = sum(emulator.counters().values()) - before
            sizes = node.sizes(ref) if act == "prepare" else sizes
            alone = floor(scratch, timed.writes, sizes)
            if number >= 0:
                rows[act]["laps"].append(asdict(timed))
                rows[act]["floors"].append(alone)
        node.forget(ref)
    return {**rows, "nvml_calls": calls}


def floor(scratch: Path, writes: Sequence[str], sizes: Mapping[str, int]) -> float:
    """Seconds for the same durable writes (of `sizes` bytes, ready made) and removals."""
    begun = time.perf_counter()
    for write in writes:
        act, _, file = write.partition(" ")
        if act == "write":
            write_durably(scratch / file, bytes(sizes[file]))
        else:
            remove_durably(scratch / file)
    return time.perf_counter() - begun


def main(emulator: str, state: str, rounds: str, others: str) -> None:
    folder, scratch = Path(state), Path(state) / "floor"
    scratch.mkdir()
    log_to(folder / "driver.log")
    with driver_on(Path(emulator), folder) as node:
        print(json.dumps(measure(node, Emulator(emulator), scratch, int(rounds), int(others))))


if __name__ == "__main__":
    main(*sys.argv[1:])
