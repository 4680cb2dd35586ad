"""The story: who comes, what is done, what has to have happened before it goes on."""

from __future__ import annotations

import time

from dynamig.cli.words import ranges
from examples.demo import cast
from examples.demo.checks import Evidence
from examples.demo.screen import Screen
from examples.demo.seen import Moment, Snapshot, Visible
from examples.demo.stage import Stage

WAITS_S = 3.0
"""How long the latecomer is watched before somebody makes room."""


def play(stage: Stage, screen: Screen) -> Evidence:
    """Everything up to the last pod's end; what was seen on the way."""
    for number, act in enumerate(cast.ACTS, start=1):
        _enter(stage, screen, number, act)
    number = len(cast.ACTS) + 1
    full = _wait(stage, screen, number)
    later, waited_s = _make_room(stage, screen, number + 1)
    return Evidence(full, later, waited_s, _leave(stage, screen, number + 2))


def _enter(stage: Stage, screen: Screen, number: int, act: cast.Act) -> None:
    screen.act(number, act.title, act.sentence)
    stage.apply(act.manifest)
    stage.until_running(role.pod for role in act.roles)
    for role in act.roles:
        _look_inside(stage, screen, role)


def _look_inside(stage: Stage, screen: Screen, role: cast.Role) -> None:
    for container in role.sees:
        where = f"{role.pod}/{container}" if len(role.sees) > 1 else role.pod
        screen.line(f"{where} sees {told(stage.inside(role.pod, container))}")


def told(inside: Visible) -> str:
    """What a container sees, in words."""
    if inside.mig:
        listed = ", ".join(f"{uuid} ({device.profile})" for uuid, device in inside.mig.items())
        return f"{len(inside.mig)} MIG device{'s' if len(inside.mig) > 1 else ''}: {listed}"
    return f"{len(inside.gpus)} full GPU{'s' if len(inside.gpus) != 1 else ''}: {', '.join(inside.gpus) or '-'}"


def _wait(stage: Stage, screen: Screen, number: int) -> Moment:
    """The latecomer waits for a reason that the scheduler gives, and goes on waiting."""
    screen.act(number, cast.WAITING.title, cast.WAITING.sentence)
    stage.apply(cast.WAITING.manifest)
    name = cast.LATECOMER.pod

    def waits(now: Snapshot) -> bool:
        pod = now.pod(name)
        return pod is not None and bool(pod.waits)

    stage.until(f"{name} told why it waits", waits, [name])
    stage.watch_for(WAITS_S)
    full = stage.moment()
    free = ", ".join(f"{g.name}: {ranges(g.free)}" for g in full.api.gpus if g.free)
    screen.line(f"free memory slices: {free or 'none'}; a 3g.40gb takes 0-3 or 4-7")
    return full


def _make_room(stage: Stage, screen: Screen, number: int) -> tuple[Moment, float]:
    """Training ends; seconds from there until the latecomer runs."""
    screen.act(
        number, "Somebody leaves", "Training ends, its GPU is cut, and the latecomer starts without being touched."
    )
    began = time.monotonic()
    stage.delete("pod", cast.TRAINING.pod)
    stage.until_running([cast.LATECOMER.pod])
    waited_s = time.monotonic() - began
    stage.forget(cast.TRAINING.pod)
    _look_inside(stage, screen, cast.LATECOMER)
    return stage.moment(), waited_s


def _leave(stage: Stage, screen: Screen, number: int) -> Moment:
    screen.act(number, "All leave", "Every instance is destroyed with the claim it was made for; the GPUs are empty.")
    stage.delete("pods,resourceclaims", "--all")
    pods = [role.pod for role in cast.ROLES]

    def empty(now: Snapshot) -> bool:
        claims = [name for name in now.claims.values() if name.startswith(f"{cast.NAMESPACE}/")]
        return not now.pods and not claims

    stage.until("all pods and claims gone", empty, pods)
    screen.line("no pod and no claim is left; looking at the GPUs and at the disks of the nodes")
    end = stage.settled()
    stage.remove()
    return end
