"""Start one daemon: in this machine's namespaces, in another process's, or in new ones. Run as a script.

Reads one JSON object from standard input (see `Order`), answers with exit status 0, or 1 and a line on standard
error. It is a program of its own, with one thread and nothing imported from the lab, because setns(2) and fork(2)
must not happen in a process that may have threads (the lab has: progress bars, gRPC).

A daemon never runs unrecorded: it waits until its identity (pid, start time, boot id) is on disk under its final
name, and gives up if this program dies before. The recorded pid is the one seen from outside of the daemon's pid
namespace; the kernel translates it when the daemon introduces itself over a socket (unix(7), SCM_CREDENTIALS).

A daemon inside a machine is made by a second fork, whose parent is inside too and ends at once: so the machine's
first process inherits and reaps it. As a child of somebody outside it would stay a zombie until that somebody reaps,
and the kernel does not let a pid namespace end before; the first process of a container often never reaps.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
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


def become(order: Order, log: int, starter: socket.socket) -> NoReturn:
    """Introduce ourselves, wait for the record to be written, then be the daemon."""
    starter.send(b"here")
    if starter.recv(16) != b"go":
        os._exit(1)  # the starter died
    try:
        os.setsid()
        heed_all_signals()
        os.umask(0o022)
        os.chdir("/")
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        starter.send(f"{order['argv'][0]}: {error}".encode())
    os._exit(127)


def heed_all_signals() -> None:
    """What this interpreter (SIGPIPE) or its caller (nohup) ignores would stay ignored over exec."""
    for number in signal.valid_signals():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def sender_of_next(connection: socket.socket) -> int:
    """The pid, as this process sees it, of who sends the next message."""
    size = struct.calcsize("3i")
    message, ancillary, _, _ = connection.recvmsg(16, socket.CMSG_SPACE(size))
    if not message:
        raise OSError("the new process ended before it could be recorded")
    pid: int = struct.unpack("3i", ancillary[0][2][:size])[0]
    return pid


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
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    child = os.fork()
    if child == 0:
        ours.close()
        if order["join"] is not None and os.fork() != 0:
            os._exit(0)
        become(order, log, theirs)
    theirs.close()
    daemon = sender_of_next(ours)
    identity = {"pid": daemon, "start": start_time(proc, daemon), "boot": boot}
    write_record(folder, os.path.basename(order["record"]), {**order["note"], **identity})
    ours.send(b"go")
    if error := ours.recv(4096):  # nothing: exec closed the daemon's end, it runs
        raise OSError(error.decode())


if __name__ == "__main__":
    try:
        spawn(json.load(sys.stdin))
    except OSError as error:
        sys.exit(f"cannot start: {error}")
