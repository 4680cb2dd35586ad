"""Leader election over one Lease, by client-go's rules: whoever holds it acts, the others stand by.

The holder renews. Another takes over only when it has seen the Lease unchanged, by its own clock, for as long as the
Lease says: so the clocks of two machines need not agree, only run equally fast. Every write carries the resourceVersion
that was read, so that of two who try one wins. A clean stop clears the holder, and a successor need not wait.

It is no fence: a holder may be held up between a look at `Elector.held` and its write. That is why every other write
carries a resourceVersion, or is looked for by identity first (docs/decisions/0017-one-bridge-acts.md).

Source: `tools/leaderelection/leaderelection.go` and `resourcelock/leaselock.go` of client-go 0.36.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import structlog
from lightkube import Client

from dynamig.errors import DynamigError, Refused
from dynamig.kube.client import Lease, plain, translated
from dynamig.protocol.ports import LeaseObject
from dynamig.protocol.times import to_micro_time

log = structlog.get_logger(__name__)

LEASE_SECONDS: Final = 15
"""How long a Lease must be seen unchanged before it is taken over."""

HELD_SECONDS: Final = 10.0
"""How long a renewal counts for its holder; the rest of LEASE_SECONDS is for a request on its way and slow clocks."""

RENEW_EVERY: Final = 2.0
"""Seconds between two looks at the Lease."""

REQUEST_SECONDS: Final = 3.0
"""Timeout for the client: more than one try must fit into HELD_SECONDS."""

Obj = Mapping[str, Any]


class Step(Enum):
    CREATE = "create"
    ACQUIRE = "acquire"
    RENEW = "renew"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Sighting:
    """The Lease as it was last read; None: there is none. `since`: when its spec was first seen so, by our clock."""

    lease: Obj | None
    since: float

    @property
    def spec(self) -> Obj:
        return {} if self.lease is None else self.lease.get("spec") or {}

    @property
    def holder(self) -> str:
        return self.spec.get("holderIdentity") or ""


def sighted(before: Sighting | None, lease: Obj | None, now: float) -> Sighting:
    """What is known after a read that was answered at `now`. Only the spec counts: a new label is no renewal."""
    seen = Sighting(lease, now)
    return seen if before is None or before.spec != seen.spec else Sighting(lease, before.since)


def next_step(seen: Sighting, identity: str, now: float) -> Step:
    """What `identity` does about the Lease."""
    if seen.lease is None:
        return Step.CREATE
    if seen.holder == identity:
        return Step.RENEW
    seconds = seen.spec.get("leaseDurationSeconds") or LEASE_SECONDS
    return Step.WAIT if seen.holder and now - seen.since < seconds else Step.ACQUIRE


def written(seen: Sighting, identity: str, wall: float) -> dict[str, Any]:
    """The spec with which `identity` holds the Lease. `wall`: seconds of the epoch, for people who read it."""
    now, before = to_micro_time(wall), seen.spec
    if seen.holder == identity:
        return {**before, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": LEASE_SECONDS,
        "acquireTime": now,
        "renewTime": now,
        "leaseTransitions": 0 if seen.lease is None else (before.get("leaseTransitions") or 0) + 1,
    }


def cleared(seen: Sighting, wall: float) -> dict[str, Any]:
    """The spec of a Lease that its holder has let go."""
    kept = {key: value for key, value in seen.spec.items() if key != "holderIdentity"}
    return {**kept, "leaseDurationSeconds": 1, "renewTime": to_micro_time(wall)}


class ApiLeaseObject:
    """Implements `protocol.ports.LeaseObject`. `client`: with REQUEST_SECONDS as its timeout."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client = client
        self._namespace, self._name = namespace, name
        self._what = f"Lease {namespace}/{name}"

    def read(self) -> Obj | None:
        try:
            with translated(self._what):
                return plain(self._client.get(Lease, self._name, namespace=self._namespace))
        except Refused as error:
            if error.code != "NOT_FOUND":
                raise
            return None

    def create(self, spec: Obj) -> None:
        metadata = {"name": self._name, "namespace": self._namespace}
        body: dict[str, Any] = {"metadata": metadata, "spec": dict(spec)}
        with translated(self._what):
            self._client.create(Lease(**body))

    def replace(self, lease: Obj, spec: Obj) -> None:
        with translated(self._what):
            self._client.replace(Lease(**{**lease, "spec": dict(spec)}))


class Elector:
    """One candidate, with a thread of its own. `identity`: no other process ever has it; `clock`: seconds that never
    jump; `wall`: seconds of the epoch."""

    def __init__(
        self,
        lease: LeaseObject,
        identity: str,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),  # counts a machine's sleep too
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._lease, self._identity = lease, identity
        self._clock, self._wall = clock, wall
        self._seen: Sighting | None = None
        self._renewed: float | None = None
        self._trouble = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leader-election", daemon=True)

    @property
    def held(self) -> bool:
        """Whether we may act now: nobody else can have taken the Lease over yet."""
        renewed = self._renewed
        return renewed is not None and self._clock() - renewed < HELD_SECONDS

    @property
    def trouble(self) -> str:
        """Why the last look at the Lease came to nothing; empty if it did not."""
        return self._trouble

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The Lease is let go, if it is ours and the server can be reached. For when nothing acts any more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._renewed = None
        try:
            self._let_go()
        except DynamigError as error:
            log.warning("lease_not_released", code=error.code, error=str(error))

    def step(self) -> None:
        """One look at the Lease, and what follows. Raises what the API server answers; Conflict: somebody else won."""
        lease = self._lease.read()
        before = self._clock()  # of the write: what counts for us must begin before it does for others
        seen = self._seen = sighted(self._seen, lease, before)
        step = next_step(seen, self._identity, before)
        if step is Step.WAIT:
            self._renewed = None
            return
        spec = written(seen, self._identity, self._wall())
        if lease is None:
            self._lease.create(spec)
        else:
            self._lease.replace(lease, spec)
        self._renewed = before

    def _let_go(self) -> None:
        lease = self._lease.read()
        seen = sighted(None, lease, self._clock())
        if lease is not None and seen.holder == self._identity:
            self._lease.replace(lease, cleared(seen, self._wall()))

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.step()
                self._trouble = ""
            except DynamigError as error:
                if not self._trouble:
                    log.warning("lease_failed", code=error.code, error=str(error))
                self._trouble = f"{error.code} {error.what}"
            except Exception as bug:
                log.exception("lease_bug")
                self._trouble = f"bug: {bug!r}"  # `held` ends by itself
            self._stopping.wait(RENEW_EVERY)
