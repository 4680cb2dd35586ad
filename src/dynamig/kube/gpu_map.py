"""The node's entry in the ConfigMap `dynamig-gpu-map`, watched: read with rights on this one object."""

from __future__ import annotations

from collections.abc import Callable

from lightkube import Client

from dynamig.kube.cache import WatchedObjects
from dynamig.kube.client import ConfigMap
from dynamig.protocol import names
from dynamig.protocol.seen import Found, Gone, Seen, Unknown


class ApiGpuMap:
    """`on_change` is called after each change, from a thread of its own. Nothing is sent before `start`."""

    def __init__(self, client: Client, namespace: str, node: str, on_change: Callable[[], None]) -> None:
        self._node = node
        self._watched = WatchedObjects(client, ConfigMap, on_change, namespace=namespace, name=names.GPU_MAP)

    def start(self) -> None:
        self._watched.start()

    def stop(self) -> None:
        self._watched.stop()

    def entry(self) -> Seen[str]:
        """The text under the node's key. `Gone`: the API server has no such ConfigMap, or no such key in it."""
        if not self._watched.synced:
            return Unknown("not in step with the API server")
        found = next(iter(self._watched.objects().values()), {})
        text = (found.get("data") or {}).get(self._node)
        return Gone(f"no key {self._node}") if text is None else Found(str(text))
