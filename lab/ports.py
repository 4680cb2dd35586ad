"""Who listens on which TCP port of this machine (proc_pid_net_tcp(5))."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Holder:
    """`pid` is None when the owner of the socket cannot be seen from here (another pid namespace)."""

    inode: int
    pid: int | None = None
    command: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})" if self.pid else "a process that is not visible from here"


def parse_listeners(table: str) -> dict[int, int]:
    """Port -> socket inode of the listening sockets in a /proc/net/tcp or tcp6."""
    found = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTEN:
            found[int(fields[1].rpartition(":")[2], 16)] = int(fields[9])
    return found


def listeners() -> dict[int, Holder]:
    """Port -> holder, without owners: cheap."""
    inodes = dict[int, int]()
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):  # a kernel without IPv6
            inodes |= parse_listeners(Path(f"/proc/net/{name}").read_text())
    return {port: Holder(inode) for port, inode in inodes.items()}


def held(ports: Iterable[int]) -> dict[int, Holder]:
    """Those of the ports on which somebody listens, with who it is."""
    seen = listeners()
    wanted = {port: seen[port] for port in ports if port in seen}
    owners = _owners({holder.inode for holder in wanted.values()}) if wanted else {}
    return {port: owners.get(holder.inode, holder) for port, holder in wanted.items()}


def _owners(inodes: set[int]) -> dict[int, Holder]:
    targets = {f"socket:[{inode}]": inode for inode in inodes}
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it may end while we look
            for handle in (process / "fd").iterdir():
                if (inode := targets.get(os.readlink(handle))) is not None:
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[inode] = Holder(inode, int(process.name), command.strip()[:80])
    return found
