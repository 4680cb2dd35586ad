"""What a running driver costs its node: memory and, when nothing happens, processor time.

The lab's drivers, against processes that import the same and do nothing; pages that processes share are counted in
each (RSS), so the private part is told as well. Processor time stands against the kubelet's of the same node.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.cluster import ready_lab
from bench.figures import Figure, Report, series
from bench.processes import (
    LIBRARIES,
    SAYS_READY,
    age_seconds,
    cpu_seconds,
    importing,
    private_mib,
    rss_mib,
    started,
)
from dynamig.errors import Unavailable
from lab.lab import Lab

BASELINES: dict[str, tuple[str, ...]] = {
    "bare Python": (),
    "Python that imports the same libraries": LIBRARIES,
    "Python that imports the driver": ("dynamig.cli.driver",),
}
WINDOW_S = 10.0
"""One window of processor time: the driver looks at its hardware every 10 s."""


def report(*, quick: bool) -> Report:
    lab = ready_lab()
    drivers = [_pid(lab, f"driver-{node}") for node in lab.nodes]
    kubelets = [_pid(lab, f"kubelet-{node}") for node in lab.nodes]
    figures = [*_memory(drivers, rounds=2 if quick else 5), _idle(drivers, kubelets, windows=1 if quick else 6)]
    ages = ", ".join(f"{age_seconds(pid):.0f} s" for pid in drivers)
    return Report(tuple(figures), (f"the lab's drivers have run for {ages}",))


def _pid(lab: Lab, daemon: str) -> int:
    pid = lab.pid(daemon)
    if pid is None:
        raise Unavailable("LAB_NOT_READY", f"{daemon} does not run", "make lab-up")
    return pid


def _memory(drivers: Sequence[int], rounds: int) -> list[Figure]:
    rows: dict[str, list[float]] = {name: [] for name in ("rss", "private", *BASELINES)}
    for _ in range(rounds):
        rows["rss"] += [rss_mib(pid) for pid in drivers]
        rows["private"] += [private_mib(pid) for pid in drivers]
        for name, modules in BASELINES.items():
            with started(importing(*modules), SAYS_READY) as idle:
                rows[name].append(rss_mib(idle.pid))
    running = series("RSS of a running driver", "MiB", rows["rss"])
    private = Figure(series("private memory of a running driver", "MiB", rows["private"]))
    return [*(Figure(running, series(name, "MiB", rows[name])) for name in BASELINES), private]


def _idle(drivers: Sequence[int], kubelets: Sequence[int], windows: int) -> Figure:
    """Share of one processor that a driver and a kubelet use while no pod comes or goes."""
    used: dict[int, list[float]] = {pid: [] for pid in (*drivers, *kubelets)}
    for _ in range(windows):
        before = {pid: cpu_seconds(pid) for pid in used}
        time.sleep(WINDOW_S)
        for pid, values in used.items():
            values.append((cpu_seconds(pid) - before[pid]) / WINDOW_S)

    mine = series("idle driver", "% of a core", [v for pid in drivers for v in used[pid]], scale=100)
    others = series("the node's kubelet", "% of a core", [v for pid in kubelets for v in used[pid]], scale=100)
    return Figure(mine, others)
