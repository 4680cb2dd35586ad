"""How long a driver starts on a full node: 8 GPUs, 56 prepared claims, nothing to repair.

Two views. Inside one process: from opening NVML and the journal until the plan of recovery is there, split into NVML
and ours, against the same NVML calls alone. And from outside: `dynamig driver run` from exec until it serves
the kubelet, against a Python process that only imports the driver; with the memory that both have then.
Registration and publishing are the kubelet's and the API server's time and are not in it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.emulated import GPUS_PER_NODE, emulated_node, environment, run_on, state_folder
from bench.figures import Figure, Report, Series, series
from bench.node import NODE, PER_GPU, DriverNode, driver_on, log_to
from bench.processes import SAYS_READY, importing, rss_mib, started
from dynamig.errors import Unavailable
from dynamig.mig import GpuUuid
from dynamig.nvml import NvmlGpus
from dynamig.testing.emulator import Emulator
from dynamig.testing.fakes import FakeClaims

CLAIMS = GPUS_PER_NODE * PER_GPU
GOAL_S = 1.0
"""The design's start to ready, NVML apart."""

DRIVER = str(Path(sys.executable).parent / "dynamig")
SERVING = '"event": "driver_running"'
WARM_UP = 2


def report(*, quick: bool) -> Report:
    rounds = 3 if quick else 20
    with emulated_node() as emulator, state_folder() as state:
        inside = run_on(emulator, "bench.start", emulator, state, rounds)
        outside = _outside(emulator, state, max(3, rounds // 2))
    with emulated_node(trace=True) as emulator, state_folder() as state:
        calls = run_on(emulator, "bench.start", emulator, state, 1)["nvml_calls"]
    ours = max(inside["ours"])
    word = "meets" if ours < GOAL_S else "MISSES"
    verdict = f"inventory and plan without NVML: at most {ours:.3f} s, {word} {GOAL_S:.0f} s"
    counted = Figure(Series("NVML calls of inventory and plan", "calls", (calls,)))
    return Report((*_split(inside), *outside, counted), (verdict, f"{CLAIMS} prepared claims on {GPUS_PER_NODE} GPUs"))


def _split(rows: Mapping[str, Any]) -> list[Figure]:
    alone = series("the same NVML calls alone", "ms", rows["alone"], scale=1e3)
    return [
        Figure(series("inventory and recovery plan", "ms", rows["total"], scale=1e3), alone),
        Figure(series("- of it in emulated NVML", "ms", rows["nvml"], scale=1e3)),
        Figure(series("- of it ours", "ms", rows["ours"], scale=1e3)),
    ]


def _outside(emulator: Path, state: Path, rounds: int) -> list[Figure]:
    """Real processes over what the inside view left: the same 56 claims."""
    config = configuration(emulator, state)
    rows: dict[str, list[float]] = {name: [] for name in ("driver", "imports", "driver_mib", "imports_mib")}
    for _ in range(rounds):
        argv = [DRIVER, "driver", "run", "--config", str(config)]
        with started(argv, SERVING, env=environment(emulator)) as driver:
            check_quiet(driver.lines)
            rows["driver"].append(driver.seconds)
            rows["driver_mib"].append(rss_mib(driver.pid))
        with started(importing("dynamig.cli.driver"), SAYS_READY) as imports:
            rows["imports"].append(imports.seconds)
            rows["imports_mib"].append(rss_mib(imports.pid))
    only = "Python that imports the driver"
    return [
        Figure(series("exec to serving", "s", rows["driver"]), series(only, "s", rows["imports"])),
        Figure(series("RSS then", "MiB", rows["driver_mib"]), series(only, "MiB", rows["imports_mib"])),
    ]


def check_quiet(lines: tuple[str, ...]) -> None:
    """What was measured is a start with nothing to repair."""
    if repaired := [line for line in lines if '"recovering"' in line]:
        raise Unavailable("BENCH_FAILED", f"the start repaired something: {repaired}", "only a quiet start is measured")


def configuration(emulator: Path, state: Path) -> Path:
    """The driver's, with an API server that refuses every connection: a start must not need one."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "none", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "driver", "user": {"token": "none"}}],
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "driver"}}],
        "current-context": "none",
    }
    (state / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    config = {
        "nodeName": NODE,
        "kubeconfig": str(state / "kubeconfig"),
        "kubeletDir": str(state / "kubelet"),
        "stateDir": str(state),
        "cdiDir": str(state / "cdi"),
        "devRoot": str(emulator),
        "procRoot": str(emulator / "proc"),
        "sysRoot": str(emulator / "sys"),
        "socket": str(state / "driver.sock"),
    }
    (state / "driver.yaml").write_text(yaml.safe_dump(config))
    return state / "driver.yaml"


# In the process that has the emulated node


def measure(emulator: Path, state: Path, rounds: int) -> dict[str, Any]:
    """Starts on a node full of claims, each followed by its NVML calls alone; all in seconds."""
    with driver_on(emulator, state) as node:
        node.fill(CLAIMS)
    node_trace, calls = Emulator(emulator), 0
    rows: dict[str, list[float]] = {name: [] for name in ("total", "nvml", "ours", "alone")}
    for number in range(-WARM_UP, rounds):
        before = sum(node_trace.counters().values())
        total, nvml, asked = _start(emulator, state)
        calls = sum(node_trace.counters().values()) - before
        alone = _nvml_alone(emulator, asked)
        if number >= 0:
            for name, value in (("total", total), ("nvml", nvml), ("ours", total - nvml), ("alone", alone)):
                rows[name].append(value)
    return {**rows, "nvml_calls": calls}


def _start(emulator: Path, state: Path) -> tuple[float, float, tuple[str, ...]]:
    """Seconds in all and in NVML, and what was asked there."""
    begun = time.perf_counter()
    with NvmlGpus(emulator / "sys") as gpus:
        opened = time.perf_counter() - begun
        node = DriverNode(gpus, emulator, state, FakeClaims())
        plan = node.plan()
        total = time.perf_counter() - begun
    nvml, asked = node.nvml.take()
    if plan.actions or plan.quarantined or len(node.journal.records()) != CLAIMS:
        raise AssertionError(f"a start with nothing to repair was wanted: {plan}")
    return total, opened + nvml, asked


def _nvml_alone(emulator: Path, asked: tuple[str, ...]) -> float:
    begun = time.perf_counter()
    with NvmlGpus(emulator / "sys") as gpus:
        uuids: list[GpuUuid] = []
        for number, call in enumerate(asked):
            if call == "readings":
                uuids = [reading.uuid for reading in gpus.readings()]
            elif call == "instances":
                gpus.instances(uuids[number % len(uuids)])
            else:
                raise AssertionError(f"a start asked NVML for {call}")
        return time.perf_counter() - begun


def main(emulator: str, state: str, rounds: str) -> None:
    log_to(Path(state) / "bench.log")
    print(json.dumps(measure(Path(emulator), Path(state), int(rounds))))


if __name__ == "__main__":
    main(*sys.argv[1:])
