"""Errors of `dynamig gpus` and `ps` name the next step, with real files and a real closed port."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dynamig.cli import app, gpus
from dynamig.errors import Refused, Unavailable
from dynamig.kube.client import connect
from tests.unit.cli.cluster import claim, device, pool, slices
from tests.unit.kube.server import kubeconfig


def test_no_kubeconfig_names_the_file_and_the_ways_out(tmp_path: Path) -> None:
    with pytest.raises(Refused) as told:
        gpus._kubeconfig(None, home=lambda: tmp_path)
    assert str(tmp_path / ".kube/config") in told.value.what
    assert "KUBECONFIG" in told.value.next_step


def test_a_list_of_kubeconfigs_skips_missing_ones(tmp_path: Path) -> None:
    here = kubeconfig(tmp_path / "here", "http://127.0.0.1:1")
    assert gpus._kubeconfig(f"{tmp_path}/missing:{here}") == here


@pytest.mark.parametrize("content", ["clusters: [", "just words", "{}", "- a\n- b"])
def test_a_file_that_is_no_kubeconfig_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(Refused, match=str(path)) as told:
        connect(path)
    assert told.value.code == "BAD_KUBECONFIG"


def test_an_api_server_that_is_down_is_told_with_a_command_to_try(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}")  # bound, not listening: refused
        with pytest.raises(Unavailable) as told:
            gpus.gpus(kubeconfig=str(config))
    assert told.value.code == "API_UNAVAILABLE"
    assert "kubectl" in told.value.next_step


def test_the_help_of_ps_explains_every_state() -> None:
    text = gpus.ps.__doc__ or ""
    for state in ("waiting", "allocated", "ready", "failed", "leaving", "admin"):
        assert f"{state}: " in text


def answering(answers: dict[str, Any]) -> ThreadingHTTPServer:
    """An API server that lists what it is given, by the last part of the path, and refuses the rest."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.split("?")[0].rsplit("/", 1)[1])
            status = {"kind": "Status", "status": "Failure", "code": 403, "message": "no", "reason": "Forbidden"}
            body = json.dumps(status if found is None else {"metadata": {}, "items": found}).encode()
            self.send_response(403 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], str]]:
    running: list[ThreadingHTTPServer] = []

    def start(answers: dict[str, Any]) -> str:
        running.append(server := answering(answers))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return str(kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.server_port}"))

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


GPU = pool()
PUBLISHED = {"resourceslices": slices(GPU), "resourceclaims": [claim("c", [(GPU, device("1g10gb-19-6", GPU))])]}


@pytest.mark.parametrize("command", [gpus.gpus, gpus.ps])
def test_whoever_may_read_slices_and_claims_only_gets_an_answer(
    api: Callable[[dict[str, Any]], str], command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(kubeconfig=api(PUBLISHED))
    assert "n1/gpu-0" in capsys.readouterr().out


def test_silence_is_told_to_whoever_may_read_leases(
    api: Callable[[dict[str, Any]], str], capsys: pytest.CaptureFixture[str]
) -> None:
    report = {"v": 1, "bootId": "b", "sequence": 1, "registered": True, "claims": []}
    meta = {"name": "dynamig-node-n1", "annotations": {"dynamig.io/report": json.dumps(report)}}
    lease = {"metadata": meta, "spec": {"renewTime": "2026-01-01T00:00:00Z"}}
    gpus.gpus(kubeconfig=api({**PUBLISHED, "leases": [lease]}), json=True)
    (found,) = json.loads(capsys.readouterr().out)
    assert found["driver_silent_since"] == "2026-01-01T00:00:00+00:00"
    assert found["problem"].startswith("driver silent since 2026-01-01 ")


@pytest.mark.parametrize("command", [gpus.gpus, gpus.ps])
@pytest.mark.parametrize(("asked", "next_step"), [({"driver_name": "x.io"}, "kubectl"), ({"node": "nx"}, "n1")])
def test_nothing_found_is_an_error_with_the_empty_list_for_programs(
    api: Callable[[dict[str, Any]], str],
    command: Callable[..., None],
    asked: dict[str, str],
    next_step: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(Refused, match="no GPU is published by") as told:
        command(kubeconfig=api(PUBLISHED), json=True, **asked)
    assert json.loads(capsys.readouterr().out) == []
    assert next_step in told.value.next_step


def test_the_version_is_told() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout.split()[0]) == (0, "dynamig")
