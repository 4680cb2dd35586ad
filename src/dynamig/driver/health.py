"""Which GPUs of the node are out of use because they do not answer, or have not answered for long enough since."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import structlog

from dynamig.disk import write_durably
from dynamig.driver.loans import UNREADABLE
from dynamig.errors import DynamigError, Unavailable
from dynamig.mig import GpuUuid
from dynamig.protocol.gpus import Gpus
from dynamig.protocol.outages import ALL_ANSWER, Outages, after_boot, next_outages, outages_from_json, outages_to_json

log = structlog.get_logger(__name__)


class OutageFile:
    """Outages on disk, so that a restart of the driver ends none. They are advice, and no record of anybody's: one that
    cannot be written is kept in memory only, and where they cannot be read each GPU is judged anew."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id

    def load(self) -> Outages:
        try:
            body = json.loads(self._path.read_bytes())
            outages = outages_from_json(body["outages"])
            return outages if body["bootId"] == self._boot_id else after_boot(outages)
        except FileNotFoundError:
            return {}
        except UNREADABLE as error:
            log.warning("outages_unreadable", path=str(self._path), error=str(error))
            return {}

    def write(self, outages: Outages) -> None:
        body = {"v": 1, "bootId": self._boot_id, "outages": outages_to_json(outages)}
        try:
            write_durably(self._path, json.dumps(body, indent=1).encode())
        except Unavailable as error:
            log.warning("outages_unwritable", error=str(error), effect="a restart of the driver forgets them")


class Health:
    """Of the GPUs of one node. `watch`: whole seconds that a GPU must answer without a break to be offered again;
    `wall`: seconds of the epoch. One thread looks."""

    def __init__(self, gpus: Gpus, file: OutageFile, watch: int, wall: Callable[[], float]) -> None:
        self._gpus = gpus
        self._file = file
        self._watch = watch
        self._wall = wall
        self._outages: Outages = file.load()

    @property
    def outages(self) -> Outages:
        return self._outages

    @property
    def silent(self) -> frozenset[GpuUuid]:
        """GPUs that did not answer at the last look."""
        return frozenset(gpu for gpu, outage in self._outages.items() if outage.silent)

    def look(
        self, known: Iterable[GpuUuid], answering: Collection[GpuUuid], unread: Mapping[GpuUuid, str] = ALL_ANSWER
    ) -> bool:
        """The outages are those of now; whether they changed. `known`: GPUs that the node has, as far as anybody was
        told; `answering`: those that were just read; `unread`: others that were asked, with what was heard."""
        present = {*known, *answering, *unread}
        before = {gpu: outage for gpu, outage in self._outages.items() if gpu in present}
        heard = {**self._why_silent(present - set(answering) - unread.keys()), **unread}
        now = next_outages(before, heard, int(self._wall()), self._watch)
        if now == self._outages:
            return False
        self._file.write(now)
        self._log(now)
        self._outages = now
        return True

    def _why_silent(self, gpus: Iterable[GpuUuid]) -> Mapping[GpuUuid, str]:
        """What is heard instead of a reading. One that answers now was only left out of NVML's list for a moment."""
        found: dict[GpuUuid, str] = {}
        for gpu in sorted(gpus):
            try:
                self._gpus.reading(gpu)
            except DynamigError as error:
                found[gpu] = error.code
        return found

    def _log(self, now: Outages) -> None:
        for gpu, outage in now.items():
            before = self._outages.get(gpu)
            if outage.silent and (before is None or not before.silent):
                log.warning("gpu_silent", gpu=gpu, heard=outage.heard, effect="its devices are tainted")
            elif not outage.silent and (before is None or before.silent):
                log.info("gpu_answers_again", gpu=gpu, effect=f"offered again if it goes on for {self._watch} s")
        for gpu in self._outages.keys() - now.keys():
            log.info("gpu_outage_over", gpu=gpu)
