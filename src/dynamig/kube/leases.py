"""The node's Lease over the API: implements `protocol.ports.NodeReport`."""

from __future__ import annotations

import time

from lightkube import Client
from lightkube.types import PatchType

from dynamig.kube.client import Lease, translated
from dynamig.protocol import names
from dynamig.protocol.node_report import FRESH_SECONDS
from dynamig.protocol.times import to_micro_time


class ApiLease:
    def __init__(self, client: Client, namespace: str, node: str) -> None:
        self._client = client
        self._namespace = namespace
        self._node = node

    def renew(self, content: str) -> None:
        name = names.lease_name(self._node)
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                "annotations": {names.REPORT: content},
            },
            "spec": {
                "holderIdentity": self._node,
                "leaseDurationSeconds": FRESH_SECONDS,
                "renewTime": to_micro_time(time.time()),
            },
        }
        with translated(f"Lease {self._namespace}/{name}"):
            self._client.patch(
                Lease,
                name,
                body,
                namespace=self._namespace,
                patch_type=PatchType.APPLY,
                field_manager=f"{names.FIELD_MANAGER}-{self._node}",
                force=True,
            )
