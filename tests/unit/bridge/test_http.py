"""The answers that a kubelet and a Prometheus get."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from dynamig.bridge.config import load
from dynamig.bridge.http import Endpoint, address
from dynamig.bridge.telemetry import Metrics
from dynamig.errors import Refused

WHY = {"ready": "", "live": ""}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    registry = CollectorRegistry()
    Metrics(registry)
    served = Endpoint("127.0.0.1:0", not_ready=lambda: WHY["ready"], not_live=lambda: WHY["live"], registry=registry)
    served.start()
    yield served
    served.stop()
    WHY.update(ready="", live="")


def get(endpoint: Endpoint, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_ok_or_the_reason(endpoint: Endpoint) -> None:
    assert get(endpoint, "/readyz") == get(endpoint, "/livez") == (200, "ok\n")
    WHY["ready"] = "Slurm: away"
    assert get(endpoint, "/readyz") == (503, "Slurm: away\n")
    assert get(endpoint, "/livez") == (200, "ok\n")
    WHY["live"] = "the loop has stood still for 121 s"
    assert get(endpoint, "/livez")[0] == 503


def test_metrics_are_in_the_format_of_prometheus(endpoint: Endpoint) -> None:
    status, body = get(endpoint, "/metrics")
    assert status == 200
    assert "# TYPE dynamig_bridge_looks_total counter" in body


def test_nothing_else_is_there(endpoint: Endpoint) -> None:
    assert get(endpoint, "/")[0] == 404


def test_a_port_that_is_taken_is_told_with_the_key(endpoint: Endpoint) -> None:
    with pytest.raises(Refused, match=r"listen: 127\.0\.0\.1:"):
        Endpoint(f"127.0.0.1:{endpoint.port}", not_ready=str, not_live=str, registry=CollectorRegistry())


@pytest.mark.parametrize(
    ("text", "at"),
    [("127.0.0.1:9410", ("127.0.0.1", 9410)), ("[::1]:80", ("::1", 80)), ("0.0.0.0:0", ("0.0.0.0", 0))],
)
def test_addresses(text: str, at: tuple[str, int]) -> None:
    assert address(text) == at


@pytest.mark.parametrize("text", ["9410", ":9410", "localhost", "::1:80", "127.0.0.1:99999", "127.0.0.1:http"])
def test_what_is_no_address_is_refused_with_its_key(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bridge.yaml"
    file.write_text(
        "slurm: {url: http://127.0.0.1:1, user: root, tokenFile: /t}\n"
        f"defaultAccount: {{user: root}}\nlisten: '{text}'\n"
    )
    with pytest.raises(Refused, match=r"listen: .*host:port"):
        load(file)
