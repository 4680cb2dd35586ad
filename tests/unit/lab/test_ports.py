"""Who listens, and which lab has claimed which ports."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from lab import ports
from lab.spec import LabSpec, NodeSpec

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:4E20 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0
   1: 0100007F:4E21 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 20 4 30 10 -1
"""


def test_only_listening_sockets_count() -> None:
    assert ports.parse_listeners(TABLE) == {20_000: 4711}


def test_the_holder_of_a_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        holder = ports.held([port])[port]
        assert holder.pid == os.getpid()
        assert str(os.getpid()) in str(holder)
    assert ports.held([port]) == {}


@pytest.fixture
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "claims"
    monkeypatch.setattr(ports, "CLAIMS", folder)
    return folder


def lab_folder(path: Path, base: int) -> Path:
    path.mkdir()
    (path / "lab.json").write_text(LabSpec((NodeSpec("n1", "a30-24gb:1"),), base).to_json())
    return path


def age(claim: Path) -> None:
    os.utime(claim, (0, 0))


def test_a_claim_keeps_others_away_and_can_be_repeated(claims: Path, tmp_path: Path) -> None:
    first = lab_folder(tmp_path / "first", 20_000)
    assert ports.claim(20_000, first) is None
    assert ports.claim(20_000, first) is None
    age(claims / "20000")
    assert ports.claim(20_000, tmp_path / "second") == first
    assert ports.claim(20_100, tmp_path / "second") is None


def test_a_fresh_claim_counts_before_its_folder_is_written(claims: Path, tmp_path: Path) -> None:
    ports.claim(20_000, tmp_path / "being-made")
    assert ports.claim(20_000, tmp_path / "second") == tmp_path / "being-made"


@pytest.mark.parametrize("left", ["nothing", "another block", "no lab"])
def test_a_claim_of_a_lost_lab_is_taken_over(claims: Path, tmp_path: Path, left: str) -> None:
    lost = tmp_path / "lost"
    ports.claim(20_000, lost)
    age(claims / "20000")
    if left == "another block":
        lab_folder(lost, 20_500)
    elif left == "no lab":
        lost.mkdir()
    assert ports.claim(20_000, tmp_path / "second") is None
    assert (claims / "20000").read_text() == str(tmp_path / "second")


def test_release_gives_up_all_of_ones_own_and_the_last_one_cleans_up(claims: Path, tmp_path: Path) -> None:
    for base in (20_000, 20_100):
        ports.claim(base, tmp_path / "first")
    ports.claim(20_200, tmp_path / "second")
    ports.release(tmp_path / "first")
    assert [file.name for file in claims.iterdir()] == ["20200"]
    ports.release(tmp_path / "second")
    assert not claims.exists()
    ports.release(tmp_path / "second")
