"""Things that take long to make and are the same for every lab: made once, kept outside the work tree.

`<cache>/<name>/<key>` exists only when it is complete: it is made under a temporary name and renamed. The key is a
hash of the recipe, so another version is another folder. A lock file per thing makes a second lab wait instead of
building the same again; whatever a killed build left behind is removed by the next one, which holds the lock and so
knows that nobody works on it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dynamig.errors import Unavailable
from lab.execute import Cancel


def cache_root(environ: Mapping[str, str]) -> Path:
    """$DYNAMIG_CACHE, else $XDG_CACHE_HOME/dynamig, else ~/.cache/dynamig."""
    if own := environ.get("DYNAMIG_CACHE"):
        return Path(own).resolve()
    if base := environ.get("XDG_CACHE_HOME"):
        return Path(base).resolve() / "dynamig"
    return Path.home() / ".cache" / "dynamig"


def digest(*parts: str | bytes) -> str:
    """Sixteen hex digits that change when any part, or the border between two parts, changes."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(f"{len(data)}:".encode() + data)
    return total.hexdigest()[:16]


@contextmanager
def locked(path: Path, cancel: Cancel, on_wait: Callable[[], None]) -> Iterator[None]:
    """Only one process at a time is inside the block; the kernel opens the lock when a process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        told = False
        while not _try_lock(file.fileno()):
            if not told:
                on_wait()
                told = True
            cancel.sleep(0.3)
        yield


@contextmanager
def locked_or_refused(path: Path, who: str) -> Iterator[None]:
    """Like `locked`, but raises Unavailable, naming `who`, instead of waiting."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        if not _try_lock(file.fileno()):
            raise Unavailable("LAB_IN_USE", who, "wait until it has ended")
        yield


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def cached(
    target: Path, build: Callable[[Path], None], cancel: Cancel, on_wait: Callable[[], None] = lambda: None
) -> Path:
    """`target` is there, complete. `build` fills the folder that it is given if it was not."""
    if target.exists():
        return target
    with locked(target.parent / f"{target.name}.lock", cancel, on_wait):
        if target.exists():
            return target
        temporary = target.parent / f".{target.name}.unfinished"
        if temporary.exists():
            shutil.rmtree(temporary)
        temporary.mkdir(parents=True)
        build(temporary)
        os.sync()  # a rename must not reach the disk before the files do
        temporary.rename(target)
    return target
