"""The node file: read as one picture, changed under the node lock by replacing it.

The library does the same from C; emulator/src/state.c explains why a reader needs no lock.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from dynamig.errors import Refused, Unavailable
from dynamig.testing.emulator import layout, sound

H = TypeVar("H", layout.NodeHead, layout.ModelsHead)
S = TypeVar("S", layout.Gpu, layout.Model)

MIG_CONFIG_CHANGE = 0x100  # nvmlEventMigConfigChange

BOOT_ID = "proc/sys/kernel/random/boot_id"

DIRTY = "state/tree.dirty"
"""There while files beside NVML may differ from the state (emulator/src/tree.c)."""


@dataclass(slots=True)
class Node:
    """A private copy of the node file: its head and its GPUs, as ctypes structures.

    Files of what ends with the change go in the order of emulator/src/tree.c: `told`, directories with access files,
    before it is committed; `had`, device nodes and lock files, after it.
    """

    head: layout.NodeHead
    gpus: list[layout.Gpu]
    told: list[Path] = field(default_factory=list)
    had: list[Path] = field(default_factory=list)

    def dump(self) -> bytes:
        return bytes(self.head) + b"".join(bytes(gpu) for gpu in self.gpus)


def read_node(directory: Path) -> Node:
    """Raises Refused NOT_A_NODE if the files are something else, cut short, damaged, or of another layout version."""
    models, data = read_models(directory), _read(directory, "node")
    head = _head(layout.NodeHead, layout.NODE_MAGIC, data, directory, "state/node")
    gpus = _array(layout.Gpu, head.gpu_count, data, ctypes.sizeof(head), directory, "state/node")
    _refuse(sound.wrong_in_node(head, gpus, models), directory, "state/node")
    return Node(head, gpus)


def read_models(directory: Path) -> list[layout.Model]:
    """The models in the order in which GPUs refer to them. Raises as `read_node`."""
    data = _read(directory, "models")
    head = _head(layout.ModelsHead, layout.MODELS_MAGIC, data, directory, "state/models")
    models = _array(layout.Model, head.count, data, ctypes.sizeof(head), directory, "state/models")
    _refuse(sound.wrong_in_models(models), directory, "state/models")
    return models


def _refuse(wrong: Iterator[str], directory: Path, name: str) -> None:
    if (first := next(wrong, None)) is not None:
        raise damaged(directory, f"{name}: {first}")


def _head(kind: type[H], magic: bytes, data: bytes, directory: Path, name: str) -> H:
    if len(data) < ctypes.sizeof(kind) or data[:8] != magic:
        raise damaged(directory, f"{name} does not begin as it must")
    head = kind.from_buffer_copy(data)
    if head.layout_version != layout.LAYOUT_VERSION:
        what = f"{name} has layout {head.layout_version} instead of {layout.LAYOUT_VERSION}"
        raise Refused("NOT_A_NODE", f"{directory} was made by another version: {what}", "remove it and init it anew")
    return head


def _array(kind: type[S], count: int, data: bytes, at: int, directory: Path, name: str) -> list[S]:
    step = ctypes.sizeof(kind)
    if len(data) != at + count * step:
        raise damaged(directory, f"{name} has {len(data)} bytes, of {at + count * step}")
    return [kind.from_buffer_copy(data, at + i * step) for i in range(count)]


@contextmanager
def changing(directory: Path) -> Iterator[Node]:
    """The node as it is, under the lock; what the block makes of it is the node afterwards, unless it raises.

    Killed at any point, the node is as before or as after. Only files of what ends may differ, and then the tree is
    marked: the library's next change puts it right, also what an earlier writer left so. The file of the boot id
    follows the state: a writer killed between the two leaves the old one, until the next change or look.
    Clients that wait for events are told of instances that are gone and of MIG modes that are others.
    """
    with locked(directory / "state" / "lock"):
        node = read_node(directory)
        boot_id_follows(directory, node.head)
        before = [_mig_state(gpu) for gpu in node.gpus]
        already_dirty = (directory / DIRTY).exists()
        yield node
        node.head.revision += 1
        fresh = _written_beside(directory / "state" / "node", node.dump())  # what may fail comes first
        if node.told or node.had:
            (directory / DIRTY).touch()
        for path in node.told:
            shutil.rmtree(path, ignore_errors=True)
        fresh.replace(directory / "state" / "node")
        for path in node.had:
            path.unlink(missing_ok=True)
        boot_id_follows(directory, node.head)
        if not already_dirty:
            (directory / DIRTY).unlink(missing_ok=True)
        for event in _mig_changes(before, [_mig_state(gpu) for gpu in node.gpus]):
            append_event(directory, event)


def _mig_state(gpu: layout.Gpu) -> tuple[int, int]:
    """How many instances live, of both kinds, and the MIG mode."""
    return gpu.gi_count + gpu.ci_count, gpu.mig_current


def _mig_changes(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> Iterator[layout.Event]:
    """One for each instance that is gone and each mode that is another, as from the library's own calls."""
    for gpu, ((lived, mode), (live, mode_now)) in enumerate(zip(before, after, strict=True)):
        for _ in range(lived - live + (mode != mode_now)):
            yield layout.Event(type=MIG_CONFIG_CHANGE, gpu=gpu, gi_id=layout.NO_ID, ci_id=layout.NO_ID)


