"""Files that are whole at every instant and survive power loss once a call has returned."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

from dynamig.errors import Unavailable


def write_durably(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """`path` holds exactly `content`: a reader sees the old file or the new one, never a part.

    Cost: two fsyncs. Raises Unavailable JOURNAL_UNWRITABLE (disk full, read-only); then nothing has changed.
    """
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as out:
            temporary = out.name
            out.write(content)
            out.flush()
            os.fchmod(out.fileno(), mode)
            os.fsync(out.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def remove_durably(path: Path) -> None:
    """`path` is not there, now and after a power loss."""
    try:
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error


def keep_beside(path: Path) -> Path | None:
    """What is at `path` has a second name beside it, which outlives whatever replaces it; None if nothing is there.

    Idempotent: what was kept before keeps its name. One process only. Raises Unavailable JOURNAL_UNWRITABLE.
    """
    if not path.exists():
        return None
    names = (f"{path.name}.damaged{f'-{number}' if number > 1 else ''}" for number in itertools.count(1))
    try:
        kept = next(k for k in map(path.with_name, names) if not k.exists() or k.samefile(path))
        if not kept.exists():
            os.link(path, kept)
        sync_directory(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    return kept


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> Unavailable:
    return Unavailable(
        "JOURNAL_UNWRITABLE", f"{path}: {error.strerror}", "free space on it or make it writable; nothing was done"
    )
