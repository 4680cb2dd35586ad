"""Answers get lost, late or doubled, and daemons are killed, while pods come and go: nothing is lost, leaked or shared.

One story for all faults. While it is told, native jobs for whole nodes start in the gaps and look (`native.py`), and a
witness looks for overlapping claims (`witness.py`). `make test` tells it with one fault of each kind, `make slurm-soak`
with all of them; `DYNAMIG_SOAK=N` N times, the nth time with the faults at the nth write of each kind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from lab.lab import Lab
from tests.e2e.cluster import Cluster
from tests.slurm import faults
from tests.slurm.faults import Fault
from tests.slurm.proxied_bridge import Process
from tests.slurm.stage import Stage, staged
from tests.slurm.story import tell_the_story
from tests.slurm.writes import KUBERNETES, SLURM, order

ROUNDS = range(1, 1 + int(os.environ.get("DYNAMIG_SOAK", "1")))
LATE_S = 2.5


@pytest.fixture
def stage(lab: Lab, cluster: Cluster) -> Iterator[Stage]:
    with staged(lab, cluster) as made:
        yield made


def killed(stage: Stage) -> Callable[[], None]:
    assert isinstance(stage.bridge, Process)
    return stage.bridge.kill_and_start


def kill_and_start(lab: Lab, daemons: Sequence[str]) -> None:
    for daemon in daemons:
        if lab.pid(daemon) is not None:
            lab.kill(daemon)
    for daemon in daemons:
        lab.start(daemon)


EACH = (*SLURM, *KUBERNETES)
FAULTS: dict[str, tuple[Callable[[Stage], Fault], Sequence[str]]] = {
    "drop": (lambda stage: faults.drop, EACH),
    "delay": (lambda stage: faults.delay(LATE_S), EACH),
    "repeat": (lambda stage: faults.repeat, EACH),
    "kill-bridge-before": (lambda stage: faults.before(killed(stage)), ("submit", "allocate", "cancel")),
    "kill-bridge-after": (lambda stage: faults.after(killed(stage)), ("note", "submit", "verify", "end")),
}
"""Faults, and the kinds of writes that meet them. A bridge that was killed is followed after 15 s, so not all."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("nth", ROUNDS)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("drop", "kill-bridge-after") else pytest.mark.soak) for n in FAULTS]
)
def test_a_fault_of_writes(stage: Stage, name: str, nth: int) -> None:
    fault, writes = FAULTS[name]
    orders = {write: order(stage.proxies, write, fault(stage), nth=nth) for write in writes}
    tell_the_story(stage)
    met = [write for write, ordered in orders.items() if ordered.hits]
    assert nth > 1 or met == list(orders), "writes that did not happen in the story"


DAEMONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "driver": (("driver-n1", "driver-n2"), ("allocate", "comment", "release")),
    "slurmctld": (("slurmctld",), ("submit", "verify", "cancel")),
    "slurmd": (("slurmd-n1", "slurmd-n2"), ("submit", "ungate", "cancel")),
}
"""Daemons, and the writes of the bridge right after which they are killed."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("nth", ROUNDS)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "driver" else pytest.mark.soak) for n in DAEMONS])
def test_kill_9_of_a_daemon_after_a_write(stage: Stage, name: str, nth: int) -> None:
    daemons, writes = DAEMONS[name]
    kill = faults.after(partial(kill_and_start, stage.lab, daemons))
    orders = [order(stage.proxies, write, kill, nth=nth) for write in writes]
    tell_the_story(stage)
    assert nth > 1 or all(ordered.hits for ordered in orders)
