"""Bridges that lack one fence each, and a Slurm without the prolog: only to show what a fence is for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from lightkube import Client

from dynamig.bridge.act import Hands
from dynamig.bridge.actions import Verify
from dynamig.bridge.config import BridgeConfig
from dynamig.bridge.service import Bridge, Watched
from dynamig.bridge.world import World
from dynamig.kube.leader import Elector
from dynamig.kube.sets import ApiSets
from dynamig.protocol import names
from dynamig.protocol.identity import JobKey
from dynamig.protocol.slurm_jobs import HoldRequest, Job, Jobs
from dynamig.protocol.times import to_rfc3339
from lab.lab import Lab
from lab.slurm import config
from lab.slurm.daemons import etc
from lab.spec import CONTROL
from tests.e2e.cluster import until


class OnlyTold:
    """Without P2: only those jobs are known whose ids Slurm's answers told. Everything else is the real thing's."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._told: set[JobKey] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    def submit(self, request: HoldRequest) -> JobKey:
        key = self._jobs.submit(request)
        self._told.add(key)
        return key

    def ours(self) -> Sequence[Job]:
        return [job for job in self._jobs.ours() if job.key in self._told]


def without_identity(config: BridgeConfig, client: Client, jobs: Jobs, elector: Elector) -> Bridge:
    return Bridge(config, client, cast(Jobs, OnlyTold(jobs)), elector)


class Credulous(Hands):
    """Without P5: the word that a set was verified is written without a look at the others."""

    def _verify(self, action: Verify) -> None:
        for claim in action.of.claims:
            self._objects.note(claim.view, {names.VERIFIED: to_rfc3339(self._wall())})


class WithoutVerify(Bridge):
    def __init__(self, config: BridgeConfig, client: Client, jobs: Jobs, elector: Elector) -> None:
        super().__init__(config, client, jobs, elector)
        objects = ApiSets(client, config.driver_name)
        self._hands = Credulous(objects, jobs, config.driver_name, time.time)


class WithoutReport(Bridge):
    """Without P4: every node is taken to report that nothing of ours lives there."""

    def _world(self, objects: Watched) -> World:
        world = super()._world(objects)
        return replace(world, nodes={n: replace(node, claims=frozenset()) for n, node in world.nodes.items()})


PROLOGS = ("Prolog", "TaskProlog")


@contextmanager
def without(lab: Lab, *settings: str) -> Iterator[None]:
    """In the block slurm.conf lacks these settings. Without PROLOGS native jobs start whatever lives on their GPUs."""
    lines = tuple(f"{setting}=" for setting in settings)
    paths = [etc(lab.layout, machine) / config.SLURM_CONF for machine in (CONTROL, *lab.nodes)]
    whole = [path.read_text() for path in paths]
    try:
        for path, text in zip(paths, whole, strict=True):
            path.write_text("".join(f"{line}\n" for line in text.splitlines() if not line.startswith(lines)))
        _reconfigure(lab, settings, there=False)
        yield
    finally:
        for path, text in zip(paths, whole, strict=True):
            path.write_text(text)
        _reconfigure(lab, settings, there=True)


def _reconfigure(lab: Lab, settings: Sequence[str], *, there: bool) -> None:
    """Controller and nodes go by the files as they are now. The controller starts anew for that."""
    lab.slurm("scontrol", "reconfigure")

    def as_wanted() -> None:
        told = [line for line in lab.slurm("scontrol", "show", "config").splitlines() if "(null)" not in line]
        for setting in settings:
            assert any(line.startswith((f"{setting} ", f"{setting}[0]")) for line in told) is there, told

    until(as_wanted)
