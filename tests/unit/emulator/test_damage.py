"""Bytes of a node's files are changed at random: whatever comes of it is an answer or an error of ours."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dynamig.errors import DynamigError, Refused
from dynamig.testing.emulator import Emulator, layout
from dynamig.testing.emulator.node import BOOT_ID

LOOKS: list[Callable[[Emulator], object]] = [
    Emulator.show,
    Emulator.reload_driver,
    Emulator.reboot,
    lambda e: e.reset(0),
    lambda e: e.feed(["0 gpu0@0 used=1", "0 gpu1 milliwatt=9"]),
    lambda e: e.xid(1, 79),
    lambda e: e.remove_foreign(0),
]


@pytest.fixture
def emulator(tmp_path: Path) -> Emulator:
    made = Emulator(tmp_path / "node")
    made.init("h100-80gb-sxm5,a30-24gb")
    made.hang("nvmlInit_v2")
    made.feed(["0 gpu0 used=1"])
    return made


def populated(node: bytearray) -> bytearray:
    """With instances, whose numbers can be damaged."""
    at = len(bytes(layout.NodeHead()))
    gpu = layout.Gpu.from_buffer_copy(node, at)
    gpu.gi_count = gpu.ci_count = 2
    for i in range(2):
        gpu.gis[i].id = gpu.cis[i].gi_id = 7 + i
        gpu.gis[i].start = i
    node[at : at + len(bytes(gpu))] = bytes(gpu)
    return node


def one_instance(gpu: layout.Gpu, *, gi_profile: int = 0, ci_profile: int = 0) -> None:
    gpu.gi_count = gpu.ci_count = 1
    gpu.gis[0].profile, gpu.cis[0].profile = gi_profile, ci_profile


def told(emulator: Emulator, look: Callable[[Emulator], object]) -> DynamigError | None:
    try:
        look(emulator)
    except DynamigError as error:
        return error
    return None


@pytest.mark.parametrize("name", ["node", "models", "faults", "usage", "events"])
def test_no_damage_is_met_with_an_error_of_python(emulator: Emulator, name: str) -> None:
    state, chance = emulator.directory / "state", random.Random(name)
    node = populated(bytearray((state / "node").read_bytes()))
    kept = {path: path.read_bytes() for path in state.iterdir() if path.is_file()} | {state / "node": bytes(node)}
    refused = 0
    for round_ in range(60):
        for path, content in kept.items():
            path.write_bytes(content)
        damaged = bytearray(kept[state / name] or bytes(64))
        for _ in range(chance.choice((1, 20, 400))):
            damaged[chance.randrange(len(damaged))] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        (state / name).write_bytes(damaged)
        if (error := told(emulator, LOOKS[round_ % len(LOOKS)])) is not None:
            refused += 1
            assert str(emulator.directory) in error.what or "GPU 0" in error.what
            assert error.next_step
    assert refused or name in ("usage", "events")  # whose numbers are data, each as good as another


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda gpu: setattr(gpu, "model", 2), "state/node: GPU 0 is of model 2, of 2"),
        (lambda gpu: setattr(gpu, "gi_count", 65), "GPU 0 has 65 GPU instances and 0 compute instances"),
        (lambda gpu: setattr(gpu, "uuid", b"GPU-\xff"), r"GPU 0: uuid b'GPU-.xff' is no text"),
        (lambda gpu: one_instance(gpu, gi_profile=99), "GPU instance 0: profile 99"),
        (lambda gpu: one_instance(gpu, ci_profile=12), "compute instance 0: profile"),
    ],
)
def test_damage_is_named_with_its_place(emulator: Emulator, change: Callable[[layout.Gpu], object], said: str) -> None:
    path = emulator.directory / "state/node"
    data, at = bytearray(path.read_bytes()), len(bytes(layout.NodeHead()))
    gpu = layout.Gpu.from_buffer_copy(data, at)
    change(gpu)
    data[at : at + len(bytes(gpu))] = bytes(gpu)
    path.write_bytes(data)
    with pytest.raises(Refused, match=said) as refused:
        emulator.show()
    assert refused.value.next_step == "remove it and init it anew"


def test_a_node_without_a_place_for_its_boot_id_is_not_half_rebooted(emulator: Emulator) -> None:
    state = emulator.directory / "state/node"
    before = state.read_bytes()
    (emulator.directory / BOOT_ID).unlink()
    with pytest.raises(Refused, match=r"is damaged: .*boot_id"):
        emulator.reboot()
    assert state.read_bytes() == before


# ---- the call log

CALL = '{"t":1.5,"pid":7,"call":"%s","args":{},"result":0,"us":12}\n'


def test_lines_of_the_call_log_that_are_not_whole_are_left_out_with_a_word(
    emulator: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    log = emulator.directory / "trace"
    log.write_text(
        CALL % "nvmlInit_v2" + "[1]\n" + '{"t":1,"pid":"x"}\n' + CALL[:20] + CALL % "nvmlShutdown" + CALL[:9]
    )
    assert emulator.counters() == {"nvmlInit_v2": 1, "nvmlShutdown": 1}
    log.write_bytes(b"\xff" * 1000 + b"\n" + b"[" * 10**5)
    assert emulator.trace() == []
    torn = [
        f"{log}: line {number} is torn, as a full disk leaves it: a call is missing" for number in (2, 3, 4, 5, 1, 2)
    ]
    assert caplog.messages == torn


def cut_short(emulator: Emulator) -> None:
    (emulator.directory / "trace").write_text("")


@pytest.mark.parametrize(("clear", "times"), [(Emulator.clear_trace, 3), (cut_short, 1)])
def test_who_follows_the_call_log_misses_nothing_when_it_is_cleared(
    emulator: Emulator, clear: Callable[[Emulator], None], times: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = emulator.directory / "trace"
    log.write_text(CALL % "before" * 10)
    calls = emulator.follow(poll=0.001)

    def add(text: str) -> None:
        with log.open("a") as lines:
            lines.write(text)

    with contextlib.closing(calls):  # type: ignore[type-var]
        for number in range(times):
            clear(emulator)
            add(CALL % f"after{number}" + CALL[:9] + CALL % "next")
            assert [next(calls).call, next(calls).call] == [f"after{number}", "next"]
    assert caplog.messages == [f"{log}: a line is torn, as a full disk leaves it: a call is missing"] * times


def test_a_cleared_log_keeps_who_may_write_to_it(emulator: Emulator) -> None:
    (emulator.directory / "trace").chmod(0o666)
    emulator.clear_trace()
    assert (emulator.directory / "trace").stat().st_mode & 0o777 == 0o666
