"""ResourceSlices of one node over the API: implements `protocol.ports.Slices`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightkube import Client

from dynamig.errors import Refused
from dynamig.kube.client import WATCH_SECONDS, Node, ResourceSlice, plain, translated


class ApiSlices:
    def __init__(self, client: Client, driver: str, node: str) -> None:
        self._client = client
        self._fields: dict[str, Any] = {"spec.driver": driver, "spec.nodeName": node}
        self._node = node
        self._owner: dict[str, Any] | None = None

    def published(self) -> Sequence[dict[str, Any]]:
        with translated("listing ResourceSlices"):
            return [plain(s) for s in self._client.list(ResourceSlice, fields=self._fields)]

    def write(self, wanted: Mapping[str, Any], published: Mapping[str, Any] | None) -> None:
        """Create, or replace at the resourceVersion of `published`. The Node owns the slice: it goes with it."""
        metadata = {**wanted["metadata"], "ownerReferences": [self._node_reference()]}
        if published is not None:
            metadata["resourceVersion"] = published["metadata"]["resourceVersion"]
        body = ResourceSlice(**{**wanted, "metadata": metadata})
        with translated(f"ResourceSlice {metadata['name']}"):
            if published is None:
                self._client.create(body)
            else:
                self._client.replace(body)

    def delete(self, name: str) -> None:
        try:
            with translated(f"ResourceSlice {name}"):
                self._client.delete(ResourceSlice, name)
        except Refused as error:
            if error.code != "NOT_FOUND":
                raise

    def changes(self) -> Iterator[str]:
        """Names of slices as they change, for about WATCH_SECONDS; raises Unavailable when the server goes."""
        with translated("watching ResourceSlices"):
            for _, obj in self._client.watch(ResourceSlice, fields=self._fields, server_timeout=WATCH_SECONDS):
                yield str(plain(obj)["metadata"]["name"])

    def _node_reference(self) -> dict[str, Any]:
        if self._owner is None:
            with translated(f"node {self._node}"):
                node = plain(self._client.get(Node, self._node))
            self._owner = {
                "apiVersion": "v1",
                "kind": "Node",
                "name": self._node,
                "uid": node["metadata"]["uid"],
                "controller": True,
            }
        return self._owner
