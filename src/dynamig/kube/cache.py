"""A watched copy of one kind of object, kept by a thread of its own: list, then watch from there, for ever.

A copy that has not been listed yet, or whose watch has broken and not come back, says so: `synced` is then false, and
whoever decides by absence must wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from lightkube import Client

from dynamig.errors import DynamigError
from dynamig.kube.client import WATCH_SECONDS, plain, translated
from dynamig.protocol.pauses import pause_after

log = structlog.get_logger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.4, 10.0
ABSENT_PAUSE = 60.0
"""Seconds until a kind that the API server does not serve is looked for again."""

Objects = Mapping[tuple[str, str], Mapping[str, Any]]


class WatchedObjects:
    """Objects of `resource` by (namespace, name), only the one with `name` if that is given. `on_change` is called
    after each change, from the thread. `may_be_absent`: an API server that does not serve the kind has none of it."""

    def __init__(
        self,
        client: Client,
        resource: Any,
        on_change: Callable[[], None],
        *,
        namespace: str | None = None,
        name: str | None = None,
        may_be_absent: bool = False,
    ) -> None:
        self._client = client
        self._resource = resource
        self._on_change = on_change
        self._may_be_absent = may_be_absent
        self._where: dict[str, Any] = {"namespace": namespace} if namespace else {}
        if name is not None:  # as a field: so the rights on this one object are enough
            self._where["fields"] = {"metadata.name": name}
        self._lock = threading.Lock()
        self._objects: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._newest = 0
        """resourceVersion of the last list or event: numbers that may be compared, since Kubernetes 1.35 (KEP-5504)."""
        self._synced = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch-{resource.__name__}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    @property
    def synced(self) -> bool:
        return self._synced.is_set()

    def objects(self) -> Objects:
        with self._lock:
            return dict(self._objects)

    def refresh(self) -> None:
        """The copy is at least as new as this call, however far behind its watch is. Raises Unavailable."""
        try:
            with translated(f"listing {self._resource.__name__}"):
                self._list()
        except DynamigError as error:
            if not self._is_absent(error):
                raise
            self._none()

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            begun = time.monotonic()
            try:
                self._follow()
                continue
            except DynamigError as error:
                if self._is_absent(error):
                    self._none()
                    self._stopping.wait(ABSENT_PAUSE)
                    continue
                if self._synced.is_set() or not failures:
                    log.warning("watch_broken", kind=self._resource.__name__, code=error.code, error=str(error))
            except Exception:
                log.exception("watch_bug", kind=self._resource.__name__)
            self._synced.clear()
            failures = 1 if time.monotonic() - begun > LONGEST_PAUSE else failures + 1
            self._stopping.wait(pause_after(failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE))

    def _follow(self) -> None:
        with self._lock:
            self._newest = 0  # versions go back where etcd was restored
        with translated(f"watching {self._resource.__name__}"):
            version = self._list()
            self._in_step()
            for kind, obj in self._client.watch(
                self._resource, resource_version=version, server_timeout=WATCH_SECONDS, **self._where
            ):
                self._apply(kind, plain(obj))
                if self._stopping.is_set():
                    return

    def _list(self) -> str:
        """Everything as the server has it now; its resourceVersion. A list that the watch has overtaken meanwhile is
        older than the copy, and adds nothing to it."""
        listed = self._client.list(self._resource, **self._where)
        objects: dict[tuple[str, str], Mapping[str, Any]] = {_key(o): plain(o) for o in listed}
        version = str(listed.resourceVersion)
        with self._lock:
            if int(version) >= self._newest:
                self._objects, self._newest = objects, int(version)
        return version

    def _is_absent(self, error: DynamigError) -> bool:
        return self._may_be_absent and error.code == "NOT_FOUND"

    def _none(self) -> None:
        with self._lock:
            self._objects = {}
        self._in_step()

    def _in_step(self) -> None:
        if not self._synced.is_set():
            log.info("watch_in_step", kind=self._resource.__name__)
        self._synced.set()
        self._on_change()

    def _apply(self, kind: str, obj: Mapping[str, Any]) -> None:
        """One event of the watch; of a watch that is behind, what is older than the copy is known already."""
        version = int(obj["metadata"]["resourceVersion"])
        with self._lock:
            if version <= self._newest:
                return
            self._newest = version
            if kind == "DELETED":
                self._objects.pop(_key(obj), None)
            elif kind in ("ADDED", "MODIFIED"):
                self._objects[_key(obj)] = obj
        self._on_change()


def _key(obj: Any) -> tuple[str, str]:
    meta = plain(obj)["metadata"]
    return (meta.get("namespace", ""), meta["name"])
