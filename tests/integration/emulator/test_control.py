"""The control side over the library: whose GPU it means, what a kill leaves behind, what it says of wrong libraries."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from dynamig.errors import Refused, Unavailable
from dynamig.testing.emulator import Emulator, node
from tests.integration.emulator.clients import environment, open_nvml, run_python
from tests.integration.emulator.conftest import Make


def modes(emulator: Emulator) -> list[bool]:
    return [gpu.mig for gpu in emulator.show().gpus]


def test_the_gpu_of_a_command_is_the_nodes_whatever_a_client_sees(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:3", mig=False)
    (emulator.directory / "dev/nvidia0").rename(emulator.directory / "dev/hidden")
    emulator.set_mig(1, on=True)
    assert modes(emulator) == [False, True, False]
    emulator.foreign(1, "3g.40gb", 4)
    for order in (lambda: emulator.set_mig(0, on=True), lambda: emulator.foreign(0, "3g.40gb", 4)):
        with pytest.raises(Refused, match=r"GPU 0 of .* is hidden: .*dev/nvidia0 is not there"):
            order()
    assert modes(emulator) == [False, True, False]


def _reboot_killed_before_step(emulator: Emulator, step: int) -> bool:
    """Whether the reboot, in a process of its own, was killed before its step-th rename; else it ended."""
    child = os.fork()
    if child == 0:
        rename, left = Path.replace, step

        def counted(self: Path, target: Path) -> Path:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return rename(self, target)

        Path.replace = counted  # type: ignore[method-assign, assignment]
        emulator.reboot()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _boot_id(emulator: Emulator) -> str:
    return (emulator.directory / node.BOOT_ID).read_text().strip()


@pytest.mark.parametrize("mends", ["show", "lose", "foreign"])
def test_a_reboot_killed_at_any_step_is_none_or_whole_for_whoever_comes_next(make: Make, mends: str) -> None:
    step, left_behind = 0, 0
    while True:
        emulator = make("a100-40gb")
        emulator.foreign(0, "3g.20gb", 4)
        before = _boot_id(emulator)
        killed = _reboot_killed_before_step(emulator, step)
        state = node.read_node(emulator.directory)
        rebooted = state.head.boot_id.decode() != before
        assert state.gpus[0].gi_count == (0 if rebooted else 1)
        assert _boot_id(emulator) in (before, state.head.boot_id.decode())
        left_behind += _boot_id(emulator) != state.head.boot_id.decode()
        if mends == "lose":
            emulator.lose(0)
        elif mends == "foreign":
            emulator.foreign(0, "1g.5gb", 0)
        shown = emulator.show()
        assert shown.boot_id == _boot_id(emulator) == state.head.boot_id.decode()
        if not killed:
            break
        step += 1
    assert (step, left_behind) == (2, 1)  # the state's rename, and that of the boot id after it


def test_a_reader_of_the_boot_id_never_sees_half_of_one(make: Make) -> None:
    emulator = make()
    path, child = emulator.directory / node.BOOT_ID, os.fork()
    if child == 0:
        for _ in range(200):
            emulator.reboot()
        os._exit(0)
    seen = set()
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        seen.add(path.read_text())
    assert {len(text) for text in seen} == {37}


@pytest.mark.parametrize(
    ("named", "said", "next_step"),
    [
        ("/nope", "/nope, which $DYNAMIG_EMULATOR_LIBRARY names, is not a file", "or unset DYNAMIG_EMULATOR_LIBRARY"),
        ("/bin/ls", "/bin/ls is not the emulator's library: it", "or unset DYNAMIG_EMULATOR_LIBRARY"),
        ("/etc/passwd", "/etc/passwd is not the emulator's library: it is no shared object", "make emulator"),
    ],
)
def test_a_library_that_is_none_is_named_with_who_named_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, named: str, said: str, next_step: str
) -> None:
    emulator = Emulator(make().directory)
    monkeypatch.setenv("DYNAMIG_EMULATOR_LIBRARY", named)
    for order in (
        lambda: emulator.foreign(0, "3g.40gb", 4),
        lambda: emulator.set_mig(0, on=False),
        lambda: emulator.hang("nvmlInit_v2"),
    ):
        with pytest.raises(Unavailable) as told:
            order()
        assert said in told.value.what
        assert next_step in told.value.next_step
        assert "\n" not in str(told.value)
    assert emulator.show().faults == ()


def test_who_holds_what_is_shown(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:2")
    gi = emulator.foreign(0, "3g.40gb", 4)
    with emulator.hold(0, gi, 0), emulator.hold(1), open_nvml(emulator):
        first, second = emulator.show().gpus
    me = (os.getpid(),)
    assert (first.held_by, second.held_by) == ((), me)
    [instance] = first.gpu_instances
    [inside] = instance.compute_instances
    assert (instance.held_by, inside.held_by) == ((), me)
    [instance] = emulator.show().gpus[0].gpu_instances
    assert instance.compute_instances[0].held_by == ()


# ---- what the README shows

ROOT = Path(__file__).parents[3]
README = (ROOT / "emulator/README.md").read_text()

CLIENT = """
#include <nvml.h>
#include <stdio.h>
int main(void)
{
    unsigned count = 0;
    int failed = nvmlInit() || nvmlDeviceGetCount(&count);
    printf("%u\\n", count);
    return failed || nvmlShutdown();
}
"""


def test_the_client_in_python_can_be_run_again_and_again(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:2")
    for _ in range(2):
        run_python(emulator, README.split("```python\n")[1].split("```")[0])
        assert emulator.show().gpus[1].gpu_instances == ()


def test_the_line_that_compiles_a_client_in_c_does(make: Make, tmp_path: Path) -> None:
    emulator = make("h100-80gb-sxm5:3")
    [line] = [line.strip("`") for line in README.splitlines() if line.startswith("`cc ")]
    (tmp_path / "client.c").write_text(CLIENT)
    words = [word.replace("build", str(ROOT / "build"), 1) for word in shlex.split(line)]
    subprocess.run(words, cwd=tmp_path, check=True)
    run = subprocess.run([tmp_path / "client"], env=environment(emulator), capture_output=True, text=True, check=True)
    assert run.stdout == "3\n"


def test_the_class_is_used_as_shown(make: Make) -> None:
    emulator = make()
    exec(README.split("```py\n")[1].split("```")[0].replace("build/box", str(emulator.directory)), {})
    [fault] = emulator.show().faults
    assert (fault.call, fault.code, fault.count) == ("nvmlDeviceCreate*", 19, 2)
