"""A node that belongs to an ordinary user, and one that an ordinary user may only read.

The clients load everything as root and then become that user, who may not read the interpreter's own files.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from dynamig.testing.emulator import Emulator, NvmlReturn
from tests.integration.emulator.clients import CODE, IN_USE, NO_PERMISSION, environment, run_python
from tests.integration.emulator.conftest import Make

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes other users")

USER = 1000

LOADED = f"""{CODE}
import os, sys
from dynamig.testing.emulator import Emulator
node = sys.argv[1]
pynvml.nvmlInit(); pynvml.nvmlShutdown()
def become_the_user():
    os.setgroups([]); os.setgid({USER}); os.setuid({USER})
def start():
    os.environ["DYNAMIG_EMULATOR_DIR"] = node
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByIndex(0)
"""

INIT = (
    LOADED
    + """
Emulator(sys.argv[2]).init("h100-80gb-sxm5")
become_the_user()
Emulator(node).init("h100-80gb-sxm5", trace=False)
"""
)

MAKE = """
gpu = start()
print(pynvml.nvmlGpuInstanceGetInfo(gi := pynvml.nvmlDeviceCreateGpuInstance(gpu, 9)).id)
pynvml.nvmlGpuInstanceCreateComputeInstance(gi, 2)
"""

DESTROY = """
gpu = start()
gi = pynvml.nvmlDeviceGetGpuInstanceById(gpu, int(sys.argv[2]))
ci = pynvml.nvmlGpuInstanceGetComputeInstanceById(gi, 0)
print(code(pynvml.nvmlComputeInstanceDestroy, ci), code(pynvml.nvmlGpuInstanceDestroy, gi))
"""

BECOME = "become_the_user()\n"


@pytest.fixture
def owned(make: Make) -> Emulator:
    """A node that the user made."""
    other = make()
    home = other.directory.parent / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    home.parent.chmod(0o755)
    run_python(other, INIT, str(home / "node"), str(home.parent / "root"))
    return Emulator(home / "node")


def client(node: Emulator, script: str, *arguments: str, under: Sequence[str] = ()) -> str:
    return run_python(node, LOADED + script, str(node.directory), *arguments, under=under)


def capability_files(node: Emulator) -> dict[str, str]:
    mig = node.directory / "proc/driver/nvidia/capabilities/gpu0/mig"
    return {str(p.relative_to(mig)): p.read_text() if p.is_file() else "" for p in mig.rglob("*")}


def instance_files(node: Emulator) -> list[str]:
    """Everything that is there for an instance only."""
    root = node.directory
    found = [*(root / "proc/driver/nvidia/capabilities/gpu0/mig").rglob("*"), *(root / "state/busy").glob("*-*")]
    found += [p for p in (root / "dev/nvidia-caps").iterdir() if p.name not in ("nvidia-cap1", "nvidia-cap2")]
    return sorted(str(p.relative_to(root)) for p in found)


def test_the_owner_gets_an_access_file_for_each_instance_and_takes_it_away(owned: Emulator) -> None:
    gi = int(client(owned, BECOME + MAKE))
    number = 3 + gi * 9
    tells = "DeviceFileMinor: {}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    assert capability_files(owned) == {
        f"gi{gi}": "",
        f"gi{gi}/access": tells.format(number),
        f"gi{gi}/ci0": "",
        f"gi{gi}/ci0/access": tells.format(number + 1),
    }
    assert not (owned.directory / "state/tree.dirty").exists()
    assert client(owned, BECOME + DESTROY, str(gi)).split() == ["0", "0"]
    assert instance_files(owned) == []


def test_what_root_makes_on_a_users_node_the_user_takes_away(owned: Emulator) -> None:
    gi = client(owned, MAKE).strip()
    assert client(owned, BECOME + DESTROY, gi).split() == ["0", "0"]
    assert instance_files(owned) == []


def test_what_cannot_be_given_to_the_owner_stays_with_all_its_files(owned: Emulator) -> None:
    gi = client(owned, MAKE, under=("setpriv", "--bounding-set=-chown")).strip()
    before = capability_files(owned), instance_files(owned)
    assert client(owned, BECOME + DESTROY, gi).split() == [str(NO_PERMISSION), str(IN_USE)]
    assert (capability_files(owned), instance_files(owned)) == before
    assert [len(gi.compute_instances) for gi in owned.show().gpus[0].gpu_instances] == [1]
    assert client(owned, DESTROY, gi).split() == ["0", "0"]
    assert instance_files(owned) == []


CHANGE = """
start()
become_the_user()
print(Emulator(node).lose(0), Emulator(node).feed(["0 gpu0 used=1"]))
"""


def test_what_a_killed_root_left_beside_a_users_files_stops_nobody(owned: Emulator) -> None:
    left = [owned.directory / "state" / f"{name}.new" for name in ("node", "usage")]
    for changes, said in ((CHANGE, "True 1"), (BECOME + MAKE, "")):
        for path in left:
            path.write_bytes(b"half a file")
        assert said in client(owned, changes)
        assert not left[0].exists()
        owned.lose(0, lost=False)


CALL_EACH_TIME = """
import ctypes
become_the_user()
start()
ask, count = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetCount_v2"), ctypes.c_uint()
for _ in sys.stdin:
    print(ask(ctypes.byref(count)), flush=True)
"""


@contextmanager
def reader(node: Emulator) -> Iterator[subprocess.Popen[str]]:
    """A client that may not write the node's files, and calls once for each line that it gets."""
    command = [sys.executable, "-c", LOADED + CALL_EACH_TIME, str(node.directory)]
    pipe = subprocess.PIPE
    program = subprocess.Popen(command, env=environment(node), stdin=pipe, stdout=pipe, text=True)
    try:
        yield program
    finally:
        program.communicate()


def test_however_many_faults_have_struck_a_client_that_only_reads_the_next_one_does(make: Make) -> None:
    node = make()
    for path in (node.directory.parent, node.directory):
        path.chmod(0o755)
    assert stat.S_IMODE((node.directory / "state/faults").stat().st_mode) == 0o644
    with reader(node) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for _ in range(2 * 64 + 1):
            node.fail("nvmlDeviceGetCount_v2", NvmlReturn.IN_USE, nth=2)
            codes = []
            for _ in range(3):
                program.stdin.write("\n")
                program.stdin.flush()
                codes.append(int(program.stdout.readline()))
            assert codes == [0, IN_USE, 0]
            node.clear_faults()
