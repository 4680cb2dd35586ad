"""The bridge of a cluster: watches, looks, decides, acts; again and again, from what is there and nothing else.

A look is skipped while a watch is not in step with the server or Slurm does not answer: what is not seen is not gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from lightkube import Client

from dynamig.bridge import look
from dynamig.bridge.act import Hands
from dynamig.bridge.actions import Action, Tell
from dynamig.bridge.choose import WorldChooser
from dynamig.bridge.config import BridgeConfig
from dynamig.bridge.decide import decide
from dynamig.bridge.news import passive
from dynamig.bridge.world import World
from dynamig.errors import Conflict, DynamigError, Refused, Unavailable
from dynamig.kube.cache import WatchedObjects
from dynamig.kube.client import (
    DeviceClass,
    Lease,
    Namespace,
    Node,
    Pod,
    ResourceClaim,
    ResourceSlice,
)
from dynamig.kube.sets import ApiSets
from dynamig.protocol.slurm_jobs import Jobs

log = structlog.get_logger(__name__)

LOOK_AT_LEAST = 1.0
"""Seconds between looks when nothing in Kubernetes changes: Slurm does not tell us, it is asked."""

LOOK_AT_MOST = 0.1
"""Seconds between looks when everything changes."""


class Bridge:
    """Runs until stopped. One per cluster: writes carry resourceVersions, so two would only fight, not corrupt."""

    def __init__(self, config: BridgeConfig, client: Client, jobs: Jobs) -> None:
        self._config = config
        self._jobs = jobs
        self._poked = threading.Event()
        self._stopping = threading.Event()
        self._hands = Hands(ApiSets(client, config.driver_name), jobs, config.driver_name, time.time)
        self._accounts = config.account_map()
        self._said = ""
        where = {
            Pod: "*",
            ResourceClaim: "*",
            Lease: config.namespace,
            ResourceSlice: None,
            DeviceClass: None,
            Namespace: None,
            Node: None,
        }
        self._watched: dict[Any, WatchedObjects] = {
            kind: WatchedObjects(client, kind, self._poked.set, namespace=namespace)
            for kind, namespace in where.items()
        }

    def run(self) -> None:
        for watched in self._watched.values():
            watched.start()
        log.info("bridge_running", driver=self._config.driver_name)
        while not self._stopping.is_set():
            self._poked.wait(LOOK_AT_LEAST)
            self._poked.clear()
            try:
                self._look()
            except DynamigError as error:
                log.warning("look_failed", code=error.code, error=str(error))
            self._stopping.wait(LOOK_AT_MOST)
        for watched in self._watched.values():
            watched.stop()
        log.info("bridge_stopped")

    def stop(self) -> None:
        self._stopping.set()
        self._poked.set()

    def _look(self) -> None:
        try:
            self._jobs.check_rights()
        except Refused as refused:
            self._stay_passive(refused)
            return
        self._said = ""
        for actions in decide(self._world(), self._chooser):
            self._act(actions)
            if any(not isinstance(a, Tell) for a in actions):
                self._poked.set()  # the next look sees what was done, and goes on from there

    def _chooser(self, world: World) -> WorldChooser:
        return WorldChooser(world, self._config.driver_name)

    def _act(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            try:
                self._hands.run(action)
            except Conflict as conflict:
                log.info("decided_anew", action=type(action).__name__, why=str(conflict))
                return
            except Refused as refused:  # the object's own trouble: others are none the worse for it
                log.warning("action_refused", action=type(action).__name__, code=refused.code, error=str(refused))
                return

    def _stay_passive(self, refused: Refused) -> None:
        """With a token that may not do all of it nothing is done in Slurm or to claims. It is said here once, and on
        every pod that waits; the token is read again at the next look."""
        if self._said != str(refused):
            log.error("bridge_passive", code=refused.code, error=str(refused))
            self._said = str(refused)
        objects = self._objects()
        pods = look.slurm_pods(objects[Pod], objects[Namespace], self._accounts)
        self._act(passive(pods.values(), str(refused)))

    def _objects(self) -> Mapping[Any, Sequence[Mapping[str, Any]]]:
        """What is watched, by kind. Raises Unavailable while a watch is not in step."""
        if behind := [kind.__name__ for kind, watched in self._watched.items() if not watched.synced]:
            raise Unavailable("API_UNAVAILABLE", f"not in step with the API server: {', '.join(behind)}")
        return {kind: list(watched.objects().values()) for kind, watched in self._watched.items()}

    def _world(self) -> World:
        objects = self._objects()
        return look.world(
            now=time.time(),
            driver=self._config.driver_name,
            pods=objects[Pod],
            namespaces=objects[Namespace],
            claims=objects[ResourceClaim],
            slices=objects[ResourceSlice],
            classes=objects[DeviceClass],
            leases={o["metadata"]["name"]: o for o in objects[Lease]},
            nodes=objects[Node],
            accounts=self._accounts,
            jobs=self._jobs.ours(),
            slurm_nodes=self._jobs.nodes(),
            slurm_started=self._jobs.started(),
        )
