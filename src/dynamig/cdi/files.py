"""Specification files in the CDI directory, one a claim: implements `protocol.ports.CdiFiles`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynamig.disk import remove_durably, write_durably


class SpecFiles:
    """Files named `<vendor>-<class>_<claim uid>.json`; nothing else in the directory is looked at."""

    def __init__(self, directory: Path, kind: str) -> None:
        self._directory = directory
        self._prefix = kind.replace("/", "-") + "_"

    def write(self, uid: str, spec: Mapping[str, Any]) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        write_durably(self._path(uid), json.dumps(spec, indent=1).encode(), mode=0o644)

    def remove(self, uid: str) -> None:
        if self._directory.is_dir():
            remove_durably(self._path(uid))

    def claims(self) -> Sequence[str]:
        paths = self._directory.glob(f"{self._prefix}*.json")
        return sorted(p.name.removeprefix(self._prefix).removesuffix(".json") for p in paths if p.is_file())

    def read(self, uid: str) -> Mapping[str, Any] | None:
        try:
            spec = json.loads(self._path(uid).read_bytes())
        except (OSError, ValueError):
            return None
        return spec if isinstance(spec, dict) else None

    def _path(self, uid: str) -> Path:
        return self._directory / f"{self._prefix}{uid}.json"
