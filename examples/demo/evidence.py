"""What the checks are given and what they answer: moments of the story, and claims about them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from examples.demo.seen import GpuSeen, Moment


@dataclass(frozen=True, slots=True)
class Check:
    """`claims`: what must hold. `sources`: who was asked. `seen`: what they said."""

    claims: str
    sources: str
    seen: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """`full`: pipeline and evaluate wait. `later`: pipeline runs, `pod_waited_s` after simulate was told to end.
    `last`: evaluate runs, `job_waited_s` after the pods that shared a GPU were told to end. `end`: all are gone.
    `looks`: what native jobs saw of their GPU, every second."""

    full: Moment
    later: Moment
    last: Moment
    end: Moment
    pod_waited_s: float
    job_waited_s: float
    looks: Mapping[str, Sequence[GpuSeen]]

    @property
    def moments(self) -> tuple[Moment, ...]:
        return self.full, self.later, self.last, self.end


Test = Callable[[Evidence], Check]


class Wrong(Exception):
    """What was seen is not what must be; the text says how."""


def check(claims: str, sources: str, look: Callable[[Evidence], str]) -> Test:
    """`look` returns what was seen, or raises Wrong with it."""

    def test(evidence: Evidence) -> Check:
        try:
            return Check(claims, sources, look(evidence), True)
        except Wrong as wrong:
            return Check(claims, sources, str(wrong), False)

    return test


def must(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Wrong(otherwise)
