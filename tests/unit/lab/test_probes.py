"""Readiness is asked, and a predecessor's word does not count."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dynamig.bridge.http import Endpoint
from dynamig.driver.control import ControlServer
from lab.api import Https
from lab.probes import ContainerdProbe, DriverProbe, HealthProbe, ReadyProbe, node_problem, probe
from lab.processes import Identity, Record

STARTED = 1_000_000.5
RECORD = Record("d", Identity(1, 1, "boot"), "digest", STARTED, None, False)


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def node(status: str, heard: float) -> dict[str, Any]:
    condition = {"type": "Ready", "status": status, "message": "because", "lastHeartbeatTime": at(heard)}
    return {"status": {"conditions": [{"type": "DiskPressure", "status": "False"}, condition]}}


def lease(renewed: float) -> dict[str, Any]:
    return {"spec": {"renewTime": at(renewed)}}


@pytest.mark.parametrize(
    ("heard", "renewed", "ready"),
    [
        (STARTED + 1, None, True),
        (int(STARTED), None, True),
        (STARTED - 60, STARTED + 1, True),
        (STARTED - 60, STARTED - 5, False),
        (STARTED - 60, None, False),
    ],
)
def test_ready_by_word_of_this_kubelet(heard: float, renewed: float | None, ready: bool) -> None:
    found = node_problem(node("True", heard), None if renewed is None else lease(renewed), STARTED)
    assert (found is None) is ready


def test_a_node_that_is_not_ready_says_why() -> None:
    assert "because" in (node_problem(node("False", STARTED + 1), None, STARTED) or "")
    assert "no condition" in (node_problem({"status": {}}, None, STARTED) or "")


def test_nobody_there_is_a_reason_and_not_an_error(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server = Https(unused.getsockname()[1], tmp_path / "absent.crt")
        for question in (
            HealthProbe(server, "/readyz"),
            ContainerdProbe(tmp_path / "absent.sock"),
            DriverProbe(server, "n1", tmp_path / "absent.sock"),
            ReadyProbe(unused.getsockname()[1]),
        ):
            assert probe(question, RECORD)


def test_a_socket_without_a_server_is_not_a_driver(tmp_path: Path) -> None:
    """What a killed driver leaves behind."""
    path = tmp_path / "dynamig.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    assert "refused" in (probe(DriverProbe(Https(1, tmp_path / "x"), "n1", path), RECORD) or "")


@pytest.mark.parametrize(("why_not", "reason"), [("no device to offer", "no device to offer"), ("", "127.0.0.1")])
def test_a_driver_is_ready_by_its_own_word_and_the_clusters(tmp_path: Path, why_not: str, reason: str) -> None:
    """A driver that says yes is not believed before the API server has its slices: here nobody serves."""
    status = {"ready": not why_not, "whyNotReady": why_not}
    server = ControlServer(tmp_path / "s", {"status": lambda args, caller: status})
    server.start()
    try:
        question = DriverProbe(Https(1, tmp_path / "absent.crt"), "n1", tmp_path / "s")
        assert reason in (probe(question, RECORD) or "")
    finally:
        server.close()


def test_what_is_not_ready_says_why_in_its_own_words() -> None:
    why = ["Slurm: SLURM_UNAVAILABLE jobs, since 12:03:11 UTC"]
    served = Endpoint("127.0.0.1:0", not_ready=lambda: why[0], not_live=lambda: "", registry=CollectorRegistry())
    served.start()
    try:
        question = ReadyProbe(served.port)
        assert probe(question, RECORD) == f"/readyz: 503 {why[0]}"
        why[0] = ""
        assert probe(question, RECORD) is None
    finally:
        served.stop()
