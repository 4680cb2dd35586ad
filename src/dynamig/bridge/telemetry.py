"""Metrics of the bridge (docs/reference/bridge-metrics.md): what it did, and what it found at its last look."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from dynamig.bridge.actions import Action, Cancel
from dynamig.bridge.world import World
from dynamig.protocol.identity import Role
from dynamig.protocol.slurm_jobs import JobState

LIVING = (JobState.PENDING, JobState.RUNNING)
OUTCOMES = ("complete", "kubernetes", "slurm", "actions", "bug")
"""How a look ends: `turns.Turns`."""

ACTION_OUTCOMES = ("done", "conflict", "failed")
"""What comes of an action: `errands.Errands`."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What one picture has. `holds`: by state; `bare`: claims that live without a Slurm job, `bare_age`: seconds of the
    one that has longest, 0 if there is none; `unhealthy`: GPUs of Slurm's nodes that do not answer, or not for
    long enough."""

    holds: dict[JobState, int]
    ballast: int
    bare: int
    bare_age: float
    unhealthy: int = 0


def counts(world: World) -> Counts:
    living = [j for j in world.jobs if j.living]
    of_holds = [j.state for j in living if j.identity.role is Role.HOLD]
    attempts = [c.attempt for c in world.claims.values() if c.attempt is not None]
    since = [a.bare_since for a in attempts if a.bare_since is not None]
    return Counts(
        holds={state: of_holds.count(state) for state in LIVING},
        ballast=sum(j.identity.role is Role.BALLAST for j in living),
        bare=len(since),
        bare_age=world.now - min(since) if since else 0.0,
        unhealthy=sum(len(node.slurm_outages) for node in world.nodes.values()),
    )


class Metrics:
    """`registry`: where they are exported from. All series are there from the start, so that a rate sees the first
    event."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._leading = Gauge("dynamig_bridge_leading", "1 on the bridge that acts", registry=registry)
        self._looks = Counter("dynamig_bridge_looks", "Looks by how they ended", ["outcome"], registry=registry)
        self._seconds = Histogram(
            "dynamig_bridge_look_duration_seconds",
            "Seconds of one look, actions included",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=registry,
        )
        self._actions = Counter(
            "dynamig_bridge_actions", "Actions by kind and what came of them", ["kind", "outcome"], registry=registry
        )
        self._wrong_picks = Counter(
            "dynamig_bridge_wrong_picks",
            "Holds that Slurm started on a GPU where their set has no place",
            registry=registry,
        )
        self._holds = Gauge("dynamig_bridge_holds", "Living holds by state in Slurm", ["state"], registry=registry)
        self._ballast = Gauge("dynamig_bridge_ballast_jobs", "Living ballast jobs", registry=registry)
        self._bare = Gauge("dynamig_bridge_bare_claims", "Claims that live without a Slurm job", registry=registry)
        self._bare_age = Gauge(
            "dynamig_bridge_bare_claims_oldest_age_seconds",
            "How long the claim that has been bare longest is bare; 0 if none is",
            registry=registry,
        )
        self._unhealthy = Gauge(
            "dynamig_bridge_unhealthy_gpus",
            "GPUs of Slurm's nodes that do not answer their driver, or not for long enough",
            registry=registry,
        )
        self._put_off = Gauge(
            "dynamig_bridge_failing_subjects",
            "Claim sets, jobs and nodes with an action that failed and waits to be tried again",
            registry=registry,
        )
        self._unreachable = Gauge(
            "dynamig_bridge_slurm_unreachable", "1 while Slurm could not be asked at the last look", registry=registry
        )
        for outcome in OUTCOMES:
            self._looks.labels(outcome)
        for kind, outcome in product(get_args(Action), ACTION_OUTCOMES):
            self._actions.labels(_snake(kind.__name__), outcome)
        self.leads(False)

    def leads(self, leading: bool) -> None:
        """On a bridge that stands by, what was found while it led says nothing any more."""
        self._leading.set(leading)
        if leading:
            return
        self._unreachable.set(0)
        self._put_off.set(0)
        self.found(Counts(dict.fromkeys(LIVING, 0), ballast=0, bare=0, bare_age=0.0))

    def found(self, seen: Counts) -> None:
        for state, number in seen.holds.items():
            self._holds.labels(state.value).set(number)
        self._ballast.set(seen.ballast)
        self._bare.set(seen.bare)
        self._bare_age.set(seen.bare_age)
        self._unhealthy.set(seen.unhealthy)

    def looked(self, outcome: str, seconds: float) -> None:
        self._looks.labels(outcome).inc()
        self._seconds.observe(seconds)
        if outcome in ("complete", "slurm"):
            self._unreachable.set(outcome == "slurm")

    def acted(self, action: Action, outcome: str) -> None:
        """`outcome`: one of ACTION_OUTCOMES."""
        self._actions.labels(_snake(type(action).__name__), outcome).inc()
        if isinstance(action, Cancel) and action.wrong_pick and outcome == "done":
            self._wrong_picks.inc()

    def failing(self, subjects: int) -> None:
        self._put_off.set(subjects)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
