"""Faults that the control side orders while clients run."""

import ctypes
import subprocess
import sys
import threading
import time
from pathlib import Path

import pynvml
import pytest

from dynamig.errors import Refused
from dynamig.testing.emulator import Emulator, NvmlReturn, layout
from dynamig.testing.emulator.faults import order_fault, read_faults
from tests.integration.emulator.clients import IN_USE, NO_ROOM, Nvml, code_of, environment, open_nvml, run_python
from tests.integration.emulator.conftest import Make

Client = tuple[Emulator, Nvml]


def test_the_nth_call_fails_and_does_nothing(nvml: Client) -> None:
    emulator, client = nvml
    emulator.fail("nvmlDeviceCreateGpuInstanceWithPlacement", NvmlReturn.INSUFFICIENT_RESOURCES, nth=2)
    codes = [code_of(client.create, 19, start, 1) for start in range(3)]
    assert codes == [0, NO_ROOM, 0]
    assert [gi.start for gi in emulator.show().gpus[0].gpu_instances] == [0, 2]


def test_a_failure_after_the_work_leaves_the_work_done(nvml: Client) -> None:
    emulator, client = nvml
    emulator.fail("nvmlDeviceCreateGpuInstanceWithPlacement", NvmlReturn.UNKNOWN, after=True)
    assert code_of(client.create, 9, 4, 4) == 999
    assert [gi.profile for gi in emulator.show().gpus[0].gpu_instances] == ["3g.40gb"]


def test_a_count_ends_and_zero_never_does(nvml: Client) -> None:
    emulator, client = nvml
    emulator.fail("nvmlGpuInstanceDestroy", NvmlReturn.IN_USE, count=2)
    gi = client.create(9, 4, 4)
    spent = []
    for expected in (IN_USE, IN_USE, 0):
        assert code_of(pynvml.nvmlGpuInstanceDestroy, gi) == expected
        spent.append(emulator.show().faults[0].spent)
    assert spent == [False, True, True]
    emulator.fail("nvmlDeviceGetMigMode", NvmlReturn.NOT_SUPPORTED, count=0)
    assert {code_of(pynvml.nvmlDeviceGetMigMode, client.gpu()) for _ in range(50)} == {3}
    assert not emulator.show().faults[1].spent
    emulator.clear_faults()
    assert code_of(pynvml.nvmlDeviceGetMigMode, client.gpu()) == 0


def test_a_pattern_hits_a_family_and_a_gpu_narrows_it(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:2")
    with open_nvml(emulator) as nvml:
        emulator.fail("nvml*Create*Instance*", NvmlReturn.IN_USE, count=0, gpu=1)
        gi = nvml.create(9, 4, 4, gpu=0)
        nvml.fill(gi)
        assert code_of(nvml.create, 9, 4, 4, 1) == IN_USE


def test_a_call_without_its_version_is_all_its_versions(nvml: Client) -> None:
    emulator, _ = nvml
    emulator.fail("nvmlDeviceGetCount", NvmlReturn.UNKNOWN, count=2)
    assert pynvml._nvmlGetFunctionPointer("nvmlDeviceGetCount")(ctypes.byref(ctypes.c_uint())) == 999
    assert [code_of(pynvml.nvmlDeviceGetCount) for _ in range(2)] == [999, 0]  # of the second version
    emulator.clear_faults()
    emulator.fail("nvmlDeviceGetCount_v2", NvmlReturn.UNKNOWN, count=0)
    assert pynvml._nvmlGetFunctionPointer("nvmlDeviceGetCount")(ctypes.byref(ctypes.c_uint())) == 0
    assert code_of(pynvml.nvmlDeviceGetCount) == 999


def test_symbols_without_implementation_can_fail_too(nvml: Client) -> None:
    emulator, client = nvml
    emulator.fail("nvmlDeviceGetVgpuMetadata", NvmlReturn.GPU_IS_LOST)
    assert pynvml._nvmlGetFunctionPointer("nvmlDeviceGetVgpuMetadata")(client.gpu(), None, None) == 15


def test_the_start_of_nvml_can_fail(make: Make) -> None:
    emulator = make()
    emulator.fail("nvmlInit*", NvmlReturn.DRIVER_NOT_LOADED)
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded), open_nvml(emulator):
        pass
    with open_nvml(emulator):
        pass


def test_calls_of_all_processes_count_together(make: Make) -> None:
    emulator = make()
    emulator.fail("nvmlDeviceGetUUID", NvmlReturn.UNKNOWN, nth=3, count=2)
    script = """
import pynvml, sys
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
for _ in range(2):
    try:
        pynvml.nvmlDeviceGetUUID(gpu)
        print(0)
    except pynvml.NVMLError as error:
        print(error.value)
"""
    codes = [run_python(emulator, script).split() for _ in range(3)]
    assert codes == [["0", "0"], ["999", "999"], ["0", "0"]]


def test_a_delay_holds_nobody_else_up(nvml: Client) -> None:
    emulator, client = nvml
    emulator.delay("nvmlDeviceCreateGpuInstanceWithPlacement", 3.0)
    begun = time.monotonic()
    slow = threading.Thread(target=client.create, args=(19, 0, 1))
    slow.start()
    for _ in range(20):
        pynvml.nvmlDeviceGetMigMode(client.gpu())
    assert slow.is_alive()
    slow.join()
    assert time.monotonic() - begun >= 3.0


