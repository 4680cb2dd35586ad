"""What the bridge says of itself to whoever supervises it: is it alive, is it ready, and if not, why. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from dynamig.errors import Conflict, Refused, Unavailable

FRESH_LOOK = 30.0
"""Seconds for which a complete look makes a leader ready."""

ALIVE = 120.0
"""Seconds for which the loop may stand still: one action is a few requests, each with its timeout of 8 to 15."""


class LookFailed(Exception):
    """A look came to nothing. `where`: `Kubernetes`, `Slurm`, or `actions` where single actions failed alike."""

    def __init__(self, where: str, error: Unavailable | Refused | Conflict) -> None:
        super().__init__(where, error)
        self.where = where
        self.error = error


@contextmanager
def asking(where: str) -> Iterator[None]:
    """Errors in the block are those of a look that asked there."""
    try:
        yield
    except (Unavailable, Refused, Conflict) as error:
        raise LookFailed(where, error) from error


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why looks fail. `since`: seconds of the epoch."""

    where: str
    code: str
    what: str
    since: float

    def __str__(self) -> str:
        return f"{self.where}: {self.code} {self.what}, since {datetime.fromtimestamp(self.since, UTC):%H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class Health:
    """Of the loop, as it last told. `turned`, `completed`: when it last did anything, and last completed a look, by the
    clock; `behind`: watches that are not in step; `election`: why the Lease cannot be read or written; `bugs`: looks in
    a row that ended in an error nobody expected."""

    turned: float
    leading: bool = False
    behind: tuple[str, ...] = ()
    election: str = ""
    completed: float | None = None
    trouble: Trouble | None = None
    bugs: int = 0

    def not_live(self, now: float) -> str:
        """Why it should be killed; empty if it is alive."""
        still = now - self.turned
        return f"the loop has stood still for {still:.0f} s" if still > ALIVE else ""

    def not_ready(self, now: float) -> str:
        """Why it does not do its work; empty if it does, or stands by and could take over at once."""
        if not_live := self.not_live(now):
            return not_live
        if not self.leading:
            return self._cannot_follow()
        if self.bugs or self.completed is None or now - self.completed > FRESH_LOOK:
            return str(self.trouble) if self.trouble else "leading, and no look is complete yet"
        return ""

    def _cannot_follow(self) -> str:
        if self.behind:
            return f"Kubernetes: not in step with the API server: {', '.join(self.behind)}"
        return f"Lease: {self.election}" if self.election else ""
