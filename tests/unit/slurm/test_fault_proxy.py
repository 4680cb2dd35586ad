"""The proxy of tests/slurm, between a plain client and a tiny server that counts what arrives."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest

from lab.commands import run
from tests.slurm import faults
from tests.slurm.faults import Match
from tests.slurm.proxy import Proxy

WRITE = Match("POST", "^/job/")


class Server(ThreadingHTTPServer):
    """Answers each POST with its number; a watch with one event, then another when `news` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.arrived: list[str] = []
        self.news = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.arrived.append(f"{self.path} {body} {self.headers['X-User']}")
        self._answer(str(len(self.server.arrived)).encode())

    def do_GET(self) -> None:
        if "watch=true" not in self.path:
            self._answer(b"read")
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nfirst\r\n")
        self.server.news.wait(10)
        self.wfile.write(b"6\r\nsecond\r\n0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.news.set()
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    made = Proxy(f"http://127.0.0.1:{server.server_port}")
    yield made
    made.close()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=proxy.url, headers={"X-User": "u"}, trust_env=False) as made:
        yield made


def post(client: httpx2.Client, path: str = "/job/1?a=b", body: str = "x") -> str:
    return client.post(path, content=body).text


def test_without_orders_everything_passes_and_is_written_down(
    proxy: Proxy, client: httpx2.Client, server: Server
) -> None:
    assert (post(client), client.get("/nodes").text) == ("1", "read")
    assert server.arrived == ["/job/1?a=b x u"]
    (write,) = proxy.writes
    assert (write.request.method, write.request.path, write.request.body) == ("POST", "/job/1", b"x")
    assert (write.status, write.sent) == (200, 1)
    assert [e.request.method for e in proxy.exchanges] == ["POST", "GET"]


@pytest.mark.parametrize(("fault", "arrives"), [(faults.drop, 1), (faults.lose, 0)])
def test_a_broken_connection(
    proxy: Proxy, client: httpx2.Client, server: Server, fault: faults.Fault, arrives: int
) -> None:
    order = proxy.order(WRITE, fault)
    with pytest.raises(httpx2.HTTPError):
        post(client)
    assert (len(server.arrived), order.hits) == (arrives, 1)
    assert (proxy.writes[0].status, proxy.writes[0].sent) == (None, arrives)
    assert post(client) == str(arrives + 1)


def test_a_repeated_write_gives_the_second_answer(proxy: Proxy, client: httpx2.Client, server: Server) -> None:
    proxy.order(WRITE, faults.repeat)
    assert (post(client), len(server.arrived), proxy.writes[0].sent) == ("2", 2, 2)


def test_a_refused_request_never_arrives(proxy: Proxy, client: httpx2.Client, server: Server) -> None:
    proxy.order(Match(), faults.refuse, count=None)
    assert client.post("/job/1", content="x").status_code == 500
    assert client.get("/nodes").status_code == 500
    proxy.clear()
    assert (post(client), len(server.arrived)) == ("1", 1)


def test_a_delayed_answer_is_of_a_write_that_has_happened(proxy: Proxy, server: Server) -> None:
    proxy.order(WRITE, faults.delay(2))
    with httpx2.Client(base_url=proxy.url, timeout=0.3, trust_env=False) as hasty, pytest.raises(httpx2.ReadTimeout):
        post(hasty)
    assert len(server.arrived) == 1


def test_the_nth_match_and_so_many_after_it(proxy: Proxy, client: httpx2.Client) -> None:
    order = proxy.order(Match("POST", "^/job/", "^yes"), faults.refuse, nth=2, count=2)
    bodies = ["yes", "no", "yes", "yes", "yes"]
    codes = [client.post("/job/1", content=body).status_code for body in bodies]
    assert (codes, order.seen, order.hits) == ([200, 200, 500, 500, 200], 4, 2)


def test_what_is_done_before_and_after(proxy: Proxy, client: httpx2.Client, server: Server) -> None:
    seen: list[int] = []
    proxy.order(WRITE, faults.before(lambda: seen.append(len(server.arrived))))
    proxy.order(WRITE, faults.after(lambda: seen.append(len(server.arrived))), nth=2)
    post(client)
    post(client)
    assert seen == [0, 2]


@pytest.mark.parametrize("answered", [False, True])
def test_a_gate_keeps_one_request_until_it_is_opened(
    proxy: Proxy, client: httpx2.Client, server: Server, answered: bool
) -> None:
    told: list[str] = []
    with proxy.gate(WRITE, answered=answered) as gate:
        kept = threading.Thread(target=lambda: told.append(post(client, body="kept")))
        kept.start()
        gate.wait_reached()
        assert len(server.arrived) == answered
        assert post(client, body="passes") == str(answered + 1)
        assert told == []
        gate.open()
        kept.join(10)
    assert told == ["1" if answered else "2"]


def test_a_watch_streams_through_and_can_be_frozen(proxy: Proxy, client: httpx2.Client, server: Server) -> None:
    with client.stream("GET", "/pods?watch=true") as response:
        pieces = response.iter_raw()
        assert next(pieces) == b"first"
        got: list[bytes] = []
        with proxy.frozen(Match(faults.WATCH, "^/pods")):
            server.news.set()
            reader = threading.Thread(target=lambda: got.extend(pieces))
            reader.start()
            reader.join(0.5)
            assert got == []
        reader.join(10)
        assert got == [b"second"]


def test_a_proxy_that_is_closed_breaks_its_watches(server: Server) -> None:
    made = Proxy(f"http://127.0.0.1:{server.server_port}")
    with (
        httpx2.Client(base_url=made.url, trust_env=False) as client,
        client.stream("GET", "/pods?watch=true") as response,
    ):
        pieces = response.iter_raw()
        assert next(pieces) == b"first"
        made.close()
        with pytest.raises(httpx2.HTTPError):
            list(pieces)


def test_a_server_that_is_away_breaks_the_connection(proxy: Proxy, client: httpx2.Client, server: Server) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(httpx2.HTTPError):
        post(client)
    assert proxy.writes[0].status is None


def test_tls_to_the_client(server: Server, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    made = Proxy(f"http://127.0.0.1:{server.server_port}", identity=(cert, key))
    trust = ssl.create_default_context(cafile=cert)
    with httpx2.Client(base_url=made.url, verify=trust, headers={"X-User": "u"}, trust_env=False) as client:
        assert post(client) == "1"
        made.order(WRITE, faults.drop)
        with pytest.raises(httpx2.HTTPError):
            post(client)
    made.close()
    assert len(server.arrived) == 2


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "crt", folder / "key"
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=proxy")
    names = ("-addext", "subjectAltName = IP:127.0.0.1", "-days", "2")
    run(["openssl", *new, *names, "-keyout", str(key), "-out", str(cert)])
    return cert, key
