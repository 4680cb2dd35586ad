"""The control socket: arguments, errors by family, and answers that count only once they have been read."""

from __future__ import annotations

import json
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dynamig.driver.control import Caller, ControlServer, ask
from dynamig.errors import Conflict, InvariantBroken, Refused, Unavailable
from dynamig.protocol.loans import Borrower
from tests.integration.driver.lending import LendingNode

LEND = {"job": 7, "sluid": "s7", "restart": 0, "gpus": [0], "wait": 0}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LendingNode]:
    node = LendingNode(tmp_path)
    node.serve()
    yield node
    node.close()


def connect(path: Path, what: str, args: Mapping[str, Any]) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    connection.connect(str(path))
    connection.sendall(json.dumps({"ask": what, "args": args}).encode() + b"\n")
    return connection


def until(condition: Any) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_only_root_may_ask(node: LendingNode) -> None:
    assert stat.S_IMODE(node.socket.stat().st_mode) == 0o600


def test_lend_map_and_give_back(node: LendingNode) -> None:
    told = ask(node.socket, "map")
    assert told["gpus"] == {"0": node.gpu(0), "1": node.gpu(1)}
    assert told["gresConf"] == [f"NodeName=slurm-n1 Name=shard Count=7 File=/dev/nvidia{i}" for i in (0, 1)]
    assert [loan["gpu"] for loan in ask(node.socket, "lend", LEND)] == [node.gpu(0)]
    until(lambda: node.lent() == {0: 7})
    with pytest.raises(Unavailable, match="lent to Slurm job 7"):
        ask(node.socket, "lend", {**LEND, "job": 8, "sluid": "s8"})
    assert len(ask(node.socket, "give-back", {"job": 7, "all": True})) == 1
    assert ask(node.socket, "give-back", LEND) == []


@pytest.mark.parametrize(
    "args",
    [
        {},
        {**LEND, "gpus": []},
        {**LEND, "gpus": "0"},
        {**LEND, "gpus": ["x"]},
        {**LEND, "job": None},
        {**LEND, "wait": "soon"},
    ],
)
def test_arguments_that_are_wrong(node: LendingNode, args: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        ask(node.socket, "lend", args)
    assert caught.value.code == "INVALID"
    assert node.lent() == {}


@pytest.mark.parametrize("line", [b"", b"x\n", b"[]\n", b'{"ask": "nothing"}\n', b'{"ask": "map", "args": 1}\n'])
def test_a_line_that_is_no_request(node: LendingNode, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(node.socket))
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").readline()
    assert not answer or json.loads(answer)["error"]["code"] == "INVALID"
    assert ask(node.socket, "map")["source"] == "minors", "and the server lives"


def test_a_caller_that_read_the_answer_and_died_before_it_said_so_has_nothing(node: LendingNode) -> None:
    connection = connect(node.socket, "lend", LEND)
    assert json.loads(connection.makefile("rb").readline())["confirm"] is True
    assert node.lent() == {0: 7}, "on disk before it is said"
    connection.close()
    until(lambda: node.lent() == {})


def test_a_slow_caller_keeps_what_it_was_told(node: LendingNode) -> None:
    with connect(node.socket, "lend", LEND) as connection:
        connection.makefile("rb").readline()
        time.sleep(1)
        with pytest.raises(Unavailable):
            ask(node.socket, "lend", {**LEND, "job": 8, "sluid": "s8"})
        connection.sendall(b'{"taken": true}\n')
    time.sleep(0.5)
    assert node.lent() == {0: 7}


def test_a_second_prolog_of_the_job_waits_for_the_end_of_the_first(node: LendingNode) -> None:
    """Else the first one's loan, taken back, would be the second one's."""
    first = connect(node.socket, "lend", LEND)
    first.makefile("rb").readline()
    second = threading.Thread(target=ask, args=(node.socket, "lend", LEND), daemon=True)
    second.start()
    second.join(0.5)
    assert second.is_alive()
    first.close()
    second.join(10)
    assert not second.is_alive()
    until(lambda: node.lent() == {0: 7})


def test_a_caller_that_dies_while_it_waits_is_noticed(node: LendingNode) -> None:
    node.lend(Borrower(8, "s8", 0), 0)
    connection = connect(node.socket, "lend", {**LEND, "wait": 600})
    time.sleep(0.3)
    connection.close()
    time.sleep(1.5)
    node.lender.give_back(Borrower(8, "s8", 0))
    time.sleep(1)
    assert node.lent() == {}


@pytest.mark.parametrize(
    ("error", "family"),
    [
        (Refused("A", "what", "next"), Refused),
        (Unavailable("A", "what", "next"), Unavailable),
        (Conflict("A", "what", "next"), Unavailable),
        (InvariantBroken("A", "what", "next"), Refused),
    ],
)
def test_errors_by_family(tmp_path: Path, error: Exception, family: type[Exception]) -> None:
    def fails(args: Mapping[str, Any], caller: Caller) -> None:
        raise error

    server = ControlServer(tmp_path / "s", {"fail": fails, "status": lambda args, caller: {"node": "n1"}})
    server.start()
    with pytest.raises(family, match=r"what \[A\] - next"):
        ask(tmp_path / "s", "fail")
    assert ask(tmp_path / "s", "status") == {"node": "n1"}
    server.close()


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        ask(tmp_path / "s", "status")
    assert caught.value.code == "NO_DRIVER"
