"""The root-only unix socket of a running driver: one JSON request a line, one JSON answer.

The CLI asks `status` and `plan` here; Slurm's prolog will ask for loans. The socket's mode is the permission.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dynamig.errors import DynamigError, Refused, Unavailable

Ask = Mapping[str, Callable[[], Any]]
TIMEOUT = 30.0


class ControlServer:
    """Answers on `path` until closed. `asks`: word to what computes its answer, JSON-ready."""

    def __init__(self, path: Path, asks: Ask) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # of a killed process: the driver holds the node's lock
        before = os.umask(0o177)
        try:
            self._server = _Server(str(path), asks)
        finally:
            os.umask(before)
        self._thread = threading.Thread(target=self._server.serve_forever, name="control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, asks: Ask) -> None:
        self.asks = asks
        super().__init__(path, _Handler)


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        self.connection.settimeout(TIMEOUT)
        answer = self._answer(self.rfile.readline())
        self.wfile.write(json.dumps(answer).encode() + b"\n")

    def _answer(self, line: bytes) -> Mapping[str, Any]:
        try:
            asked = json.loads(line)["ask"]
            return {"answer": self.server.asks[asked]()}
        except (ValueError, KeyError, TypeError):
            known = ", ".join(sorted(self.server.asks))
            return {"error": {"code": "INVALID", "what": f"cannot read {line!r}", "next": f"ask one of {known}"}}
        except DynamigError as error:
            return {"error": {"code": error.code, "what": error.what, "next": error.next_step}}


def ask(path: Path, what: str) -> Any:
    """The answer of the driver behind `path`. Raises Unavailable if none answers, Refused for its refusal."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT)
            connection.connect(str(path))
            connection.sendall(json.dumps({"ask": what}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = json.loads(lines.readline())
    except (OSError, ValueError) as error:
        raise Unavailable(
            "NO_DRIVER", f"no driver answers on {path}: {error}", "is it running? see its log, and --socket"
        ) from error
    if (refused := answer.get("error")) is not None:
        raise Refused(refused["code"], refused["what"], refused["next"])
    return answer["answer"]
