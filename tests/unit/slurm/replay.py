"""slurmrestd as it once was: a server on the loopback that gives recorded answers, and notes what it was asked.

The answers in `recorded/` are those of slurmrestd 26.05.5 in the lab; fields without a value were left out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "recorded"
RIGHTS = "POST /node/dynamig-asks-for-its-rights"
BASE = "/slurm/v0.0.45"


@dataclass(frozen=True)
class Asked:
    what: str
    """Method and path below the API's root, like `GET /job/53`."""
    body: Any
    token: str


def recorded(name: str) -> tuple[int, bytes]:
    found = json.loads((RECORDED / f"{name}.json").read_text())
    body = found["body"]
    return found["status"], body.encode() if isinstance(body, str) else json.dumps(body).encode()


@dataclass
class Replay:
    """`answers`: what is asked -> names of recordings, one after the other; the last one is repeated."""

    url: str = ""
    answers: dict[str, list[str]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def on(self, what: str, *names: str) -> Replay:
        self.answers[what] = list(names)
        return self

    def whats(self) -> list[str]:
        return [asked.what for asked in self.asked]

    def answer(self, asked: Asked) -> tuple[int, bytes]:
        self.asked.append(asked)
        names = self.answers.get(asked.what)
        if names is None:
            return 500, b"nothing was recorded for this"
        return recorded(names.pop(0) if len(names) > 1 else names[0])


@contextmanager
def serving(replay: Replay) -> Iterator[Replay]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _reply(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            path = self.path.removeprefix(BASE)
            status, answer = replay.answer(
                Asked(f"{self.command} {path}", body, self.headers.get("X-SLURM-USER-TOKEN", ""))
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_DELETE = _reply  # noqa: N815 -- the names that http.server looks for

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    replay.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield replay
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
