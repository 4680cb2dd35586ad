"""`python -m lab`: what it refuses before it does anything, and what it tells people."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dynamig.errors import Refused
from lab import cli, teardown
from lab.processes import Identity, Record, read_stat
from lab.progress import Reporter
from lab.spec import LabSpec, Layout, NodeSpec


def ourselves() -> Record:
    """A process that certainly lives."""
    pid = os.getpid()
    stat = read_stat(pid)
    assert stat is not None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Record("etcd", Identity(pid, stat.start, boot), "", 0.0, None, False)


@pytest.mark.parametrize(("text", "number"), [("KILL", 9), ("sigterm", 15), ("1", 1)])
def test_signals_have_names_and_numbers(text: str, number: int) -> None:
    assert cli.signal_of(text) == number


@pytest.mark.parametrize("text", ["HUPP", "999", ""])
def test_what_is_no_signal_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="BAD_SIGNAL"):
        cli.signal_of(text)


def test_down_of_an_ordinary_user_is_refused_before_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun = []
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(cli, "take_down", lambda *_, **__: begun.append(1))
    done = CliRunner().invoke(cli.app, ["down", "--dir", str(tmp_path)])
    assert (done.exit_code, begun) == (1, [])


def test_nothing_is_stopped_if_one_process_may_not_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a user namespace, where a number says root and the kernel does not."""
    begun = []

    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(teardown, "records", lambda _: [ourselves()])
    monkeypatch.setattr(teardown, "switch_off", lambda *_: begun.append(1))
    monkeypatch.setattr(signal, "pidfd_send_signal", forbidden)
    with pytest.raises(Refused, match="NOT_ALLOWED") as told:
        teardown.take_down(Layout(tmp_path), Reporter(cli.out, quiet=True), keep_logs=False)
    assert "etcd" in told.value.what
    assert begun == []


@pytest.mark.parametrize(("words", "said"), [("", False), (cli.CONTINUES, True)])
def test_an_interruption_says_what_continues_only_where_something_does(
    words: str, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(cli.err, "print", lambda text, **_: lines.append(text))
    with pytest.raises(typer.Exit) as ended, cli.told(words):
        raise KeyboardInterrupt
    assert (ended.value.exit_code, bool(lines)) == (130, said)


def test_a_missing_permission_is_an_error_and_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(cli.err, "print", lambda text, **_: lines.append(text))
    with pytest.raises(typer.Exit) as ended, cli.told():
        raise PermissionError(13, "Permission denied", "/proc/1/exe")
    assert ended.value.exit_code == 1
    assert "/proc/1/exe" in lines[0]
    assert "root" in lines[0]


def test_env_is_for_the_shell_and_hints_are_for_people(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "l")
    layout.root.mkdir()
    layout.spec.write_text(LabSpec((NodeSpec("n1", "h100-80gb-sxm5:2"),), 20000).to_json())
    done = CliRunner().invoke(cli.app, ["env", "--dir", str(layout.root)])
    assert done.exit_code == 0
    exports = done.stdout.splitlines()
    assert all(line.startswith("export ") for line in exports)
    assert f"{sys.prefix}/bin" in exports[-1]
    assert f"--config {layout.node('n1')}/driver.yaml" in done.stderr
    assert "lab.local/tool:1" in done.stderr
