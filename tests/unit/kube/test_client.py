"""A token file that is not there is trouble that ends, not a bug."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dynamig.errors import Unavailable
from dynamig.kube import client
from tests.unit.kube.server import kubeconfig


class OneNode(BaseHTTPRequestHandler):
    """Answers whoever shows the token `t`."""

    def do_GET(self) -> None:
        known = self.headers["Authorization"] == "Bearer t"
        body = b'{"kind": "Node", "metadata": {"name": "n1"}}' if known else b'{"kind": "Status", "code": 401}'
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_token_file_that_is_not_there_yet_is_named_and_read_again(tmp_path: Path) -> None:
    token = tmp_path / "driver.token"
    with HTTPServer(("127.0.0.1", 0), OneNode) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = kubeconfig(tmp_path / "kubeconfig", f"http://127.0.0.1:{server.server_port}", token)
        connected = client.connect(there)
        with pytest.raises(Unavailable, match=f"Token file {token} not found") as caught, client.translated("Node n1"):
            connected.get(client.Node, "n1")
        assert caught.value.code == "NO_TOKEN"
        token.write_text("expired\n")
        with pytest.raises(Unavailable) as caught, client.translated("Node n1"):
            connected.get(client.Node, "n1")
        assert caught.value.code == "NOT_LOGGED_IN"
        token.write_text("t\n")
        assert client.plain(connected.get(client.Node, "n1"))["metadata"] == {"name": "n1"}
        server.shutdown()