def test_jitter_spreads_a_delay(nvml: Client) -> None:
    emulator, client = nvml
    emulator.delay("nvmlDeviceGetMigMode", 0.001, jitter=0.02)
    gpu, taken = client.gpu(), []
    for _ in range(15):
        begun = time.monotonic()
        pynvml.nvmlDeviceGetMigMode(gpu)
        taken.append(time.monotonic() - begun)
    assert min(taken) >= 0.001
    assert max(taken) - min(taken) > 0.003


def test_a_hang_ends_with_the_faults(nvml: Client) -> None:
    emulator, client = nvml
    emulator.hang("nvmlDeviceGetUUID")
    caller = threading.Thread(target=pynvml.nvmlDeviceGetUUID, args=(client.gpu(),))
    caller.start()
    caller.join(0.3)
    assert caller.is_alive()
    emulator.clear_faults()
    caller.join(5)
    assert not caller.is_alive()


def test_a_hung_client_can_be_killed(make: Make) -> None:
    emulator = make()
    emulator.hang("nvmlInitWithFlags")
    client = subprocess.Popen([sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"], env=environment(emulator))
    deadline = time.monotonic() + 60
    while not read_faults(emulator.directory)[0].seen and time.monotonic() < deadline:
        time.sleep(0.02)
    assert read_faults(emulator.directory)[0].seen == 1  # else this process would be the one that hangs
    with pytest.raises(subprocess.TimeoutExpired):
        client.wait(0.5)
    client.kill()
    client.wait()
    with open_nvml(emulator) as nvml:
        nvml.create(19, 0, 1)


def test_orders_that_make_no_sense_are_refused(make: Make) -> None:
    emulator = make()
    with pytest.raises(Refused, match="BAD_FAULT"):
        emulator.fail("rm -rf", NvmlReturn.UNKNOWN)
    with pytest.raises(Refused, match="NO_SUCH_GPU"):
        emulator.fail("nvmlInit_v2", NvmlReturn.UNKNOWN, gpu=7)
    for _ in range(64):
        emulator.fail("nvmlInit_v2", NvmlReturn.UNKNOWN)
    with pytest.raises(Refused, match="TOO_MANY_FAULTS"):
        emulator.fail("nvmlInit_v2", NvmlReturn.UNKNOWN)


def test_a_preset_makes_calls_take_as_long_as_published(nvml: Client) -> None:
    emulator, client = nvml
    emulator.latencies("hopper")
    begun = time.monotonic()
    client.create(9, 4, 4)
    taken = time.monotonic() - begun
    assert taken >= 0.5
    emulator.clear_faults()
    begun = time.monotonic()
    client.create(9, 0, 4)
    assert time.monotonic() - begun < taken
    with pytest.raises(Refused, match="UNKNOWN_PRESET"):
        emulator.latencies("volta")


def tail(mean_us: int) -> layout.Fault:
    """Mode questions take an exponential time of this mean."""
    return layout.Fault(
        call=b"nvmlDeviceGetMigMode",
        kind=layout.FAULT_DELAY,
        gpu=-1,
        nth=1,
        jitter_us=mean_us,
        flags=layout.FAULT_TAIL,
    )


def test_a_tail_is_short_as_a_rule_and_long_now_and_then(make: Make) -> None:
    """Exponential: half of all beyond 0.69 of the mean, a tenth beyond 2.3; an even share would end at the mean.

    Only from below: a busy machine adds to every call.
    """
    emulator = make()
    mean_us = 1000
    order_fault(emulator.directory, tail(mean_us))
    with open_nvml(emulator) as nvml:
        for _ in range(400):
            pynvml.nvmlDeviceGetMigMode(nvml.gpu())
    taken = sorted(call.us for call in emulator.trace() if call.call == "nvmlDeviceGetMigMode")
    assert taken[len(taken) // 2] > 0.5 * mean_us
    assert taken[len(taken) * 9 // 10] > 1.8 * mean_us


RECORDS_SLEEPS = """
#include <stdint.h>
#include <time.h>
uint64_t calls, longest_us;
int nanosleep(const struct timespec *asked, struct timespec *left)
{
    uint64_t us = asked->tv_sec * 1000000ull + asked->tv_nsec / 1000;
    (void)left;
    calls++;
    longest_us = us > longest_us ? us : longest_us;
    return 0;
}
"""

DRAW = """
import ctypes, sys, pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
for _ in range(20000):
    pynvml.nvmlDeviceGetMigMode(gpu)
recorded = ctypes.CDLL(None)
print(*(ctypes.c_uint64.in_dll(recorded, name).value for name in ("calls", "longest_us")))
"""


def test_no_draw_of_a_tail_is_longer_than_eight_means(make: Make, tmp_path: Path) -> None:
    """Nobody sleeps; of so many draws without a limit, all but one run in a thousand would have a longer one."""
    (tmp_path / "sleep.c").write_text(RECORDS_SLEEPS)
    library = tmp_path / "sleep.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "sleep.c")], check=True)
    emulator, mean_us = make(trace=False), 1_000_000
    order_fault(emulator.directory, tail(mean_us))
    calls, longest = map(int, run_python(emulator, DRAW, LD_PRELOAD=str(library)).split())
    assert calls == 20000
    assert 4 * mean_us < longest <= 8 * mean_us
