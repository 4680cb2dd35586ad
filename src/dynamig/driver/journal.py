"""The driver's journal: one JSON file per claim, each replaced as a whole. Implements `protocol.ports.Journal`.

Separate files, so that claims on different GPUs never wait for each other's fsync, and so that one damaged file
costs the proof of one claim only: it is kept for a person to read, and what it owned is quarantined.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from dynamig.disk import keep_beside, remove_durably, sync_directory, write_durably
from dynamig.errors import Refused
from dynamig.protocol.records import ClaimRecord, from_json, to_json


class FileJournal:
    """Records under `directory`, cached in memory. Thread safe; one process only (the driver locks the folder)."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        sync_directory(directory.parent)
        self._directory = directory
        self._lock = threading.Lock()
        self._records: dict[str, ClaimRecord] = {}
        self._unreadable: dict[str, str] = {}
        for path in sorted(directory.glob("*.json")):
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            record = from_json(json.loads(path.read_bytes()))
            if record.ref.uid != path.stem:
                raise ValueError(f"{path} tells of claim {record.ref.uid}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self._unreadable[path.stem] = str(path)
        else:
            self._records[record.ref.uid] = record

    def records(self) -> Mapping[str, ClaimRecord]:
        with self._lock:
            return dict(self._records)

    def unreadable(self) -> Mapping[str, str]:
        with self._lock:
            return dict(self._unreadable)

    def write(self, record: ClaimRecord) -> None:
        if (path := self.unreadable().get(record.ref.uid)) is not None:
            raise Refused(
                "JOURNAL_DAMAGED",
                f"{path} is not readable and is kept as it is: what claim {record.ref} has is not known",
                "see `dynamig driver plan` on the node, and docs/reference/by-hand.md",
            )
        self._put(record)

    def restore(self, record: ClaimRecord) -> str | None:
        """Linked before it is replaced: whoever dies between has the damaged record as before, not none."""
        damaged = record.ref.uid in self.unreadable()
        kept = keep_beside(self._path(record.ref.uid)) if damaged else None
        self._put(record)
        return None if kept is None else str(kept)

    def _put(self, record: ClaimRecord) -> None:
        write_durably(self._path(record.ref.uid), json.dumps(to_json(record), indent=1).encode())
        with self._lock:
            self._records[record.ref.uid] = record
            self._unreadable.pop(record.ref.uid, None)

    def forget(self, uid: str) -> None:
        remove_durably(self._path(uid))
        with self._lock:
            self._records.pop(uid, None)

    def _path(self, uid: str) -> Path:
        return self._directory / f"{uid}.json"
