"""Wrapped ports keep every promise of the port, and the time is where it was spent."""

from __future__ import annotations

import time

import pytest

from bench.stopwatch import Stopwatch, TimedCdi, TimedGpus, TimedJournal, lap
from dynamig.errors import DynamigError
from dynamig.mig import GiId
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.lifecycle import State
from dynamig.protocol.records import ClaimRecord
from dynamig.testing.checks import check_cdi_files, check_every_partition, check_gpus, check_journal, check_mode_switch
from dynamig.testing.fakes import FakeGpus, MemoryCdi, MemoryJournal
from tests.unit.driver.bench_node import h100

RECORD = ClaimRecord(ClaimRef("ns", "claim", "uid"), State.HELD, (), "boot", 1.0)


def test_a_timed_gpu_is_a_gpu() -> None:
    reading = h100()
    watch = Stopwatch()
    gpus = TimedGpus(FakeGpus([reading]), watch)
    check_gpus(gpus, reading.uuid)
    check_every_partition(gpus, reading.uuid)
    check_mode_switch(gpus, reading.uuid)
    assert gpus.readings() == (reading,)
    seconds, calls = watch.take()
    assert seconds > 0
    assert calls[0] == "reading"
    assert calls[-1] == "readings"


def test_a_timed_journal_is_a_journal_and_only_writes_count() -> None:
    watch = Stopwatch()
    journal = TimedJournal(MemoryJournal(), watch)
    check_journal(journal, RECORD)
    assert journal.unreadable() == {}
    assert watch.take()[1] == ("write journal", "remove journal", "remove journal", "write journal", "remove journal")


def test_timed_cdi_files_are_cdi_files_and_only_writes_count() -> None:
    watch = Stopwatch()
    check_cdi_files(TimedCdi(MemoryCdi(), watch), {"kind": "x"})
    assert watch.take()[1] == ("write cdi", "remove cdi", "remove cdi")


def test_a_call_that_fails_counts_and_still_fails() -> None:
    watch = Stopwatch()
    gpus = TimedGpus(FakeGpus([h100()]), watch)
    with pytest.raises(DynamigError):
        gpus.destroy_gpu_instance(h100().uuid, GiId(3))
    assert watch.take()[1] == ("destroy_gpu_instance",)


def test_a_lap_has_its_parts_and_nothing_of_what_was_before() -> None:
    nvml, disk = Stopwatch(), Stopwatch()
    with nvml.on("before"):
        time.sleep(0.05)

    def act() -> str:
        with nvml.on("call"):
            time.sleep(0.02)
        with disk.on("write journal"):
            time.sleep(0.01)
        time.sleep(0.01)
        return "done"

    result, timed = lap(act, nvml, disk)
    assert result == "done"
    assert timed.writes == ("write journal",)
    assert timed.nvml >= 0.02
    assert timed.disk >= 0.01
    assert timed.total >= timed.nvml + timed.disk + 0.01
