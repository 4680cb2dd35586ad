"""Start one daemon: in this machine's namespaces, in another process's, or in new ones. Run as a script.

Reads one JSON object from standard input (see `Order`), answers with exit status 0, or 1 and a line on standard
error. It is a program of its own, with one thread and nothing imported from the lab, because setns(2) and fork(2)
must not happen in a process that may have threads (the lab has: progress bars, gRPC).

A daemon never runs unrecorded: the child waits on a pipe until its identity (pid, start time, boot id) is on disk
under its final name, and gives up if this program dies before. The record's pid is the one seen from outside of the
daemon's pid namespace, so the lab can always signal it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import NoReturn, TypedDict

CLONE_NEWNS = 0x00020000  # linux/sched.h
CLONE_NEWPID = 0x20000000
MS_REC_PRIVATE = 0x4000 | 0x40000  # linux/mount.h: MS_REC | MS_PRIVATE

libc = ctypes.CDLL(None, use_errno=True)


class Order(TypedDict):
    """`join`: [pid, start time] of a process whose mount and pid namespaces to enter; `new`: make fresh ones."""

    record: str
    log: str
    argv: list[str]
    env: dict[str, str]
    join: list[int] | None
    new: bool
    note: dict[str, object]


def checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def start_time(proc: int, pid: int) -> int:
    """Field 22 of /proc/PID/stat, clock ticks since boot. `proc` is an open /proc of the lab's own pid namespace."""
    stat = os.open(f"{pid}/stat", os.O_RDONLY, dir_fd=proc)
    try:
        return int(os.read(stat, 4096).rpartition(b")")[2].split()[19])
    finally:
        os.close(stat)


def enter(proc: int, order: Order) -> None:
    """Make the next fork land in the namespaces that the order asks for."""
    if order["join"] is not None:
        pid, started = order["join"]
        target = os.pidfd_open(pid)
        if start_time(proc, pid) != started:
            raise ProcessLookupError(f"process {pid} is not the one that was recorded")
        checked(libc.setns(target, CLONE_NEWNS | CLONE_NEWPID), "setns")
    elif order["new"]:
        checked(libc.unshare(CLONE_NEWNS | CLONE_NEWPID), "unshare")
        checked(libc.mount(None, b"/", None, MS_REC_PRIVATE, None), "make / private")


def become(order: Order, log: int, go: int, failed: int) -> NoReturn:
    """Wait for the record to be written, then be the daemon. Ends quietly if the starter died meanwhile."""
    if os.read(go, 1) != b"g":
        os._exit(1)
    try:
        os.setsid()
        os.umask(0o022)
        os.chdir("/")
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        os.write(failed, f"{order['argv'][0]}: {error}".encode())
    os._exit(127)


def write_record(folder: int, name: str, record: dict[str, object]) -> None:
    """Leave the whole record under `name` in `folder`, or the old one."""
    temporary = f".{name}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(os.open(temporary, flags, 0o644, dir_fd=folder), "w") as file:
        json.dump(record, file)
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def spawn(order: Order) -> None:
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)  # opened before setns: the other side has another /proc
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    folder = os.open(os.path.dirname(order["record"]), os.O_RDONLY | os.O_DIRECTORY)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    enter(proc, order)
    go_read, go_write = os.pipe()
    failed_read, failed_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go_write)
        become(order, log, go_read, failed_write)
    os.close(failed_write)
    identity = {"pid": child, "start": start_time(proc, child), "boot": boot}
    write_record(folder, os.path.basename(order["record"]), {**order["note"], **identity})
    os.write(go_write, b"g")
    if error := os.read(failed_read, 4096):  # end of file: exec closed the pipe, the daemon runs
        raise OSError(error.decode())


if __name__ == "__main__":
    try:
        spawn(json.load(sys.stdin))
    except OSError as error:
        sys.exit(f"cannot start: {error}")
