"""Every exported symbol: what it answers, that its level in emulator/SYMBOLS.md is true, and how it refuses."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from dynamig.testing.emulator import Emulator
from dynamig.testing.emulator.library import symbols_of
from emulator.symbols import Level, implemented, levels, table
from tests.integration.emulator.clients import (
    INVALID_ARGUMENT,
    LOST,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
    Nvml,
    open_nvml,
    run_python,
)
from tests.integration.emulator.conftest import Make
from tests.integration.emulator.symbol_cases import (
    ACTIONS,
    FEED,
    MIG_OFF_READS,
    NOT_TO_BE_READ,
    READS,
    Case,
    Out,
    World,
)

EMULATOR = Path(__file__).resolve().parents[3] / "emulator"
HERE = Path(__file__).parent


IMPLEMENTED = implemented()
CONSTANT = {name for name, level in IMPLEMENTED.items() if level is Level.CONSTANT}


# ---- the table


def test_the_table_is_what_the_sources_say(library: Path) -> None:
    names = sorted({*symbols_of(library)})
    assert (EMULATOR / "SYMBOLS.md").read_text() == table(levels(names)), "run `make symbols`"


def test_every_implemented_symbol_has_a_case_or_a_test() -> None:
    covered = [*READS, *MIG_OFF_READS, *NOT_TO_BE_READ, *ACTIONS]
    assert sorted(covered) == sorted(IMPLEMENTED)


@pytest.mark.parametrize("symbol", sorted(ACTIONS))
def test_the_test_of_an_action_calls_it(symbol: str) -> None:
    """By NVML's name or by pynvml's, which has no version at its end; or through this package's client."""
    text = (HERE / ACTIONS[symbol]).read_text()
    through = {
        "nvmlDeviceCreateGpuInstance": "create_anywhere",
        "nvmlGpuInstanceCreateComputeInstance": "client.fill",
        "nvmlInitWithFlags": "nvmlInit",
    }
    bare = re.sub(r"_v\d$", "", symbol)
    assert re.search(rf"\b({symbol}|{bare}|{through.get(symbol, symbol)})\b", text)


# ---- what they answer


@contextmanager
def known_node(make: Make) -> Iterator[tuple[Emulator, Nvml, World]]:
    """The node that `symbol_cases` describes, with this process as its client and as the holder of the instance."""
    emulator = make("h100-80gb-sxm5:2")
    with open_nvml(emulator) as nvml:
        gi = nvml.create(9, 4, 4)
        nvml.fill(gi)
        with emulator.hold(0, nvml.info(gi).id):
            emulator.feed(FEED)
            yield emulator, nvml, world_of(emulator, nvml)


def world_of(emulator: Emulator, nvml: Nvml) -> World:
    shown = emulator.show().gpus[0]
    [gi] = [gi for gi in shown.gpu_instances if gi.compute_instances]
    handle = pynvml.nvmlDeviceGetGpuInstanceById(nvml.gpu(), gi.gi_id)
    [ci] = gi.compute_instances
    return World(
        gpu=address(nvml.gpu(0)),
        other=address(nvml.gpu(1)),
        mig=address(pynvml.nvmlDeviceGetHandleByUUID(ci.mig_uuid)),
        gi=address(handle),
        ci=address(pynvml.nvmlGpuInstanceGetComputeInstanceById(handle, ci.ci_id)),
        gi_id=gi.gi_id,
        gpu_uuid=shown.uuid,
        mig_uuid=ci.mig_uuid,
        serial=pynvml.nvmlDeviceGetSerial(nvml.gpu()),
        pid=os.getpid(),
        minor=shown.minor,
    )


def address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def called(symbol: str, case: Case, world: World) -> tuple[int, list[Any]]:
    """The return code and what was written, one array for each Out."""
    arguments, outs = [], []
    for position, argument in enumerate(case.arguments):
        if isinstance(argument, Out):
            made = argument.made()
            if position in case.prepared:
                made[0] = case.prepared[position]
            outs.append(made)
            arguments.append(made)
        else:
            arguments.append(_passed(argument, world))
    return pynvml._nvmlGetFunctionPointer(symbol)(*arguments), outs


def _passed(argument: Any, world: World) -> Any:
    value = getattr(world, argument) if isinstance(argument, str) else argument
    if isinstance(value, str):
        return value.encode()
    is_handle = isinstance(argument, str) and argument in ("gpu", "other", "mig", "gi", "ci")
    return ctypes.c_void_p(value) if is_handle else value


def plain(out: Any, like: Any) -> Any:
    """What was written, in the form of what is expected: a list, or the first element alone."""
    if isinstance(like, list):
        return [_element(one, form) for one, form in zip(out, like, strict=False)]
    if isinstance(like, str):
        return out.value.decode()
    return _element(out[0], like)


def _element(one: Any, like: Any) -> Any:
    if not isinstance(like, Mapping):
        return one
    return {name: _field(one, name) for name in like}


