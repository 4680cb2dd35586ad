"""How fast the NVML emulator answers, alone and with eight clients, and what it costs a client.

Reads are called past pynvml's wrappers, so that little Python is measured, and stand against a symbol that is exported
and not implemented: the same way in and out, and no work. Eight processes stand against one; creating and destroying in
memory against a node on the disk; enumerating eight full GPUs against eight empty ones.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pynvml

from bench.emulated import GPUS_PER_NODE, MODEL, emulated_node, environment, filesystem_of, run_on
from bench.figures import Figure, Report, series
from bench.processes import SAYS_READY, rss_mib, started
from dynamig.testing.emulator import Emulator, find_library

CLIENTS = 8
PER_GPU = 7
NO_WORK = "a call that does nothing"
CLIENT = "import pynvml; pynvml.nvmlInit(); [{work}]; print({word!r}, flush=True); input()"
ENUMERATE = "pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())"


def report(*, quick: bool) -> Report:
    rounds, seconds = (2, 0.1) if quick else (9, 0.5)
    with emulated_node() as emulator:
        figures = [*_reads(emulator, rounds, seconds), _enumerating(emulator, rounds), *_memory(emulator, rounds)]
        changing, disk = _changing(emulator, rounds)
    notes = (
        f"{GPUS_PER_NODE} GPUs of {MODEL}; {os.cpu_count()} processors serve the {CLIENTS} clients",
        f"the node lies in memory; the one on the disk on {disk}; neither is flushed",
    )
    return Report((*figures, changing), notes)


def _reads(emulator: Path, rounds: int, seconds: float) -> Iterator[Figure]:
    """Calls a second of each read, by one process; and of all together, by eight."""
    alone: dict[str, list[float]] = {}
    together: dict[str, list[float]] = {"one process": [], "eight": []}
    Emulator(emulator).foreign(0, "3g.40gb", 4)
    for _ in range(rounds):
        one = _measured(emulator, seconds)
        with ThreadPoolExecutor(CLIENTS) as pool:
            many = list(pool.map(lambda _: _measured(emulator, seconds), range(CLIENTS)))
        for name, rate in one.items():
            alone.setdefault(name, []).append(rate)
        together["one process"].append(_mean_rate(one))
        together["eight"].append(sum(map(_mean_rate, many)))
    Emulator(emulator).remove_foreign(0)
    nothing = series(NO_WORK, "calls/s", alone.pop(NO_WORK))
    yield from (Figure(series(name, "calls/s", rates), nothing) for name, rates in alone.items())
    yield Figure(
        series("all reads in turn, eight processes together", "calls/s", together["eight"]),
        series("the same, one process", "calls/s", together["one process"]),
    )


def _measured(emulator: Path, seconds: float) -> Mapping[str, float]:
    rates: dict[str, float] = run_on(emulator, "bench.emulator", "read", seconds)
    return rates


def _mean_rate(rates: Mapping[str, float]) -> float:
    """Calls a second if every read is called as often as any other."""
    work = [rate for name, rate in rates.items() if name != NO_WORK]
    return len(work) / sum(1 / rate for rate in work)


def _enumerating(emulator: Path, rounds: int) -> Figure:
    """nvml-list, a C program, from its start to its end: everything on eight GPUs, full and empty in turn."""
    node, times = Emulator(emulator), dict[str, list[float]](full=[], empty=[])
    for _ in range(rounds):
        times["empty"].append(_listing(emulator))
        run_on(emulator, "bench.emulator", "fill", PER_GPU)
        times["full"].append(_listing(emulator))
        for gpu in range(GPUS_PER_NODE):
            node.reset(gpu)
    full = series(f"nvml-list: {GPUS_PER_NODE * PER_GPU} MIG devices on 8 GPUs", "ms", times["full"], scale=1000)
    return Figure(full, series("the same, 8 empty GPUs", "ms", times["empty"], scale=1000))


def _listing(emulator: Path) -> float:
    command = [str(find_library().parent / "nvml-list")]
    begun = time.perf_counter()
    subprocess.run(command, env=environment(emulator), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def _changing(emulator: Path, rounds: int) -> tuple[Figure, str]:
    """A MIG device made and destroyed, two calls each; and the file system of the node that it is compared with."""
    times = dict[str, list[float]](memory=[], disk=[])
    with TemporaryDirectory(prefix="dynamig-bench-") as folder:
        on_disk = Path(folder) / "node"
        Emulator(on_disk).init(f"{MODEL}:{GPUS_PER_NODE}", trace=False)
        for _ in range(rounds):
            times["memory"] += run_on(emulator, "bench.emulator", "change", 20)
            times["disk"] += run_on(on_disk, "bench.emulator", "change", 20)
        filesystem = filesystem_of(on_disk)
    made = series("a MIG device made and destroyed", "ms", times["memory"], scale=1000)
    return Figure(made, series("the same, node on disk", "ms", times["disk"], scale=1000)), filesystem


def _memory(emulator: Path, rounds: int) -> Iterator[Figure]:
    """A Python client that has looked at eight GPUs, against one that has only loaded pynvml."""
    rows: dict[str, list[float]] = {"client": [], "import": []}
    for _ in range(rounds):
        rows["client"].append(_resident(emulator, CLIENT.format(work=ENUMERATE, word=SAYS_READY)))
        rows["import"].append(_resident(emulator, f"import pynvml; print({SAYS_READY!r}, flush=True); input()"))
    looked = series("RSS of a Python client after a look at 8 GPUs", "MiB", rows["client"])
    yield Figure(looked, series("Python that has imported pynvml", "MiB", rows["import"]))


def _resident(emulator: Path, script: str) -> float:
    with started([sys.executable, "-c", script], SAYS_READY, env=environment(emulator)) as process:
        return rss_mib(process.pid)


# ---- inside a client


@contextmanager
def _nvml() -> Iterator[Any]:
    """The first GPU's handle."""
    pynvml.nvmlInit()
    try:
        yield pynvml.nvmlDeviceGetHandleByIndex(0)
    finally:
        pynvml.nvmlShutdown()


