"""`python -m bench`: choosing, failing, writing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.__main__ import BENCHES, app, chosen
from dynamig.errors import Refused

runner = CliRunner()


def test_all_but_the_long_ones_run_if_none_is_named() -> None:
    assert set(BENCHES) - set(chosen([])) == {bench for bench in BENCHES if bench.long} != set()
    assert chosen(["bridge_picks_all"])[0].long
    assert [bench.name for bench in chosen(["memory", "pods"])] == ["memory", "pods"]


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(Refused, match=r"no bench speed \[UNKNOWN_BENCH\].*there are: pods, prepare"):
        chosen(["pods", "speed"])
    assert runner.invoke(app, ["speed"]).exit_code == 2


def test_the_list_names_every_bench() -> None:
    listed = runner.invoke(app, ["--list"])
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [bench.name for bench in BENCHES]


def test_a_bench_that_cannot_run_fails_the_command_but_not_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAMIG_LAB_DIR", str(tmp_path / "no-lab"))
    to = tmp_path / "figures.json"
    done = runner.invoke(app, ["memory", "first_fit_order", "--quick", "--json", str(to)])
    assert done.exit_code == 1
    assert "NO_LAB" in done.output
    assert "1 of 2 failed: memory" in done.output
    written = json.loads(to.read_text())
    assert list(written["benches"]) == ["first_fit_order"]
    assert written["quick"] is True
    assert written["machine"]["cpus"] > 0
