"""A writer killed at each of its steps in turn, one under a strict umask, and those whose disk is full."""

from __future__ import annotations

import ctypes
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from dynamig.testing.emulator import Emulator, layout
from tests.integration.emulator.clients import CODE, code_of, environment, open_nvml, run_python
from tests.integration.emulator.conftest import Make
from tests.integration.emulator.test_crash_and_load import check_tree

KILLS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int steps_left = -1; /* not yet counted */

static void step(void)
{
    if (steps_left >= 0 && steps_left-- == 0)
        kill(getpid(), SIGKILL);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name) \
int name(const char *path, int flags, ...) \
{ \
    va_list more; \
    va_start(more, flags); \
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0; \
    va_end(more); \
    if (flags & (O_CREAT | O_APPEND)) \
        step(); \
    return REAL(name)(path, flags, mode); \
}

OPEN(open)
OPEN(open64)

int unlinkat(int dir, const char *path, int flags) { step(); return REAL(unlinkat)(dir, path, flags); }
int rename(const char *from, const char *to) { step(); return REAL(rename)(from, to); }
int unlink(const char *path) { step(); return REAL(unlink)(path); }
int mkdir(const char *path, mode_t mode) { step(); return REAL(mkdir)(path, mode); }
int rmdir(const char *path) { step(); return REAL(rmdir)(path); }
ssize_t write(int fd, const void *data, size_t size) { step(); return REAL(write)(fd, data, size); }

long syscall(long number, ...)
{
    va_list more;
    long a[5];
    va_start(more, number);
    for (int i = 0; i < 5; i++)
        a[i] = va_arg(more, long);
    va_end(more);
    if (number == SYS_mknodat)
        step();
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4]);
}
"""
"""Kills its process before the step after `steps_left` more; a step changes a file or a directory."""

COMMAND = """
import ctypes, os, sys
from dynamig.testing.emulator import Emulator
what, steps = sys.argv[1], int(sys.argv[2])
emulator = Emulator(os.environ["DYNAMIG_EMULATOR_DIR"])
arguments = {"reset": [0], "remove_foreign": [0]}.get(what, [])
ctypes.c_int.in_dll(ctypes.CDLL(None), "steps_left").value = steps
getattr(emulator, what)(*arguments)
ctypes.c_int.in_dll(ctypes.CDLL(None), "steps_left").value = -1
print("done")
"""

WORK = """
import ctypes, sys, pynvml
what, steps = sys.argv[1], int(sys.argv[2])
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
gi = ci = None
if what != "create GPU instance":
    gi = pynvml.nvmlDeviceCreateGpuInstance(gpu, 9)
if what == "destroy compute instance":
    ci = pynvml.nvmlGpuInstanceCreateComputeInstance(gi, 2)