def reads(seconds: float) -> dict[str, float]:
    """Calls a second of each read, each called for that long."""
    with _nvml() as gpu:
        return {name: _rate(call, seconds) for name, call in _calls(gpu).items()}


def _calls(gpu: Any) -> dict[str, Callable[[], int]]:
    text, number, other, memory = (
        ctypes.create_string_buffer(96),
        ctypes.c_uint(),
        ctypes.c_uint(),
        pynvml.c_nvmlMemory_t(),
    )
    handle = ctypes.c_void_p()
    mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)

    def call(name: str, *arguments: Any) -> Callable[[], int]:
        function = pynvml._nvmlGetFunctionPointer(name)
        return lambda: int(function(*arguments))

    return {
        NO_WORK: call("nvmlDeviceGetVgpuMetadata", gpu, None, None),
        "nvmlDeviceGetCount": call("nvmlDeviceGetCount_v2", ctypes.byref(number)),
        "nvmlDeviceGetUUID": call("nvmlDeviceGetUUID", gpu, text, 96),
        "nvmlDeviceGetMigMode": call("nvmlDeviceGetMigMode", gpu, ctypes.byref(number), ctypes.byref(other)),
        "nvmlDeviceGetMemoryInfo of a MIG device": call("nvmlDeviceGetMemoryInfo", mig, ctypes.byref(memory)),
        "nvmlDeviceGetMigDeviceHandleByIndex": call(
            "nvmlDeviceGetMigDeviceHandleByIndex", gpu, 0, ctypes.byref(handle)
        ),
    }


def _rate(call: Callable[[], int], seconds: float) -> float:
    count, begun = 0, time.perf_counter()
    while (taken := time.perf_counter() - begun) < seconds:
        for _ in range(100):
            call()
        count += 100
    return count / taken


def changes(rounds: int) -> list[float]:
    """Seconds of each round: GPU instance and compute instance made and destroyed."""
    with _nvml() as gpu:
        return [_one_change(gpu) for _ in range(rounds)]


def _one_change(gpu: Any) -> float:
    begun = time.perf_counter()
    gi = pynvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    ci = pynvml.nvmlGpuInstanceCreateComputeInstance(gi, 0)
    pynvml.nvmlComputeInstanceDestroy(ci)
    pynvml.nvmlGpuInstanceDestroy(gi)
    return time.perf_counter() - begun


def fill(per_gpu: int) -> int:
    """That many MIG devices on every GPU; returns how many there are."""
    with _nvml():
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        for gpu in gpus * per_gpu:
            pynvml.nvmlGpuInstanceCreateComputeInstance(pynvml.nvmlDeviceCreateGpuInstance(gpu, 19), 0)
        return len(gpus) * per_gpu


WORK: Mapping[str, Callable[[float], Any]] = {
    "read": reads,
    "change": lambda rounds: changes(int(rounds)),
    "fill": lambda per_gpu: fill(int(per_gpu)),
}

if __name__ == "__main__":
    print(json.dumps(WORK[sys.argv[1]](float(sys.argv[2]))))
