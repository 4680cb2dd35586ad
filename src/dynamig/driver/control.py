"""The root-only unix socket of a running driver: one JSON request a line, one JSON answer. Its mode is the permission.

    -> {"ask": "lend", "args": {...}}
    <- {"answer": ..., "confirm": true}        or {"error": {"code": ..., "what": ..., "next": ..., "again": ...}}
    -> {"taken": true}                         only where the answer says `confirm`

The connection stays open while a request waits, so that a caller that has died is noticed. A confirmed answer is one
that the caller has read: there is no time limit for it, since a caller that took a loan and was declared dead after a
timeout would run on a GPU that somebody else is given. A dead process closes its end, however it died.
"""

from __future__ import annotations

import json
import os
import select
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dynamig.errors import Conflict, DynamigError, Refused, Unavailable

TIMEOUT = 30.0
"""Seconds for a request to arrive, and for an answer that nobody waits for on purpose."""

LONGEST_REQUEST = 65536
"""Bytes."""


class Caller:
    """The other end of one request."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.has_answer = False

    def is_there(self) -> bool:
        """False once the other end is closed."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN | select.POLLRDHUP)
        return not any(event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))

    def deliver(self, answer: Any) -> None:
        """The caller has read `answer` and said so. Raises Unavailable UNDELIVERED if it is gone instead."""
        self.has_answer = True
        try:
            self._connection.settimeout(None)
            self._connection.sendall(json.dumps({"answer": answer, "confirm": True}).encode() + b"\n")
            with self._connection.makefile("rb") as lines:
                taken = bool(json.loads(lines.readline() or b"{}").get("taken"))
        except (OSError, ValueError, AttributeError) as error:
            raise _undelivered() from error
        if not taken:
            raise _undelivered()


Ask = Callable[[Mapping[str, Any], Caller], Any]
"""From the arguments to the answer, JSON-ready; or delivers it to the caller itself and returns anything."""


class ControlServer:
    """Answers on `path` until closed. `asks`: word to what answers it."""

    def __init__(self, path: Path, asks: Mapping[str, Ask]) -> None:
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
    block_on_close = False  # a prolog may be waiting; the driver ends, and it asks again

    def __init__(self, path: str, asks: Mapping[str, Ask]) -> None:
        self.asks = asks
        super().__init__(path, _Handler)


class _Handler(socketserver.BaseRequestHandler):
    server: _Server
    request: socket.socket

    def handle(self) -> None:
        self.request.settimeout(TIMEOUT)
        caller = Caller(self.request)
        answer = self._answer(caller)
        if not caller.has_answer and caller.is_there():
            self.request.settimeout(TIMEOUT)
            self.request.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, caller: Caller) -> Mapping[str, Any]:
        try:
            ask, args = self._read()
            return {"answer": ask(args, caller)}
        except DynamigError as error:
            again = isinstance(error, (Unavailable, Conflict))
            return {"error": {"code": error.code, "what": error.what, "next": error.next_step, "again": again}}

    def _read(self) -> tuple[Ask, Mapping[str, Any]]:
        with self.request.makefile("rb") as lines:
            line = lines.readline(LONGEST_REQUEST)
        try:
            body = json.loads(line)
            args = body.get("args", {})
            if not isinstance(args, dict):
                raise TypeError("args is no object")
            return self.server.asks[body["ask"]], args
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            known = ", ".join(sorted(self.server.asks))
            raise Refused("INVALID", f"cannot read {line[:200]!r}", f"ask one of {known}") from error


def ask(path: Path, what: str, args: Mapping[str, Any] | None = None, *, timeout: float = TIMEOUT) -> Any:
    """The answer of the driver behind `path`, confirmed if it wants to know that it arrived.

    Raises: Unavailable NO_DRIVER if none answers within `timeout` seconds; the driver's own Unavailable or Refused.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            connection.sendall(json.dumps({"ask": what, "args": dict(args or {})}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = json.loads(lines.readline())
            if answer.get("confirm"):
                connection.sendall(b'{"taken": true}\n')
    except (OSError, ValueError) as error:
        raise Unavailable(
            "NO_DRIVER", f"no driver answers on {path}: {error}", "is it running? see its log, and --socket"
        ) from error
    if (failure := answer.get("error")) is not None:
        family = Unavailable if failure["again"] else Refused
        raise family(failure["code"], failure["what"], failure["next"])
    return answer["answer"]


def _undelivered() -> Unavailable:
    return Unavailable("UNDELIVERED", "the caller was gone before it had the answer", "what it asked for is undone")
