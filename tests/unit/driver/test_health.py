"""Which GPUs are out of use, and for how long: silence, coming and going, restarts, boots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dynamig.driver.health import Health, OutageFile
from dynamig.errors import Unavailable
from dynamig.mig import GpuUuid
from dynamig.protocol.gpus import GpuReading
from dynamig.protocol.outages import Outage, next_outages, outages_from_json, outages_to_json
from dynamig.testing.fakes import FakeGpus
from tests.unit.driver.bench_node import FakeClock, h100

WATCH = 300
READINGS = [h100(n) for n in range(2)]
A, B = (r.uuid for r in READINGS)


class Flaky(FakeGpus):
    """`lost`: GPUs that do not answer; `unlisted`: GPUs that NVML leaves out of its list."""

    def __init__(self) -> None:
        super().__init__(READINGS)
        self.lost: set[GpuUuid] = set()
        self.unlisted: set[GpuUuid] = set()

    def readings(self) -> Sequence[GpuReading]:
        return [r for r in super().readings() if r.uuid not in self.lost | self.unlisted]

    def reading(self, gpu: GpuUuid) -> GpuReading:
        if gpu in self.lost:
            raise Unavailable("GPU_LOST", f"{gpu} is lost")
        return super().reading(gpu)


class Bench:
    def __init__(self, directory: Path) -> None:
        self.gpus, self.clock = Flaky(), FakeClock()
        self.path = directory / "outages.json"
        self.restart()

    def restart(self, boot_id: str = "boot-1") -> None:
        self.health = Health(self.gpus, OutageFile(self.path, boot_id), WATCH, self.clock)

    def look(self, after: float = 0.0, known: Sequence[GpuUuid] = (A, B)) -> bool:
        self.clock.now += after
        return self.health.look(known, {r.uuid for r in self.gpus.readings()})


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_gpu_that_falls_silent_is_out_until_it_has_answered_for_long_enough(bench: Bench) -> None:
    assert not bench.look()
    bench.gpus.lost = {A}
    assert bench.look(10)
    assert bench.health.outages == {A: Outage("GPU_LOST", 1010)}
    assert bench.health.silent == {A}
    assert not bench.look(10), "nothing is new"
    bench.gpus.lost = set()
    assert bench.look(10)
    assert bench.health.outages == {A: Outage("GPU_LOST", 1010, until=1030 + WATCH)}
    assert bench.health.silent == set()
    assert not bench.look(WATCH - 1)
    assert bench.look(1)
    assert bench.health.outages == {}


def test_a_gpu_that_comes_and_goes_is_one_outage_and_its_watch_begins_anew(bench: Bench) -> None:
    for _ in range(100):
        bench.gpus.lost ^= {A}
        bench.look(7)
        assert bench.health.outages[A].since == 1007
    assert bench.health.outages[A].until == bench.clock.now + WATCH
    bench.look(WATCH)
    assert bench.health.outages == {}


def test_a_gpu_that_only_the_list_leaves_out_for_a_moment_is_asked_itself(bench: Bench) -> None:
    bench.gpus.unlisted = {A}
    assert not bench.look()
    assert bench.health.outages == {}


def test_a_gpu_that_nobody_was_told_of_any_more_is_forgotten(bench: Bench) -> None:
    bench.gpus.lost = {A}
    bench.look()
    assert bench.look(known=(B,))
    assert bench.health.outages == {}


@pytest.mark.parametrize("answers", [True, False])
def test_a_restart_of_the_driver_ends_no_outage(bench: Bench, answers: bool) -> None:
    bench.gpus.lost = {A}
    bench.look()
    bench.gpus.lost = set() if answers else {A}
    bench.look()
    before = bench.health.outages
    bench.restart()
    assert not bench.look(WATCH - 1)
    assert bench.health.outages == before


def test_a_gpu_that_a_boot_did_not_bring_back_is_a_new_outage(bench: Bench) -> None:
    bench.gpus.lost = {A, B}
    bench.look()
    bench.gpus.lost = {A}
    bench.look()
    bench.restart("boot-2")
    bench.look(60)
    assert bench.health.outages == {A: Outage("GPU_LOST", 1060), B: Outage("GPU_LOST", 1000, until=1000 + WATCH)}


def test_a_file_that_cannot_be_read_is_told_and_each_gpu_is_judged_anew(bench: Bench) -> None:
    bench.path.write_text('{"v": 1, "bootId": "boot-1", "outages": {"GPU-0": 7}}')
    with capture_logs() as logs:
        bench.restart()
    assert [line["event"] for line in logs] == ["outages_unreadable"]
    assert bench.health.outages == {}


def test_a_disk_that_takes_nothing_keeps_no_gpu_in_use(bench: Bench, tmp_path: Path) -> None:
    bench.path = tmp_path / "nowhere/outages.json"
    bench.restart()
    bench.gpus.lost = {A}
    with capture_logs() as logs:
        assert bench.look()
    assert "outages_unwritable" in [line["event"] for line in logs]
    assert bench.health.silent == {A}


def test_each_change_is_told_once(bench: Bench) -> None:
    with capture_logs() as logs:
        for lost in ({A}, {A}, set[GpuUuid](), set[GpuUuid]()):
            bench.gpus.lost = lost
            bench.look(10)
        bench.look(WATCH)
    assert [line["event"] for line in logs] == ["gpu_silent", "gpu_answers_again", "gpu_outage_over"]


def test_a_clock_that_is_set_back_prolongs_no_watch() -> None:
    watched = {A: Outage("GPU_LOST", 5000, until=5300)}
    assert next_outages(watched, {}, 1000, WATCH)[A].until == 1300


def test_outages_are_read_as_they_are_written() -> None:
    outages = {A: Outage("GPU_LOST", 1_700_000_000), B: Outage("NVML_TIMEOUT", 1_700_000_001, until=1_700_000_301)}
    assert outages_from_json(json.loads(json.dumps(outages_to_json(outages)))) == outages
