"""A watch that has gone silent, as behind a cut cable, does not keep anybody blind."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from lightkube import ApiError, Client

from dynamig.errors import Refused
from dynamig.kube import client
from dynamig.kube.cache import WatchedObjects
from tests.unit.kube.server import kubeconfig

LISTED = {"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": []}


class Silent(ThreadingHTTPServer):
    """Lists nothing at version 7; says nothing in answer to a watch until it is told to `end`."""

    daemon_threads = True

    def __init__(self) -> None:
        self.watches = 0
        self.over = threading.Event()
        super().__init__(("127.0.0.1", 0), _Answers)

    def end(self) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()


class _Answers(BaseHTTPRequestHandler):
    server: Silent

    def do_GET(self) -> None:
        watching = "watch=true" in self.path
        body = b"" if watching else json.dumps(LISTED).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        if not watching:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        if watching:
            self.server.watches += 1
            self.server.over.wait(60)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Silent]:
    server = Silent()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.end()


def eventually(check: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_watch_that_goes_silent_is_out_of_step_and_begun_anew(
    tmp_path: Path, server: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LONGEST_SILENCE", 0.5)
    told: list[bool] = []
    connected = client.connect(kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.server_port}"))
    watched = WatchedObjects(connected, client.Pod, lambda: told.append(watched.synced), namespace="ns")
    watched.start()
    eventually(lambda: told == [True])
    eventually(lambda: not watched.synced)
    eventually(lambda: server.watches >= 2)
    watched.stop()


class Overtaken:
    """A client whose list is on its way while the watch has a newer object already, and after it one is gone."""

    class Listed(list[dict[str, Any]]):
        resourceVersion = "11"  # noqa: N815 -- as lightkube has it

    def __init__(self) -> None:
        self.watched: WatchedObjects | None = None

    def list(self, *_: object, **__: object) -> Listed:
        if self.watched is not None:
            self.watched._apply("ADDED", thing("new", 12))
            self.watched._apply("DELETED", thing("gone", 13))
        return self.Listed([thing("old", 10), thing("gone", 9)])


def thing(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name, "resourceVersion": str(version)}}


def test_a_list_that_the_watch_has_overtaken_undoes_no_event() -> None:
    overtaken = Overtaken()
    watched = WatchedObjects(cast(Client, overtaken), client.Pod, lambda: None)
    watched.refresh()
    assert {name for _, name in watched.objects()} == {"old", "gone"}
    overtaken.watched = watched
    watched.refresh()
    assert {name for _, name in watched.objects()} == {"old", "new"}


def test_a_dead_peer_is_noticed_by_the_kernel(server: Silent) -> None:
    url = f"http://127.0.0.1:{server.server_port}/pods?watch=true"
    with (
        httpx2.Client(transport=client.WatchfulTransport(ssl.create_default_context())) as http,
        http.stream("GET", url) as answer,
    ):
        connection = answer.extensions["network_stream"].get_extra_info("socket")
        assert all(connection.getsockopt(level, option) == value for level, option, value in client.KEEPALIVE)


class NotServed:
    """A client of an API server that does not know the kind, until it is updated."""

    def __init__(self) -> None:
        self.updated = False

    def list(self, *_: object, **__: object) -> Overtaken.Listed:
        if self.updated:
            return Overtaken.Listed([thing("new", 10)])
        status = {"code": 404, "message": "the server could not find the requested resource"}
        raise ApiError(response=httpx2.Response(404, json=status))


def test_a_kind_that_is_not_served_has_no_objects_where_that_may_be() -> None:
    server = NotServed()
    told: list[bool] = []
    connected = cast(Client, server)
    watched = WatchedObjects(connected, client.DeviceTaintRule, lambda: told.append(watched.synced), may_be_absent=True)
    watched.refresh()
    assert (watched.synced, dict(watched.objects()), told) == (True, {}, [True])
    server.updated = True
    watched.refresh()
    assert {name for _, name in watched.objects()} == {"new"}
    server.updated = False
    with pytest.raises(Refused, match="could not find"):
        WatchedObjects(connected, client.Pod, lambda: None).refresh()