def boot_id_follows(directory: Path, head: layout.NodeHead) -> None:
    """/proc has the boot id of the state. The caller holds the node lock."""
    path, boot_id = directory / BOOT_ID, head.boot_id + b"\n"
    if path.read_bytes() != boot_id:
        replace(path, boot_id)


def boot_id_is_left_behind(directory: Path, head: layout.NodeHead) -> bool:
    """A reboot was killed before /proc had its boot id, or is not that far; and this process may write it."""
    path = directory / BOOT_ID
    may_mend = os.access(path.parent, os.W_OK) and os.access(directory / "state/lock", os.W_OK)
    return may_mend and path.read_bytes() != head.boot_id + b"\n"


def append_event(directory: Path, event: layout.Event) -> None:
    """Clients that wait get the event. The caller holds the node lock."""
    descriptor = os.open(directory / "state/events", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if torn := size % ctypes.sizeof(layout.Event):  # of a writer that died in the middle
            os.ftruncate(descriptor, size - torn)
        append(descriptor, bytes(event))
    finally:
        os.close(descriptor)


def append(descriptor: int, record: bytes) -> None:
    """The file ends with the record, whole; on a full disk it is as before, and OSError is raised."""
    end = os.fstat(descriptor).st_size
    os.lseek(descriptor, 0, os.SEEK_END)
    if os.write(descriptor, record) < len(record):
        os.ftruncate(descriptor, end)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """An exclusive flock on an existing file of DIR/state; the descriptor is open for reading and writing.

    Errors of the node's files leave the block as `files_of` has them.
    """
    with files_of(path.parents[1]):
        descriptor = _open_lock(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            _close_lock(descriptor)


def holders(path: Path) -> list[int]:
    """Pids with a shared flock on the file, which may be gone; see `shared_locks`."""
    return list(held_by(path, shared_locks()))


def shared_locks() -> Mapping[str, list[int]]:
    """Pids with a shared flock, by device and inode as /proc/locks names them; only of this pid namespace.

    Some file systems (btrfs, overlay) are named otherwise there than by stat: of their files nobody is found.
    """
    found: dict[str, set[int]] = {}
    for words in map(str.split, Path("/proc/locks").read_text().splitlines()):
        if words[1] == "FLOCK" and words[3] == "READ" and int(words[4]) > 0:
            found.setdefault(words[5], set()).add(int(words[4]))
    return {file: sorted(pids) for file, pids in found.items()}


def held_by(path: Path, locks: Mapping[str, list[int]]) -> tuple[int, ...]:
    """Who of `shared_locks` holds the file; nobody holds one that is gone."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return ()
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return tuple(locks.get(device, ()))


def is_locked(path: Path) -> bool:
    """Somebody has a flock on the file, shared or exclusive; nobody has one on a file that is gone."""
    try:
        descriptor = _open_lock(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        _close_lock(descriptor)
    return False


_lock_descriptors: set[int] = set()
_lock_descriptors_lock = threading.Lock()
"""Guards the set: while a descriptor is opened or closed, and over a fork."""


def _open_lock(path: Path, flags: int) -> int:
    with _lock_descriptors_lock:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        _lock_descriptors.add(descriptor)
    return descriptor


def _close_lock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # also of a copy that a child has
    with _lock_descriptors_lock:
        _lock_descriptors.remove(descriptor)
        os.close(descriptor)


def _forget_copies() -> None:
    """In the child of a fork: a lock is the parent's and ends with the parent (emulator/src/lock.c)."""
    for descriptor in _lock_descriptors:
        os.close(descriptor)
    _lock_descriptors.clear()
    _lock_descriptors_lock.release()


os.register_at_fork(
    before=_lock_descriptors_lock.acquire,
    after_in_parent=_lock_descriptors_lock.release,
    after_in_child=_forget_copies,
)


def replace(path: Path, content: bytes) -> None:
    """`path` holds `content`, and never anything in between. The caller holds the lock that makes this safe."""
    _written_beside(path, content).replace(path)


def _written_beside(path: Path, content: bytes) -> Path:
    """A file that may take the place of `path`."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)  # a killed writer's, who may have been another user
    fresh.write_bytes(content)
    fresh.chmod(0o644)  # whatever the umask is: containers and other users read it
    return fresh


def _read(directory: Path, name: str) -> bytes:
    with files_of(directory):
        return (directory / "state" / name).read_bytes()


@contextmanager
def files_of(directory: Path) -> Iterator[None]:
    """Errors of the node's files leave this block as Refused NOT_A_NODE, or Unavailable if they may not be touched."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _no_node(directory, error) from error
    except OSError as error:
        raise Unavailable("NODE_FILES", f"the emulated node {directory}: {reason(error)}", remedy(error)) from error


def _no_node(directory: Path, error: OSError) -> Refused:
    if (directory / "state" / "node").is_file():
        return damaged(directory, reason(error))
    make = f"dynamig emulator init {directory} --gpus ..."
    if not directory.exists():
        return Refused("NOT_A_NODE", f"there is no {directory.absolute()}", make)
    what = f"{directory} is not an emulated node"
    if directory.is_dir() and not any(directory.iterdir()):
        return Refused("NOT_A_NODE", what, make)
    return Refused("NOT_A_NODE", what, "name a directory that `dynamig emulator init` made, or init a new one")


def reason(error: OSError) -> str:
    """`Permission denied: '/x'`."""
    where = f": {str(error.filename)!r}" if error.filename is not None else ""
    return f"{error.strerror or error}{where}"


def remedy(error: OSError) -> str:
    """What to do about files that cannot be made, written or read."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room on its file system"
    if error.errno == errno.EROFS:
        return "its file system is mounted read-only: use the node where it can be written to"
    if error.errno in (errno.EACCES, errno.EPERM):
        return _right_to(Path(os.fsdecode(error.filename or "")))
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "a file is where a directory has to be, or somebody makes a node there too: choose another path"
    if error.errno in (errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP):
        return "no directory can be made there: choose another path"
    return "choose a directory on another file system, or see to this one"


def _right_to(path: Path) -> str:
    """What to do where the path may not be used: its nearest part that can be looked at tells whose it is."""
    for part in (path, *path.parents):
        try:
            owner = part.stat().st_uid
        except OSError:
            continue
        if owner == os.geteuid() and not os.access(part, os.R_OK | os.W_OK | (os.X_OK if part.is_dir() else 0)):
            return f"it is yours: chmod u+rwX {part}"
        if owner == os.geteuid():
            break
        return f"act as the owner of {part}, user {owner}, or choose a directory of yours"
    return "choose a directory of yours"


def damaged(directory: Path, what: str) -> Refused:
    """What `init` made is there, but not as it was made."""
    return Refused("NOT_A_NODE", f"{directory} is damaged: {what}", "remove it and init it anew")
