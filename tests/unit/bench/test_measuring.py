"""Benches that need no cluster, in small: that they measure what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import first_fit_order, packing, prepare, start
from bench.emulated import emulated_node, filesystem_of, run_on, state_folder
from bench.processes import SAYS_READY, importing, started
from bench.stopwatch import Lap
from dynamig.driver.config import load
from dynamig.errors import Unavailable


def test_prepare_is_split_and_stands_against_its_own_writes() -> None:
    with emulated_node(trace=True) as emulator, state_folder() as state:
        rows = run_on(emulator, "bench.prepare", emulator, state, 2, 3)
    prepared = [Lap(**row) for row in rows["prepare"]["laps"]]
    assert [tuple(one.writes) for one in prepared] == [("write journal", "write cdi", "write journal")] * 2
    assert all(one.total > one.nvml + one.disk > one.disk > 0 for one in prepared)
    assert len(rows["prepare"]["floors"]) == len(rows["unprepare"]["floors"]) == 2
    assert rows["unprepare"]["laps"][0]["writes"][:2] == ["write journal", "remove cdi"]
    assert rows["nvml_calls"]["prepare"] > 10


def test_the_floor_leaves_what_the_writes_left(tmp_path: Path) -> None:
    seconds = prepare.floor(tmp_path, ("write journal", "write cdi", "remove cdi"), {"journal": 700, "cdi": 1800})
    assert seconds > 0
    assert [(p.name, p.stat().st_size) for p in tmp_path.iterdir()] == [("journal", 700)]


def test_start_finds_every_claim_and_repairs_none() -> None:
    with emulated_node(trace=True) as emulator, state_folder() as state:
        rows = run_on(emulator, "bench.start", emulator, state, 1)
        assert len(list((state / "claims").glob("*.json"))) == start.CLAIMS
        config = load(start.configuration(emulator, state))
    assert rows["total"][0] == pytest.approx(rows["nvml"][0] + rows["ours"][0])
    assert rows["alone"][0] > 0
    assert rows["nvml_calls"] > 100
    assert config.state_dir == state


def test_a_start_that_repairs_is_refused_as_a_measurement() -> None:
    with pytest.raises(Unavailable, match="repaired something"):
        start.check_quiet(('{"action": "...", "event": "recovering"}',))


def test_work_that_fails_says_why() -> None:
    with (
        emulated_node() as emulator,
        pytest.raises(Unavailable, match="do not fit on this node"),
        state_folder() as state,
    ):
        run_on(emulator, "bench.prepare", emulator, state, 1, 57)


def test_the_driver_imported_alone_is_a_baseline() -> None:
    with started(importing("dynamig.cli.driver"), SAYS_READY) as idle:
        assert idle.lines == (SAYS_READY,)


def test_packing_is_the_same_every_time_and_says_what_the_tables_say() -> None:
    one, again = packing.report(quick=True), packing.report(quick=True)
    assert one == again
    filling = one.figures[0]
    assert filling.against is not None
    assert len(filling.series.values) == len(first_fit_order.MIXES)
    mix = list(first_fit_order.MIXES).index("1g and 4g")
    assert filling.series.values[mix] == pytest.approx(1.0)
    assert filling.against.values[mix] < 0.8


def test_the_file_system_of_proc_is_proc() -> None:
    assert filesystem_of(Path("/proc/self")) == "proc"
