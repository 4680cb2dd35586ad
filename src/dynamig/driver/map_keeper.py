"""Keeps the node's device map (PROTOCOL P6): on disk before it is used, unchanged while something was decided by it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from dynamig.driver.loans import MapFile
from dynamig.errors import Refused
from dynamig.mig import GpuUuid
from dynamig.protocol.device_map import DeviceMap, make_map, next_map
from dynamig.protocol.gpus import GpuReading

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class InUse:
    """What lives on the node and may have been decided by a map."""

    lent: bool
    claimed: bool


class MapKeeper:
    """Thread safe. `given`: the administrator's map; None: by minors."""

    def __init__(self, file: MapFile, given: Mapping[int, GpuUuid] | None, in_use: Callable[[], InUse]) -> None:
        self._file = file
        self._given = given
        self._in_use = in_use
        self._lock = threading.Lock()
        self._current = file.load()
        self._trouble = ""

    @property
    def current(self) -> DeviceMap | None:
        return self._current

    @property
    def trouble(self) -> str:
        """Why the map is not as it is wanted; empty if it is."""
        return self._trouble

    @contextmanager
    def pinned(self) -> Iterator[DeviceMap | None]:
        """The map, which does not change until the end of the block. What is written in it is `in_use` afterwards."""
        with self._lock:
            yield self._current

    def remap(self, readings: Iterable[GpuReading]) -> None:
        """The map is the one to go by now that the GPUs are `readings`. Raises Unavailable if the disk refuses it."""
        try:
            fresh = make_map(readings, self._given)
        except Refused as error:
            self._say(str(error))
            return
        with self._lock:
            self._say(self._choose(fresh))

    def _choose(self, fresh: DeviceMap) -> str:
        """What is wrong with the map chosen, if anything."""
        use = self._in_use()
        if self._current is None and (use.lent or (use.claimed and self._file.damaged)):
            return "the last device map is lost, and a claim or loan that was decided by it lives"
        chosen = next_map(self._current, fresh, busy=use.lent or use.claimed)
        if chosen != self._current:
            self._file.write(chosen)
            self._current = chosen
            log.info("device_map", source=chosen.source.value, gpus={i: str(g) for i, g in chosen.gpus.items()})
        if chosen == fresh:
            return ""
        if len(fresh.gpus) < len(chosen.gpus):
            return f"{', '.join(sorted({*chosen.gpus.values()} - {*fresh.gpus.values()}))} does not answer"
        return f"{_list(fresh)} is wanted; it comes once no claim or loan lives here"

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("device_map_trouble", what=trouble)
        self._trouble = trouble


def _list(device_map: DeviceMap) -> str:
    return "device map " + ", ".join(f"{i}: {gpu}" for i, gpu in device_map.gpus.items())
