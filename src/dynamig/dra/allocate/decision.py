"""The answer of the allocator: devices for every request, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass

from dynamig.dra.allocate.claims import DeviceId
from dynamig.dra.allocate.policy import Score


@dataclass(frozen=True, slots=True)
class Pick:
    """One device for a request (`request/alternative` for an alternative). `admin`: it does not become in use."""

    request: str
    device: DeviceId
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices for every claim, in the order of claims and requests. `steps`: devices that were tried."""

    node: str
    picks: tuple[tuple[Pick, ...], ...]
    score: Score
    steps: int

    @property
    def held(self) -> frozenset[DeviceId]:
        """What becomes in use."""
        return frozenset(pick.device for picks in self.picks for pick in picks if not pick.admin)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why this node cannot serve the claims, for the person who wrote them.

    `code`: NO_ROOM, where devices match; NO_MATCH, where none does; UNKNOWN_CLASS, TOO_MANY_DEVICES, SELECTOR_FAILS,
    CONSTRAINT_BREAKS_ALL, POOL_UPDATING, POOL_INVALID; POOL_UNSUPPORTED; SEARCH_LIMIT. `fatal`: kube-scheduler would
    give up the whole attempt here and not look at other nodes.
    """

    code: str
    what: str
    next_step: str = ""
    fatal: bool = False

    def __str__(self) -> str:
        tail = f" - {self.next_step}" if self.next_step else ""
        return f"{self.what} [{self.code}]{tail}"