def _field(structure: Any, path: str) -> Any:
    value = structure
    for name in path.split("."):
        value = getattr(value, name)
    if isinstance(value, ctypes._Pointer) or value is None:
        return address(value)
    return value.encode() if isinstance(value, str) else value


def check(symbol: str, case: Case, world: World) -> None:
    code, outs = called(symbol, case, world)
    assert code == 0
    for out, expected in zip(outs, case.expected, strict=True):
        wanted = expected(world) if callable(expected) else expected
        assert plain(out, wanted) == wanted


@pytest.mark.parametrize("symbol", sorted(READS))
def test_a_read_answers_what_the_node_is(make: Make, symbol: str) -> None:
    with known_node(make) as (_, _, world):
        check(symbol, READS[symbol], world)


@pytest.mark.parametrize("symbol", sorted(MIG_OFF_READS))
def test_utilisation_of_a_whole_gpu_is_for_mig_off(make: Make, symbol: str) -> None:
    with known_node(make) as (_, _, world):
        assert called(symbol, MIG_OFF_READS[symbol], world)[0] == NOT_SUPPORTED
    emulator = make("h100-80gb-sxm5:2", mig=False)
    emulator.feed(FEED)
    with open_nvml(emulator) as nvml, emulator.hold(0):
        world = World(address(nvml.gpu()), address(nvml.gpu(1)), 0, 0, 0, 0, "", "", "", os.getpid())
        check(symbol, MIG_OFF_READS[symbol], world)


def test_no_numa_node_is_told_where_there_is_none(make: Make) -> None:
    with open_nvml(make()) as nvml:
        out = ctypes.c_uint()
        assert pynvml._nvmlGetFunctionPointer("nvmlDeviceGetNumaNodeId")(nvml.gpu(), ctypes.byref(out)) == NOT_SUPPORTED


# ---- levels


def answers(emulator: Emulator, nvml: Nvml) -> dict[str, tuple[int, tuple[bytes, ...]]]:
    world = world_of(emulator, nvml)
    found = {}
    for symbol, case in READS.items():
        code, outs = called(symbol, case, world)
        found[symbol] = (code, tuple(bytes(out) for out in outs))
    return found


def test_levels_are_true(make: Make) -> None:
    """The node goes through a life; a constant answers the same all along, a real one does not."""
    emulator = make("h100-80gb-sxm5:3", renumber=True)
    with open_nvml(emulator) as nvml:
        seen = [answers(emulator, nvml) for _ in lives(emulator, nvml)]
    differs = {symbol for symbol in READS if len({answer[symbol] for answer in seen}) > 1}
    assert differs & CONSTANT == set()
    alike = READS.keys() - CONSTANT - differs
    assert alike == SAME_WHILE_IT_LIVES.keys()


SAME_WHILE_IT_LIVES = {
    "nvmlDeviceGetHandleByIndex": "a GPU's handle is one for life; the list of GPUs is the node's: test_tree.py",
    "nvmlDeviceGetHandleByPciBusId": "the same",
    "nvmlDeviceGetIndex": "as the list: test_tree.py",
    "nvmlDeviceGetMaxMigDeviceCount": "0 with MIG off: test_strictness.py",
    "nvmlDeviceGetMigMode": "test_modes.py",
    "nvmlDeviceIsMigDeviceHandle": "of the handle: test_strictness.py",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": "test_strictness.py",
    "nvmlSystemGetProcessName": "of a process, not of the node",
    "nvmlDeviceGetUUID": "new for each MIG device: test_lifecycle.py",
}
"""Real, although this life does not change them; where that is tested."""


def lives(emulator: Emulator, nvml: Nvml) -> Iterator[None]:
    """At each stop one 3g instance with a compute instance; everything else as different as it can be."""
    [first, second] = [nvml.create(9, start, 4) for start in (0, 4)]
    nvml.fill(second)
    yield
    pynvml.nvmlGpuInstanceDestroy(first)
    emulator.feed(FEED)
    pynvml.nvmlDeviceSetPersistenceMode(nvml.gpu(), 1)
    with emulator.hold(0, nvml.info(second).id):
        yield
    emulator.reset(0)
    for gpu, mode in ((0, 0), (1, 0), (0, 1)):  # minors 3, 0 and 1
        pynvml.nvmlDeviceSetMigMode(nvml.gpu(gpu), mode)
    (emulator.directory / "dev/nvidia0").unlink()  # the second GPU is hidden: the third is the second now
    gi = nvml.create(9, 0, 4)
    zeroth = nvml.fill(gi, 0)
    nvml.fill(gi, 0)
    pynvml.nvmlComputeInstanceDestroy(zeroth)
    nvml.create(19, 5, 1)
    yield


# ---- how they refuse


def test_nothing_works_before_init_and_nothing_crashes(make: Make, library: Path) -> None:
    """All symbols with arguments of zeros, in a process that may die of it."""
    script = """
import ctypes, sys
nvml = ctypes.CDLL(sys.argv[1])
for name in sys.argv[3:]:
    print(name, getattr(nvml, name)(*[ctypes.c_void_p(0)] * 6))
assert nvml.nvmlInit_v2() == 0 or sys.argv[2] == "before"
"""
    names = [name for name in symbols_of(library) if not name.startswith("nvmlInit") and name != "nvmlErrorString"]
    said = run_python(make(), script, str(library), "before", *names)
    assert {line.split()[1] for line in said.splitlines()} == {"1"}


