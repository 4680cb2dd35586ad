"""What the builds are made from: go.mod, link flags, mirrors, and the programs that a user brings."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamig.errors import Refused, Unavailable
from lab.commands import run, run_long
from lab.debian import choose_mirror
from lab.execute import Cancel, Cancelled
from lab.kubernetes import PROGRAMS, go_mod, ldflags, ready_made
from lab.preflight import parse_go_version

UPSTREAM = """\
module k8s.io/kubernetes

go 1.26.0

godebug default=go1.26

require (
\tgithub.com/spf13/cobra v1.10.0
\tk8s.io/api v0.0.0
\tk8s.io/kubectl v0.0.0
\tk8s.io/klog/v2 v2.140.0
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
)
"""


def test_siblings_get_the_version_that_was_published_together() -> None:
    assert go_mod(UPSTREAM, "1.37.2").splitlines() == [
        "module lab.local/kube",
        "go 1.26.0",
        "godebug default=go1.26",
        "require k8s.io/kubernetes v1.37.2",
        "replace k8s.io/api => k8s.io/api v0.37.2",
        "replace k8s.io/kubectl => k8s.io/kubectl v0.37.2",
    ]


def test_clients_are_told_the_real_version() -> None:
    flags = ldflags("1.37.2").split()
    for wanted in ("gitVersion=v1.37.2", "gitMajor=1", "gitMinor=37"):
        assert f"k8s.io/component-base/version.{wanted}" in flags


def test_programs_of_ones_own_are_complete_or_refused(tmp_path: Path) -> None:
    for name in PROGRAMS:
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    assert ready_made(tmp_path) == tmp_path
    (tmp_path / "kubelet").chmod(0o644)
    (tmp_path / "kubectl").unlink()
    with pytest.raises(Refused, match="lacks kubelet, kubectl"):
        ready_made(tmp_path)


def test_the_mirror_is_the_archive_of_packages() -> None:
    lines = [
        "https://security.example/|Debian-Security|main|Packages",
        "https://archive.example/|Debian|main|DEP-11",
        "https://archive.example/|Debian|contrib|Packages",
        "https://mirror.example/debian/|Debian|main|Packages",
    ]
    assert choose_mirror("\n".join(lines)) == "https://mirror.example/debian/"
    assert choose_mirror("https://ubuntu.example/|Ubuntu|main|Packages") is None


@pytest.mark.parametrize(
    ("text", "version"),
    [("go version go1.26.8 linux/amd64", (1, 26)), ("go version go1.9 linux/arm64", (1, 9)), ("devel", None)],
)
def test_go_versions(text: str, version: tuple[int, int] | None) -> None:
    assert parse_go_version(text) == version


def test_a_failed_command_says_what_it_said() -> None:
    with pytest.raises(Unavailable, match=r"status 3:\n    no disk"):
        run(["sh", "-c", "echo no disk >&2; exit 3"])


def test_a_long_command_is_heard_line_by_line_and_logged(tmp_path: Path) -> None:
    heard: list[str] = []
    run_long(["sh", "-c", "echo one; echo two >&2"], heard.append, Cancel(), log=tmp_path / "log")
    assert heard == ["one", "two"]
    assert (tmp_path / "log").read_text() == "one\ntwo\n"
    with pytest.raises(Unavailable, match=r"last words\n.*log"):
        run_long(["sh", "-c", "echo last words; exit 1"], heard.append, Cancel(), log=tmp_path / "log")


def test_a_long_command_ends_when_the_lab_gives_up(tmp_path: Path) -> None:
    cancel = Cancel()
    with pytest.raises(Cancelled):
        run_long(["sh", "-c", "echo go; exec sleep 600"], lambda _: cancel.set(), cancel, log=tmp_path / "log")
