"""`/readyz`, `/livez` and `/metrics` for whoever supervises the bridge. Reads only; answers say why, in plain text."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from dynamig.errors import Refused

ADDRESS = re.compile(r"(?P<host>[^:\[\]]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})")
PLAIN = ("Content-Type", "text/plain; charset=utf-8")

Question = Callable[[], str]
"""Why not; empty: all is well."""


def address(text: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:9410`. Raises ValueError for anything else."""
    found = ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise ValueError(f"{text!r} is not host:port, like 127.0.0.1:9410")
    return found["host"].strip("[]"), int(found["port"])


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Probes come every few seconds."""


class Endpoint:
    """Serves from `start` to `stop`, in threads of its own."""

    def __init__(self, at: str, *, not_ready: Question, not_live: Question, registry: CollectorRegistry) -> None:
        self._questions = {"/readyz": not_ready, "/livez": not_live}
        self._metrics = make_wsgi_app(registry)
        host, port = address(at)
        try:
            kind = _Server6 if ":" in host else _Server
            self._server = make_server(host, port, self._answer, server_class=kind, handler_class=_Quiet)
        except OSError as error:
            raise Refused("BAD_CONFIG", f"listen: {at}: {error.strerror}", "is another process there?") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._metrics(environ, start)  # type: ignore[no-any-return]
        question = self._questions.get(path)
        if question is None:
            return _text(start, "404 Not Found", "/readyz, /livez and /metrics are here")
        why = question()
        return _text(start, "503 Service Unavailable" if why else "200 OK", why or "ok")


def _text(start: StartResponse, status: str, text: str) -> Iterable[bytes]:
    start(status, [PLAIN])
    return [f"{text}\n".encode()]