def test_missing_arguments_are_invalid_and_what_is_not_implemented_says_so(make: Make, library: Path) -> None:
    script = """
import ctypes, sys
nvml = ctypes.CDLL(sys.argv[1])
assert nvml.nvmlInit_v2() == 0
for name in sys.argv[2:]:
    print(name, getattr(nvml, name)(*[ctypes.c_void_p(0)] * 6))
"""
    names = [name for name in symbols_of(library) if not name.startswith(("nvmlInit", "nvmlShutdown", "nvmlErrorS"))]
    said = dict(line.split() for line in run_python(make(), script, str(library), *names).splitlines())
    assert said.keys() == set(names)
    expected = {name: INVALID_ARGUMENT if name in IMPLEMENTED else NOT_SUPPORTED for name in names}
    assert {name: int(code) for name, code in said.items()} == expected


VERSIONED = sorted(
    symbol
    for symbol, case in READS.items()
    if symbol != "nvmlDeviceGetFieldValues"  # what begins its structure is the field's number
    if any(isinstance(argument, Out) and argument.version for argument in case.arguments)
)


@pytest.mark.parametrize("symbol", VERSIONED)
def test_a_structure_of_another_version_is_refused_and_never_written_to(make: Make, symbol: str) -> None:
    case = READS[symbol]
    [right] = [out.version for out in case.arguments if isinstance(out, Out) and out.version]
    with known_node(make) as (_, _, world):
        for wrong in {0, right & 0xFFFFFF, right + 4, right | 0x7F000000} - {right}:
            arguments = [replace(a, version=wrong) if isinstance(a, Out) and a.version else a for a in case.arguments]
            code, outs = called(symbol, replace(case, arguments=tuple(arguments)), world)
            assert code == VERSION_MISMATCH
            written = [bytes(out)[4:] for out, a in zip(outs, _outs(arguments), strict=True) if a.version is not None]
            assert not any(map(any, written))


def _outs(arguments: list[Any]) -> list[Out]:
    return [argument for argument in arguments if isinstance(argument, Out)]


def test_a_lost_gpu_is_lost_to_every_call_that_names_it(make: Make) -> None:
    with known_node(make) as (emulator, _, world):
        emulator.lose(0)
        of_the_gpu = {s: c for s, c in READS.items() if c.arguments[0] in ("gpu", "mig", "gi", "ci", "mig_uuid")}
        codes = {symbol: called(symbol, case, world)[0] for symbol, case in of_the_gpu.items()}
    assert codes == dict.fromkeys(of_the_gpu, LOST)
    assert len(codes) > 60


def test_all_three_spellings_of_init_count_together(make: Make) -> None:
    with open_nvml(make()):
        for name in ("nvmlInit", "nvmlInit_v2"):
            assert pynvml._nvmlGetFunctionPointer(name)() == 0
        for _ in range(2):
            assert pynvml._nvmlGetFunctionPointer("nvmlShutdown")() == 0
        assert pynvml.nvmlDeviceGetCount() == 1


def test_every_code_has_its_text(library: Path) -> None:
    """Before init too: go-nvml asks for every message, pynvml for those that it has none for."""
    text = ctypes.CDLL(str(library)).nvmlErrorString
    text.restype = ctypes.c_char_p
    codes = [*range(31), 999]
    assert len({text(code) for code in codes}) == len(codes)
    assert text(12345) == text(999) == b"Unknown Error"


def test_locked_clocks_are_accepted_and_ranges_checked(make: Make) -> None:
    with open_nvml(make()) as nvml:
        for name in ("nvmlDeviceSetMemoryLockedClocks", "nvmlDeviceSetGpuLockedClocks"):
            lock = pynvml._nvmlGetFunctionPointer(name)
            assert (lock(nvml.gpu(), 345, 1980), lock(nvml.gpu(), 2, 1)) == (0, INVALID_ARGUMENT)
        assert pynvml._nvmlGetFunctionPointer("nvmlDeviceResetGpuLockedClocks")(nvml.gpu()) == 0
        assert pynvml._nvmlGetFunctionPointer("nvmlDeviceResetMemoryLockedClocks")(nvml.gpu()) == 0


def test_the_first_version_of_an_event_has_no_instance_ids(make: Make) -> None:
    emulator = make()
    with open_nvml(emulator) as nvml:
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(nvml.gpu(), 0x8, events)
        emulator.xid(0, 79)
        data = (ctypes.c_uint8 * 32)(*[0xAA] * 32)
        wait = pynvml._nvmlGetFunctionPointer("nvmlEventSetWait")
        assert wait(events, data, 5000) == 0
        assert int.from_bytes(bytes(data)[16:24], "little") == 79
        assert bytes(data)[24:] == b"\xaa" * 8
        pynvml.nvmlEventSetFree(events)
