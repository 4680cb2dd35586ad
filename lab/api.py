"""Questions to the cluster over HTTPS, as the lab's administrator; nothing is cached."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamig.errors import Unavailable

TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Https:
    """A server on this machine, whose certificate is verified; `cert` and `key` are ours, if it wants to know us."""

    port: int
    authority: Path
    cert: Path | None = None
    key: Path | None = None

    def get(self, path: str) -> tuple[int, str]:
        """Status and body. Raises Unavailable if there is no answer."""
        try:
            context = ssl.create_default_context(cafile=str(self.authority))
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=TIMEOUT_S, context=context)
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                return response.status, response.read().decode(errors="replace")
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable("NO_ANSWER", f"127.0.0.1:{self.port}{path}: {error}") from error

    def get_json(self, path: str) -> Any | None:
        """The object at `path`; None if there is none (404). Raises Unavailable for every other answer."""
        status, body = self.get(path)
        if status == 404:
            return None
        if status != 200:
            raise Unavailable("BAD_ANSWER", f"127.0.0.1:{self.port}{path}: {status} {body[:200]}")
        return json.loads(body)
