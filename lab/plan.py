"""What is missing and in which order it is made: pure.

A lab is a set of steps. A step *needs* others to be there before it begins, and may *die with* others: a daemon
inside a machine is gone when the machine is, and a driver's devices when its kubelet starts anew. Taking the one step
then makes the other missing too, whatever was seen before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from dynamig.errors import InvariantBroken


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to have. `dies_with` is part of what it needs."""

    name: str
    needs: frozenset[str] = frozenset()
    dies_with: frozenset[str] = frozenset()

    @property
    def before(self) -> frozenset[str]:
        return self.needs | self.dies_with


def in_order(steps: Collection[Step]) -> tuple[Step, ...]:
    """Every step after all that it needs; otherwise as given.

    Raises: InvariantBroken for a step that needs itself, or one that does not exist.
    """
    by_name = {step.name: step for step in steps}
    for step in steps:
        if unknown := step.before - by_name.keys():
            raise InvariantBroken("UNKNOWN_STEP", f"{step.name} needs {', '.join(sorted(unknown))}")
    try:
        names = TopologicalSorter({s.name: sorted(s.before) for s in steps}).static_order()
        return tuple(by_name[name] for name in names)
    except CycleError as error:
        raise InvariantBroken("STEP_CYCLE", f"steps need each other: {error.args[1]}") from error


def missing(steps: Collection[Step], done: Collection[str]) -> tuple[Step, ...]:
    """The steps to take, in an order that works, given the names of those that are done.

    Each says all the missing steps that it has to wait for, also those it needs through a step that is done: a
    controller may stand while the server that it talks to, and through it we, has to be started again.
    """
    found: dict[str, Step] = {}
    waits_for: dict[str, frozenset[str]] = {}
    for step in in_order(steps):
        before = frozenset[str]().union(*({name} & found.keys() | waits_for[name] for name in step.before))
        waits_for[step.name] = before
        if step.name not in done or step.dies_with & found.keys():
            found[step.name] = Step(step.name, before, step.dies_with)
    return tuple(found.values())


def with_needs(steps: Collection[Step], wanted: Iterable[str]) -> tuple[Step, ...]:
    """The wanted steps and all that they need, directly or not."""
    by_name = {step.name: step for step in steps}
    todo, kept = list(wanted), set[str]()
    while todo:
        name = todo.pop()
        if name not in kept:
            kept.add(name)
            todo.extend(by_name[name].before)
    return tuple(step for step in steps if step.name in kept)