call = {
    "create GPU instance": lambda: pynvml.nvmlDeviceCreateGpuInstance(gpu, 9),
    "destroy GPU instance": lambda: pynvml.nvmlGpuInstanceDestroy(gi),
    "create compute instance": lambda: pynvml.nvmlGpuInstanceCreateComputeInstance(gi, 2),
    "destroy compute instance": lambda: pynvml.nvmlComputeInstanceDestroy(ci),
}[what]
ctypes.c_int.in_dll(ctypes.CDLL(None), "steps_left").value = steps
call()
ctypes.c_int.in_dll(ctypes.CDLL(None), "steps_left").value = -1
print("done")
"""

MOST_STEPS = 40

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killer")
    (folder / "k.c").write_text(KILLS)
    library = folder / "k.so"
    command = ["cc", "-Wno-nonnull-compare", "-shared", "-fPIC", "-o", str(library), str(folder / "k.c"), "-ldl"]
    subprocess.run(command, check=True)
    return library


def check_what_was_left(emulator: Emulator) -> None:
    """Each access file is of an instance that lives; each that lives has its node and its lock, as tree.c promises."""
    root = emulator.directory
    nodes = {path.name for path in (root / "dev/nvidia-caps").iterdir()}
    living = set()
    for gi in emulator.show().gpus[0].gpu_instances:
        living |= {f"gi{gi.gi_id}", *(f"gi{gi.gi_id}/ci{ci.ci_id}" for ci in gi.compute_instances)}
    for name in living:
        gi_id, ci_id = re.fullmatch(r"gi(\d+)(?:/ci(\d+))?", name).groups()  # type: ignore[union-attr]
        assert f"nvidia-cap{3 + int(gi_id) * 9 + (0 if ci_id is None else 1 + int(ci_id))}" in nodes
        assert (root / f"state/busy/gpu0-{name.replace('/', '-')}").exists()
    mig = root / "proc/driver/nvidia/capabilities/gpu0/mig"
    assert {str(path.parent.relative_to(mig)) for path in mig.rglob("access")} <= living


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "what", ["create GPU instance", "destroy GPU instance", "create compute instance", "destroy compute instance"]
)
def test_a_writer_killed_before_each_step_leaves_nothing_wrong(make: Make, killer: Path, what: str) -> None:
    def killed_before(step: int) -> Done:
        emulator = make(trace=False)
        done = run_until(step, emulator, killer, WORK, what)
        check_what_was_left(emulator)
        with open_nvml(emulator) as nvml:
            pynvml.nvmlDeviceSetMigMode(nvml.gpu(), 1)  # any writer heals the tree
        check_tree(emulator)
        return done

    at_each_step(killed_before)


def at_each_step(killed_before: Callable[[int], Done]) -> None:
    """One step later each time, until the program comes to its end."""
    for steps in range(MOST_STEPS):
        done = killed_before(steps)
        if done.stdout == "done\n":
            assert steps >= 6, "steps were not counted"
            return
        assert done.returncode == -9, done.stderr
    pytest.fail(f"more than {MOST_STEPS} steps")


def run_until(step: int, emulator: Emulator, killer: Path, program: str, what: str) -> Done:
    """The program is killed before that step."""
    return subprocess.run(
        [sys.executable, "-c", program, what, str(step)],
        env=environment(emulator, LD_PRELOAD=str(killer)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", ["reset", "remove_foreign", "reload_driver", "reboot"])
def test_a_command_killed_before_each_step_leaves_instances_whole_or_none(make: Make, killer: Path, what: str) -> None:
    def killed_before(step: int) -> Done:
        emulator = make("a100-40gb", trace=False)
        gi = emulator.foreign(0, "3g.20gb", 4)
        lock = emulator.directory / f"state/busy/gpu0-gi{gi}-ci0"
        inode = lock.stat().st_ino
        done = run_until(step, emulator, killer, COMMAND, what)
        check_what_was_left(emulator)
        with open_nvml(emulator) as nvml:
            lives = bool(emulator.show().gpus[0].gpu_instances)
            assert len(nvml.mig_devices()) == (1 if lives else 0)
            assert not lives or lock.stat().st_ino == inode, "who holds it would hold nothing"
            nvml.create(19, 0, 1)  # any writer heals the tree
        check_tree(emulator)
        return done

    at_each_step(killed_before)


UNDER_A_UMASK = """
import os, pynvml
os.umask(0o077)
pynvml.nvmlInit()
gi = pynvml.nvmlDeviceCreateGpuInstance(pynvml.nvmlDeviceGetHandleByIndex(0), 9)
pynvml.nvmlGpuInstanceCreateComputeInstance(gi, 2)
"""


def test_what_a_writer_with_a_strict_umask_leaves_can_be_read_by_all(make: Make) -> None:
    emulator = make()
    run_python(emulator, UNDER_A_UMASK)
    [gi] = emulator.show().gpus[0].gpu_instances
    number = 3 + gi.gi_id * 9
    mig = f"proc/driver/nvidia/capabilities/gpu0/mig/gi{gi.gi_id}"
    wanted = {
        **dict.fromkeys(("state/node", *(f"state/busy/gpu0-gi{gi.gi_id}{ci}" for ci in ("", "-ci0"))), 0o644),
        **dict.fromkeys((mig, f"{mig}/ci0"), 0o755),
        **dict.fromkeys((f"{mig}/access", f"{mig}/ci0/access"), 0o444),
        **dict.fromkeys((f"dev/nvidia-caps/nvidia-cap{n}" for n in (number, number + 1)), 0o444),
    }
    assert {name: stat.S_IMODE((emulator.directory / name).stat().st_mode) for name in wanted} == wanted


ON_A_FULL_DISK = f"""{CODE}
import resource
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
gi = pynvml.nvmlDeviceCreateGpuInstance(gpu, 9)
resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))  # a part of the node file can be written
print(code(pynvml.nvmlDeviceCreateGpuInstance, gpu, 9), code(pynvml.nvmlGpuInstanceDestroy, gi))
"""
OPERATING_SYSTEM = 17


def test_what_cannot_be_written_whole_leaves_the_node_as_it_was(make: Make) -> None:
    emulator = make(trace=False)
    assert run_python(emulator, ON_A_FULL_DISK).split() == [str(OPERATING_SYSTEM)] * 2
    assert [gi.profile for gi in emulator.show().gpus[0].gpu_instances] == ["3g.40gb"]
    with open_nvml(emulator) as nvml:
        assert code_of(nvml.create_anywhere, 9) == 0
    check_tree(emulator)


WITHOUT_ROOM = """
import os, resource, signal, sys, pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
trace = sys.argv[1] + "/trace"
def code(room, call, *arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return error.value
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return 0
print(code(20, pynvml.nvmlDeviceCreateGpuInstance, gpu, 9))  # a part of the access file can be written
print(code(os.path.getsize(trace) + 20, pynvml.nvmlDeviceGetUUID, gpu))  # a part of a line
print(code(os.path.getsize(trace) + 4096, pynvml.nvmlDeviceGetName, gpu))
"""


def test_an_instance_that_no_access_file_could_tell_of_is_not_made(make: Make) -> None:
    emulator = make()
    assert run_python(emulator, WITHOUT_ROOM, str(emulator.directory)).split() == [str(OPERATING_SYSTEM), "0", "0"]
    assert emulator.show().gpus[0].gpu_instances == ()
    with open_nvml(emulator) as nvml:
        assert code_of(nvml.create_anywhere, 9) == 0
    check_tree(emulator)


def test_a_line_of_the_call_log_is_whole_or_not_there(make: Make) -> None:
    emulator = make()
    run_python(emulator, WITHOUT_ROOM, str(emulator.directory))
    lines = (emulator.directory / "trace").read_text().splitlines()
    told = [json.loads(line)["call"] for line in lines]  # without the two for which there was no room
    assert told == ["nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetName"]


FILL = """
import ctypes, errno, os, sys
from pathlib import Path
from dynamig.errors import DynamigError
from dynamig.testing.emulator import Emulator, NvmlReturn, layout
FAULT = ctypes.sizeof(layout.Fault)
os.chdir(sys.argv[1])
node = Emulator(Path("disk/node"))
node.init("h100-80gb-sxm5")
node.foreign(0, "3g.40gb", 4)
os.truncate("disk/node/state/events", 0)  # so that the next event needs a page
for _ in range(4096 // FAULT):  # the next one begins in the last page that there is, and ends in another
    node.fail("nvmlInit_v2", NvmlReturn.IN_USE)
with open("disk/filler", "wb", buffering=0) as filler:
    try:
        while filler.write(bytes(4096)):
            pass
    except OSError as error:
        assert error.errno == errno.ENOSPC
faults = Path("disk/node/state/faults")
fed = ["0 gpu0 gpu=1"] * 2000
def told(call, *arguments):
    try:
        return call(*arguments)
    except DynamigError as error:
        return f"{error.code}: {error.next_step}"
print(told(node.xid, 0, 79))
print(told(node.fail, "nvmlInit_v2", NvmlReturn.IN_USE))
print(told(node.feed, fed))
parts = [Path("disk/node", part) for part in ("dev/nvidia-caps", "proc", "state/busy")]
of_instances = [path for part in parts for path in part.rglob("*")]
print(told(node.reset, 0))
assert all(path.exists() for path in of_instances), "gone, though their instance lives"
print(told(Emulator(Path("disk/other")).init, "h100-80gb-sxm5"))
print(os.path.exists("disk/other"), faults.stat().st_size % FAULT, len(node.show().faults))
Path("disk/filler").unlink()
print(len(Emulator(Path("disk/other")).init("h100-80gb-sxm5").gpus), len(node.show().gpus))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a small file system, mounted")
def test_on_a_full_disk_each_command_says_so_and_leaves_nothing_half_made(make: Make, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    mounted = 'mount -t tmpfs -o size=1m none "$1/disk" && shift && exec "$@"'
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", mounted, "sh", str(tmp_path)]
    said = run_python(make(), FILL, str(tmp_path), under=command).splitlines()
    room = "make room on its file system"
    assert said[:5] == [*[f"NODE_FILES: {room}"] * 4, f"NODE_UNWRITABLE: {room}"]
    assert said[5:] == [f"False 0 {4096 // ctypes.sizeof(layout.Fault)}", "1 1"]
