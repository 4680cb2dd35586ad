"""Loans and device map on disk: one file a lent GPU, named after it, so that a damaged one still says which GPU.

A damaged loan is kept as it is, and its GPU is fenced from both sides: somebody has it, and nobody knows who.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from dynamig.disk import remove_durably, sync_directory, write_durably
from dynamig.mig import GpuUuid
from dynamig.protocol.device_map import DeviceMap, map_from_json, map_to_json
from dynamig.protocol.loans import Loan, loan_from_json, loan_to_json

UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


class Loans(Protocol):
    """Loans on disk. `write` and `forget` return after the disk has it, or raise Unavailable."""

    def all(self) -> Mapping[GpuUuid, Loan]: ...
    def damaged(self) -> Mapping[GpuUuid, str]:
        """GPUs whose loan cannot be read, with the file's path."""
        ...

    def write(self, loan: Loan) -> None: ...
    def forget(self, gpu: GpuUuid) -> None: ...


class LoanFiles:
    """Loans under `directory`, cached in memory. Thread safe; one process only (the driver locks the folder).

    Raises Unavailable NEWER_JOURNAL at start for a loan that a newer dynamig wrote.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        sync_directory(directory.parent)
        self._directory = directory
        self._lock = threading.Lock()
        self._loans: dict[GpuUuid, Loan] = {}
        self._damaged: dict[GpuUuid, str] = {}
        for path in sorted(directory.glob("*.json")):
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            loan = loan_from_json(json.loads(path.read_bytes()))
            if loan.gpu != path.stem:
                raise ValueError(f"{path} speaks of {loan.gpu}")
        except UNREADABLE:
            self._damaged[GpuUuid(path.stem)] = str(path)
        else:
            self._loans[loan.gpu] = loan

    def all(self) -> Mapping[GpuUuid, Loan]:
        with self._lock:
            return dict(self._loans)

    def damaged(self) -> Mapping[GpuUuid, str]:
        return dict(self._damaged)

    def write(self, loan: Loan) -> None:
        write_durably(self._path(loan.gpu), json.dumps(loan_to_json(loan), indent=1).encode())
        with self._lock:
            self._loans[loan.gpu] = loan

    def forget(self, gpu: GpuUuid) -> None:
        remove_durably(self._path(gpu))
        with self._lock:
            self._loans.pop(gpu, None)

    def _path(self, gpu: GpuUuid) -> Path:
        return self._directory / f"{gpu}.json"


class MapFile:
    """The last good device map of one node. `damaged`: there is a file, and `load` could not read a map from it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damaged = False

    def load(self) -> DeviceMap | None:
        try:
            return map_from_json(json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return None
        except UNREADABLE:
            self.damaged = True
            return None

    def write(self, device_map: DeviceMap) -> None:
        write_durably(self._path, json.dumps(map_to_json(device_map), indent=1).encode())
