"""Several processes and threads for a long time, some killed at random moments: the state is what the model says.

`make soak` asks for a million operations; and for fewer under sanitizers (test_sanitizers.py).
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import time
from mmap import mmap

import pynvml
import pytest

from dynamig.mig import Table
from dynamig.testing.emulator import Emulator
from tests.integration.emulator.clients import Nvml, open_nvml
from tests.integration.emulator.conftest import Make
from tests.integration.emulator.soak import SLOT, Gang, Slot, bits_seen
from tests.integration.emulator.test_crash_and_load import check_gpu, check_tree
from tests.unit.mig.models import recorded_by_key

OPERATIONS = int(os.environ.get("DYNAMIG_EMULATOR_OPERATIONS", "100000"))
MODEL = "h100-80gb-sxm5"
PROCESSES, THREADS = 3, 2
SECONDS_BETWEEN_KILLS = (0.02, 0.4)
FEWEST_KILLS = 5


@pytest.mark.timeout(900 + OPERATIONS // 100)
def test_whatever_is_killed_whenever_the_state_is_the_model_s(make: Make) -> None:
    gpus = PROCESSES * THREADS
    emulator = make(f"{MODEL}:{gpus}", trace=False)
    table, stop = Table(recorded_by_key()[MODEL]), mmap(-1, 1)
    memory = mmap(-1, gpus * SLOT.size)
    slots = [Slot(memory, number) for number in range(gpus)]
    dice, seed = random.Random(OPERATIONS), 0
    with open_nvml(emulator) as nvml:

        def start(first: int) -> Gang:
            nonlocal seed
            seed += 1
            return Gang.started(nvml, table, slots, stop, tuple(range(first, first + THREADS)), seed)

        gangs = [start(number * THREADS) for number in range(PROCESSES)]
        kills = 0
        while sum(slot.read()[0] for slot in slots) < OPERATIONS or kills < FEWEST_KILLS:
            time.sleep(dice.uniform(*SECONDS_BETWEEN_KILLS))
            victim = dice.randrange(PROCESSES)
            killed(gangs[victim])
            holds_what_was_meant(emulator, table, slots, gangs[victim].gpus)
            gangs[victim] = start(gangs[victim].gpus[0])
            kills += 1
        stop[0] = 1
        assert [ended(gang) for gang in gangs] == [0] * PROCESSES
        everything_is_well(emulator, nvml, table, slots)


def killed(gang: Gang) -> None:
    os.kill(gang.pid, signal.SIGKILL)
    assert ended(gang) == -signal.SIGKILL, "a worker ended by itself: its own words are above"


def ended(gang: Gang) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(gang.pid, 0)[1])


def holds_what_was_meant(emulator: Emulator, table: Table, slots: list[Slot], gpus: tuple[int, ...]) -> None:
    """Each GPU of a killed process holds what it held before its last operation or what it was to hold after it."""
    shown = emulator.show()
    for gpu in gpus:
        check_gpu(shown.gpus[gpu])
        _, before, after = slots[gpu].read()
        seen = bits_seen(table, shown.gpus[gpu])
        assert seen in (before, after)
        slots[gpu].settle(seen)


def everything_is_well(emulator: Emulator, nvml: Nvml, table: Table, slots: list[Slot]) -> None:
    """State and model are equal, files follow the state, and nobody holds a lock."""
    shown = emulator.show()
    assert [bits_seen(table, gpu) for gpu in shown.gpus] == [slot.read()[1] for slot in slots]
    pynvml.nvmlDeviceSetPersistenceMode(nvml.gpu(), 0)  # any writer heals the tree
    check_tree(emulator)
    state = emulator.directory / "state"
    locks = [state / "lock", state / "faults", *(state / "busy").iterdir()]
    for path in locks:
        with path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
