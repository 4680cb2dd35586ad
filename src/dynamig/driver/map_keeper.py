"""Keeps the node's device map (PROTOCOL P6): on disk before it is used, unchanged while something was decided by it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import structlog

from dynamig.driver.loans import MapFile
from dynamig.errors import Refused, Unavailable
from dynamig.mig import GpuUuid
from dynamig.protocol.device_map import DeviceMap, Given, Source, make_map, next_map
from dynamig.protocol.gpus import GpuReading

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class InUse:
    """What lives on the node and may have been decided by a map."""

    lent: bool
    claimed: bool


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with the map; empty if nothing is. `closed`: so much that nothing new is lent or held by it."""

    what: str = ""
    closed: bool = False


class MapKeeper:
    """Thread safe. `given`: what administrators say now; it raises Unavailable as long as that is not known, and
    Refused for what cannot be read. `node`: the name in Slurm of a map that was kept without one."""

    def __init__(self, file: MapFile, node: str, given: Callable[[], Given], in_use: Callable[[], InUse]) -> None:
        self._file = file
        self._given = given
        self._in_use = in_use
        self._node = node
        self._lock = threading.Lock()
        kept = file.load()
        self._current = kept if kept is None or kept.slurm_node else replace(kept, slurm_node=node)
        self._trouble = Trouble()
        self._told_name = "" if self._current is None else self._current.slurm_node

    @property
    def current(self) -> DeviceMap | None:
        return self._current

    @property
    def slurm_node(self) -> str:
        """The node's name in Slurm."""
        return self._node if self._current is None else self._current.slurm_node

    @property
    def told_name(self) -> str:
        """The same, as administrators have told it; empty as long as that is not known."""
        return self._told_name

    @property
    def trouble(self) -> Trouble:
        """Why the map is not as it is wanted."""
        return self._trouble

    @contextmanager
    def pinned(self) -> Iterator[DeviceMap | None]:
        """The map, which does not change until the end of the block. What is written in it is `in_use` afterwards."""
        with self._lock:
            yield self._current

    def remap(self, readings: Iterable[GpuReading], unread: Mapping[GpuUuid, str]) -> bool:
        """The map is the one to go by now that the GPUs are `readings`, and `unread`, which do not answer; whether it,
        or what is wrong with it, is new.

        Raises Unavailable if the disk refuses it.
        """
        with self._lock:
            before = (self._current, self._trouble)
            self._say(self._remapped(tuple(readings), unread))
            return before != (self._current, self._trouble)

    def _remapped(self, readings: Collection[GpuReading], unread: Mapping[GpuUuid, str]) -> Trouble:
        try:
            given = self._given()
            self._told_name = given.slurm_node
            fresh = make_map(readings, given, self._current, unread)
        except Refused as error:
            return Trouble(str(error), closed=True)
        except Unavailable as error:  # the last map stays, and with it what was known to be wrong
            return self._trouble if self._current is not None else Trouble(str(error), closed=True)
        return self._choose(fresh, {r.uuid for r in readings})

    def _choose(self, fresh: DeviceMap, present: Collection[GpuUuid]) -> Trouble:
        use = self._in_use()
        if self._current is None and (use.lent or (use.claimed and self._file.damaged)):
            return Trouble("the last device map is lost, and a claim or loan that was decided by it lives", closed=True)
        chosen = next_map(self._current, fresh, busy=use.lent or use.claimed)
        if chosen != self._current:
            self._file.write(chosen)
            self._current = chosen
            log.info("device_map", source=chosen.source.value, slurm_node=chosen.slurm_node, gpus=_list(chosen))
        return _trouble(chosen, fresh, present)

    def _say(self, trouble: Trouble) -> None:
        if trouble.what and trouble != self._trouble:
            log.warning("device_map_trouble", what=trouble.what, closed=trouble.closed)
        self._trouble = trouble


def _trouble(chosen: DeviceMap, fresh: DeviceMap, present: Collection[GpuUuid]) -> Trouble:
    """A change that administrators want closes the node, so that it empties and the change can come. Minors that moved
    do not: who goes by device files is stopped at the loan (`DeviceMap.check_order`)."""
    by_minors = fresh.source is Source.MINORS is chosen.source and fresh.slurm_node == chosen.slurm_node
    wanted = f"device map {_list(fresh)} is wanted; it comes once no claim or loan lives here"
    if chosen != fresh and not by_minors:
        return Trouble(wanted, closed=True)
    if silent := sorted(set(chosen.gpus.values()) - set(present)):
        return Trouble(f"{', '.join(silent)} does not answer")
    return Trouble() if chosen == fresh else Trouble(wanted)


def _list(device_map: DeviceMap) -> str:
    return ", ".join(f"{i}: {gpu}" for i, gpu in device_map.gpus.items()) + f" of Slurm node {device_map.slurm_node}"
