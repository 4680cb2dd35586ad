"""What the bridge says of itself to a supervisor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynamig.bridge.health import ALIVE, FRESH_LOOK, Health, LookFailed, Trouble, asking
from dynamig.errors import InvariantBroken, Unavailable

NOW = 1000.0
SLURM = Trouble("Slurm", "SLURM_UNAVAILABLE", "jobs: connection refused", 1_800_014_591.0)
STANDING_BY = Health(turned=NOW)
LEADING = replace(STANDING_BY, leading=True, completed=NOW)


@pytest.mark.parametrize(
    ("health", "why"),
    [
        (STANDING_BY, ""),
        (LEADING, ""),
        (replace(LEADING, completed=NOW - FRESH_LOOK, trouble=SLURM), ""),
        (
            replace(LEADING, completed=NOW - FRESH_LOOK - 1, trouble=SLURM),
            "Slurm: SLURM_UNAVAILABLE jobs: connection refused, since 12:03:11 UTC",
        ),
        (replace(LEADING, completed=None), "leading, and no look is complete yet"),
        (replace(LEADING, bugs=1, trouble=replace(SLURM, where="bug")), "bug: "),
        (replace(STANDING_BY, behind=("Pod", "Lease")), "Kubernetes: not in step with the API server: Pod, Lease"),
        (replace(STANDING_BY, election="FORBIDDEN may not update"), "Lease: FORBIDDEN may not update"),
        (replace(LEADING, election="API_UNAVAILABLE away", behind=("Pod",)), ""),
        (replace(LEADING, turned=NOW - ALIVE - 1), "the loop has stood still for 121 s"),
    ],
)
def test_ready_or_why_not(health: Health, why: str) -> None:
    told = health.not_ready(NOW)
    assert told.startswith(why)
    assert bool(told) is bool(why)


def test_alive_as_long_as_the_loop_turns_whatever_fails() -> None:
    failing = replace(LEADING, completed=None, trouble=SLURM, behind=("Pod",), bugs=3)
    assert failing.not_live(NOW + ALIVE) == ""
    assert failing.not_live(NOW + ALIVE + 1)


def test_an_error_says_where_it_came_from_and_a_bug_is_none_of_them() -> None:
    with pytest.raises(LookFailed) as failed, asking("Slurm"):
        raise Unavailable("SLURM_UNAVAILABLE", "jobs")
    assert (failed.value.where, failed.value.error.code) == ("Slurm", "SLURM_UNAVAILABLE")
    with pytest.raises(InvariantBroken), asking("Slurm"):
        raise InvariantBroken("I5", "books disagree")
