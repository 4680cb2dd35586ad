"""A proxy between the bridge and one server (slurmrestd, the API server), which does to requests what networks do.

Faults (`faults.py`) are ordered for requests that match; the nth match meets them. Watches stream through, and can be
frozen: then the server's news do not arrive, and nobody is told so.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2

from tests.slurm.faults import READS, WATCH, Answer, Broken, Fault, Gate, Match, Order, Request

CONNECT_S, ANSWER_S, END_S = 3.0, 60.0, 30.0
_OF_ONE_CONNECTION = frozenset(
    {"connection", "content-length", "date", "host", "keep-alive", "server", "transfer-encoding"}
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and what became of it. `status`: as the client saw it, None if it saw no answer. `sent`: how often the
    server was given it; `at`: when it ended, in seconds of the epoch."""

    request: Request
    status: int | None
    sent: int
    at: float

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.at, UTC).strftime("%H:%M:%S.%f")
        request = f"{self.request.method} {self.request.path} {self.request.body.decode(errors='replace')[:400]}"
        return f"{at} {self.status} (sent {self.sent}) {request}"


@dataclass(slots=True)
class _Books:
    """What was ordered and what has happened. Shared by all connections."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    orders: list[Order] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    frozen: dict[Match, threading.Event] = field(default_factory=dict)

    def fault_for(self, request: Request) -> Fault | None:
        """Every order counts the request; the first that it meets is carried out."""
        with self.lock:
            met = [order for order in self.orders if order.meets(request)]
            return met[0].fault if met else None

    def write(self, exchange: Exchange) -> None:
        with self.lock:
            self.exchanges.append(exchange)

    def wait_thawed(self, request: Request) -> None:
        with self.lock:
            waits = [thawed for match, thawed in self.frozen.items() if match.fits(request)]
        for thawed in waits:
            thawed.wait()


class Proxy:
    """Listens on 127.0.0.1 from its creation on, until `close`.

    `server`: http(s)://host:port. `trust`: who signed the server's certificate. `identity`: certificate and key that
    the proxy shows its clients; without one it speaks plain HTTP to them.
    """

    def __init__(self, server: str, *, trust: Path | None = None, identity: tuple[Path, Path] | None = None) -> None:
        verify = ssl.create_default_context(cafile=trust) if trust else True
        timeout = httpx2.Timeout(ANSWER_S, connect=CONNECT_S)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        upstream = httpx2.Client(base_url=server, verify=verify, timeout=timeout, limits=limits, trust_env=False)
        self._books, self._upstream = _Books(), upstream
        self._http = _Server(upstream, self._books)
        if identity is not None:
            shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            shown.load_cert_chain(*identity)
            self._http.socket = shown.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"{'https' if identity else 'http'}://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.clear()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self._http.end_connections()
        self._upstream.close()

    def order(self, match: Match, fault: Fault, *, nth: int = 1, count: int | None = 1) -> Order:
        order = Order(match, fault, nth, count)
        with self._books.lock:
            self._books.orders.append(order)
        return order

    def clear(self) -> None:
        """No fault is ordered and no watch is frozen any more. Gates stay as they are."""
        with self._books.lock:
            self._books.orders.clear()
            thawing = list(self._books.frozen.values())
            self._books.frozen.clear()
        for thawed in thawing:
            thawed.set()

    @contextmanager
    def gate(self, match: Match, *, answered: bool = False) -> Iterator[Gate]:
        """The next request that matches is kept; let go with `open`, or at the end of the block."""
        gate = Gate(answered=answered)
        order = self.order(match, gate)
        try:
            yield gate
        finally:
            with self._books.lock:
                if order in self._books.orders:
                    self._books.orders.remove(order)
            gate.open()

    @contextmanager
    def frozen(self, match: Match) -> Iterator[None]:
        """Watches that match bring no news in the block; what they would have said comes after it."""
        thawed = threading.Event()
        with self._books.lock:
            self._books.frozen[match] = thawed
        try:
            yield
        finally:
            with self._books.lock:
                self._books.frozen.pop(match, None)
            thawed.set()

    @property
    def exchanges(self) -> list[Exchange]:
        with self._books.lock:
            return list(self._books.exchanges)

    @property
    def writes(self) -> list[Exchange]:
        return [e for e in self.exchanges if e.request.method not in READS]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, upstream: httpx2.Client, books: _Books) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream, self.books = upstream, books
        self.streams: set[socket.socket] = set()
        self._connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._connections.discard(request)

    def end_connections(self) -> None:
        """All threads of connections have ended. Sockets are shut down here and closed by the threads that read them:
        closed under a reader, a descriptor would be given out again and the reader would go on with somebody else's."""
        end = time.monotonic() + END_S
        while self._connections:
            assert time.monotonic() < end, "a connection does not end"
            for connection in {*self._connections, *self.streams}:
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)
            time.sleep(0.02)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is none of ours; the base class would print its traceback."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client; `handle_request` is called for each of its requests."""

    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_request(self) -> None:
        request = self._read()
        sent = 0

        def forward() -> Answer:
            nonlocal sent
            sent += 1
            return _forward(self.server.upstream, request, self.server.streams)

        fault = self.server.books.fault_for(request)
        try:
            answer = forward() if fault is None else fault(forward)
        except (Broken, httpx2.HTTPError):
            self.server.books.write(Exchange(request, None, sent, time.time()))
            self._break()
            return
        self.server.books.write(Exchange(request, answer.status, sent, time.time()))
        self._give(request, answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request  # noqa: N815, names of the base class

    def log_message(self, format: str, *args: object) -> None:
        """What is worth knowing is in the books."""

    def _read(self) -> Request:
        address = urlsplit(self.path)
        watches = parse_qs(address.query).get("watch", ["false"])[0] in ("true", "1")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        method = WATCH if watches else self.command
        return Request(method, address.path, address.query, _end_to_end(self.headers.items()), body)

    def _give(self, request: Request, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if isinstance(answer.body, bytes):
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with closing(answer.body):
            for piece in answer.body:
                self.server.books.wait_thawed(request)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _break(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _forward(upstream: httpx2.Client, request: Request, streams: set[socket.socket]) -> Answer:
    """The server's answer as it came: a compressed one stays so. The sockets of watches are in `streams`."""
    method = "GET" if request.method == WATCH else request.method
    target = f"{request.path}?{request.query}" if request.query else request.path
    built = upstream.build_request(method, target, content=request.body, headers=list(request.headers))
    if request.method == WATCH:
        built.extensions["timeout"] = {**built.extensions["timeout"], "read": None}
    response = upstream.send(built, stream=True)
    pieces = _pieces(response, streams)
    body = pieces if request.method == WATCH else b"".join(pieces)
    return Answer(response.status_code, _end_to_end(response.headers.items()), body)


def _pieces(response: httpx2.Response, streams: set[socket.socket]) -> Generator[bytes, None, None]:
    connection = response.extensions["network_stream"].get_extra_info("socket")
    streams.add(connection)
    try:
        yield from response.iter_raw()
    finally:
        streams.discard(connection)
        response.close()


def _end_to_end(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in headers if name.lower() not in _OF_ONE_CONNECTION)
