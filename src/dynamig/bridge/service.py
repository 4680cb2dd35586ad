"""The bridge of a cluster: watches, looks, decides, acts; again and again, from what is there and nothing else.

One of several leads (dynamig.kube.leader); the others keep their watches in step and do nothing. A look is skipped
while a watch is not in step with the server or Slurm does not answer: what is not seen is not gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from lightkube import Client
from prometheus_client import CollectorRegistry

from dynamig.bridge import look
from dynamig.bridge.act import Hands
from dynamig.bridge.actions import Action, Decision
from dynamig.bridge.choose import WorldChooser
from dynamig.bridge.config import BridgeConfig
from dynamig.bridge.decide import decide, expects_a_start
from dynamig.bridge.errands import Errands
from dynamig.bridge.failures import Failures
from dynamig.bridge.health import LookFailed, asking
from dynamig.bridge.http import Endpoint
from dynamig.bridge.news import passive
from dynamig.bridge.telemetry import Metrics, counts
from dynamig.bridge.turns import Turns
from dynamig.bridge.world import World
from dynamig.errors import Unavailable
from dynamig.kube.cache import WatchedObjects
from dynamig.kube.client import (
    DeviceClass,
    DeviceTaintRule,
    Lease,
    Namespace,
    Node,
    Pod,
    ResourceClaim,
    ResourceSlice,
)
from dynamig.kube.leader import Elector
from dynamig.kube.sets import ApiSets
from dynamig.protocol.slurm_jobs import Jobs

log = structlog.get_logger(__name__)

LOOK_AT_LEAST = 1.0
"""Seconds between looks when nothing in Kubernetes changes: Slurm does not tell us, it is asked."""


LOOK_SOON = 0.1
"""The same while a hold was submitted just now, which Slurm starts within a second if it can."""


Watched = Mapping[Any, Sequence[Mapping[str, Any]]]
"""API objects by kind."""


class Bridge:
    """Runs until stopped, or until it finds a bug that does not pass."""

    def __init__(self, config: BridgeConfig, client: Client, jobs: Jobs, elector: Elector) -> None:
        self._config = config
        self._jobs = jobs
        self._elector = elector
        self._poked = threading.Event()
        self._expects_a_start = False
        self._stopping = threading.Event()
        self._watched = _watched(client, config.namespace, self._poked)
        registry = CollectorRegistry()
        self._metrics = Metrics(registry)
        self._accounts = config.account_map()
        self._hands = Hands(ApiSets(client, config.driver_name), jobs, config.driver_name, time.time)
        self._failures = Failures(time.monotonic)
        self._errands = Errands(self._run, self._failures, self._may_act, self._metrics.acted)
        self._turns = Turns(
            elector,
            behind=self._behind,
            take_over=self._take_over,
            look=self._look,
            told=self._metrics.looked,
            clock=time.monotonic,
            wall=time.time,
        )
        self._endpoint = None if config.listen is None else self._listen(config.listen, registry)

    def run(self) -> None:
        """Raises InvariantBroken if looks end in a bug again and again. The Lease is let go after the last action."""
        if self._endpoint is not None:
            self._endpoint.start()
        for watched in self._watched.values():
            watched.start()
        self._elector.start()
        log.info("bridge_running", driver=self._config.driver_name, listen=self._config.listen)
        try:
            while not self._stopping.is_set():
                rest = self._turns.turn()
                self._metrics.leads(self._turns.health.leading)
                self._stopping.wait(rest)
                self._poked.wait(LOOK_SOON if self._expects_a_start else LOOK_AT_LEAST)
                self._poked.clear()
        finally:
            self._end()

    def stop(self) -> None:
        self._stopping.set()
        self._poked.set()

    def _end(self) -> None:
        for watched in self._watched.values():
            watched.stop()
        self._elector.stop()
        if self._endpoint is not None:
            self._endpoint.stop()
        log.info("bridge_stopped")

    def _listen(self, at: str, registry: CollectorRegistry) -> Endpoint:
        turns = self._turns
        return Endpoint(
            at,
            not_ready=lambda: turns.health.not_ready(time.monotonic()),
            not_live=lambda: turns.health.not_live(time.monotonic()),
            registry=registry,
        )

    def _behind(self) -> Sequence[str]:
        return [kind.__name__ for kind, watched in self._watched.items() if not watched.synced]

    def _take_over(self) -> None:
        """Nothing is decided from a picture that is older than the lead: whoever led before may have acted since."""
        with asking("Kubernetes"):
            for watched in self._watched.values():
                watched.refresh()

    def _look(self) -> None:
        """Without Slurm, or with a token that may not do all of it, nothing is done there or to claims; pods that wait
        are told. The token is read again at the next look."""
        objects = self._objects()
        try:
            with asking("Slurm"):
                self._jobs.check_rights()
                world = self._world(objects)
        except LookFailed as failed:
            pods = look.slurm_pods(objects[Pod], objects[Namespace], self._accounts).values()
            self._errands.carry_out(Decision(t.of.uid, (t,)) for t in passive(pods, failed.error))
            raise
        self._metrics.found(counts(world))
        self._expects_a_start = expects_a_start(world)
        decisions = decide(world, lambda w: WorldChooser(w, self._config.driver_name), self._failures.setback)
        if self._errands.carry_out(decisions):
            self._poked.set()  # the next look sees what was done, and goes on from there
        self._metrics.failing(self._failures.subjects)

    def _may_act(self) -> bool:
        """Whoever stops does not finish the look: its supervisor would not wait, and the Lease would not be let go."""
        return self._elector.held and not self._stopping.is_set()

    def _run(self, action: Action) -> None:
        self._turns.alive()
        self._hands.run(action)

    def _objects(self) -> Watched:
        if behind := self._behind():
            what = f"not in step with the API server: {', '.join(behind)}"
            raise LookFailed("Kubernetes", Unavailable("API_UNAVAILABLE", what))
        return {kind: list(watched.objects().values()) for kind, watched in self._watched.items()}

    def _world(self, objects: Watched) -> World:
        return look.world(
            now=time.time(),
            driver=self._config.driver_name,
            pods=objects[Pod],
            namespaces=objects[Namespace],
            claims=objects[ResourceClaim],
            slices=objects[ResourceSlice],
            rules=objects[DeviceTaintRule],
            classes=objects[DeviceClass],
            leases={o["metadata"]["name"]: o for o in objects[Lease]},
            nodes=objects[Node],
            accounts=self._accounts,
            jobs=self._jobs.ours(),
            slurm_nodes=self._jobs.nodes(),
            slurm_started=self._jobs.started(),
        )


def _watched(client: Client, namespace: str, poked: threading.Event) -> dict[Any, WatchedObjects]:
    where = {
        Pod: "*",
        ResourceClaim: "*",
        Lease: namespace,
        ResourceSlice: None,
        DeviceTaintRule: None,
        DeviceClass: None,
        Namespace: None,
        Node: None,
    }
    return {
        kind: WatchedObjects(client, kind, poked.set, namespace=found, may_be_absent=kind is DeviceTaintRule)
        for kind, found in where.items()
    }
