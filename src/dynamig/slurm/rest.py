"""HTTP to slurmrestd: the only effect of this package. One client has one user and one token, for good.

DEADLOCK RULE. On 26.05.5 a cancel of somebody else's job with an unprivileged token stops slurmctld for good (until
kill -9). So no token but the one given here is ever used, and `proven` makes sure that it is privileged before anything
is cancelled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from dynamig.errors import Refused, Unavailable
from dynamig.slurm import v0_0_45 as wire
from dynamig.slurm.errors import UNKNOWN_NODE

TIMEOUT = httpx2.Timeout(15.0, connect=3.0)
"""Seconds. slurmctld answers in milliseconds; slurmrestd itself gives up on a silent one after 10 (MessageTimeout)."""

PROOF_SECONDS = 60.0
"""How long a token that was proven is believed. One proof costs two milliseconds."""

NOBODYS_NODE = "dynamig-asks-for-its-rights"
"""A node name that does not exist. Updating it says what a token may do and changes nothing."""

UNIX = "unix:"
A = TypeVar("A", bound=wire.Answer)


class Rest:
    """Requests to one slurmrestd. `url`: `http://host:port` or `unix:/path`. `token` is asked anew for every request,
    because tokens expire and whoever renews them writes a file."""

    def __init__(
        self, url: str, user: str, token: Callable[[], str], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._user, self._token = user, token
        self._proven: str | None = None
        self._proven_until, self._monotonic = 0.0, monotonic
        socket = url.removeprefix(UNIX) if url.startswith(UNIX) else None
        transport = httpx2.HTTPTransport(uds=socket) if socket else None
        base = "http://slurmrestd" if socket else url
        self._http = httpx2.Client(base_url=base, transport=transport, timeout=TIMEOUT, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def get(self, kind: type[A], path: str, what: str, **query: str) -> A:
        return self._ask(kind, "GET", path, what, query=query)

    def post(self, kind: type[A], path: str, what: str, body: Mapping[str, Any]) -> A:
        return self._ask(kind, "POST", path, what, body=body)

    def delete(self, path: str, what: str) -> None:
        """Only with a token that was proven to be privileged; Refused SLURM_FORBIDDEN, and nothing sent, otherwise."""
        self.proven()
        self._ask(wire.StatusAnswer, "DELETE", path, what)

    def proven(self) -> None:
        """The token is SlurmUser's, root's or an operator's. Asked once a minute for each token: rights are taken away
        without changing it."""
        token = self._token()
        if token == self._proven and self._monotonic() < self._proven_until:
            return
        try:
            self.post(wire.Answer, wire.node_path(NOBODYS_NODE), f"rights of {self._user}", {"comment": ""})
        except Refused as error:
            if error.code != f"SLURM_{UNKNOWN_NODE}":
                raise
        self._proven, self._proven_until = token, self._monotonic() + PROOF_SECONDS

    def _ask(
        self,
        kind: type[A],
        method: str,
        path: str,
        what: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> A:
        headers = {"X-SLURM-USER-NAME": self._user, "X-SLURM-USER-TOKEN": self._token()}
        content = None if body is None else json.dumps(body)
        if content is not None:
            headers["Content-Type"] = "application/json"
        try:
            answer = self._http.request(method, path, params=query, content=content, headers=headers)
        except httpx2.HTTPError as error:
            raise Unavailable(
                "SLURM_UNAVAILABLE", f"{what}: {type(error).__name__}: {error}", "is slurmrestd up?"
            ) from error
        return wire.read(kind, what, answer.status_code, answer.content)


def token_file(path: Path) -> Callable[[], str]:
    """A token from a file, read at each request. The file may hold what `scontrol token` prints."""

    def read() -> str:
        try:
            text = path.read_text().strip()
        except OSError as error:
            raise Refused(
                "NO_SLURM_TOKEN", f"{path}: {error.strerror}", "put a token of `scontrol token` there"
            ) from error
        return text.removeprefix("SLURM_JWT=")

    return read
