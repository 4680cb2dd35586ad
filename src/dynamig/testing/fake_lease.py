"""One Lease in memory: implements `protocol.ports.LeaseObject`, with resourceVersions as the API server keeps them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any

from dynamig.errors import Conflict
from dynamig.testing.fakes import Faults


class FakeLease:
    """`lease`: what stands there; None: nothing."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.lease: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self._version = 0

    def read(self) -> Mapping[str, Any] | None:
        self.faults.check("read")
        with self._lock:
            return copy.deepcopy(self.lease)

    def create(self, spec: Mapping[str, Any]) -> None:
        self.faults.check("create")
        with self._lock:
            if self.lease is not None:
                raise Conflict("CONFLICT", "the Lease exists already")
            self._put({"name": "lease", "uid": "lease-1"}, spec)

    def replace(self, lease: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        self.faults.check("replace")
        with self._lock:
            version = lease["metadata"]["resourceVersion"]
            if self.lease is None or self.lease["metadata"]["resourceVersion"] != version:
                raise Conflict("CONFLICT", "the Lease was changed meanwhile")
            self._put(lease["metadata"], spec)

    def _put(self, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        self._version += 1
        self.lease = {
            "metadata": {**metadata, "resourceVersion": str(self._version)},
            "spec": copy.deepcopy(dict(spec)),
        }
