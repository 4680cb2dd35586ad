"""TCP ports of this machine: who listens (proc_pid_net_tcp(5)), and which lab has claimed which block.

A lab that is being built listens nowhere for minutes, so listening alone does not keep two labs apart. A claim is a
file, named after the block's first port, that holds the folder of its lab; it counts while that folder is a lab with
that block, so what a lost lab leaves behind is in nobody's way.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LISTEN = "0A"
CLAIMS = Path("/run/dynamig-lab")
UNDECIDED_S = 60.0
"""So long a new claim counts although its lab's folder is not written yet."""


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


def claim(base: int, root: Path) -> Path | None:
    """The block belongs to the lab in `root`; or, if another lab has it, that lab's folder is the answer."""
    file = CLAIMS / str(base)
    while True:
        CLAIMS.mkdir(exist_ok=True)
        mine = CLAIMS / f".{base}.{os.getpid()}"
        with suppress(FileNotFoundError):  # the folder went with the last claim of another lab: again
            mine.write_text(str(root))
            try:
                os.link(mine, file)  # like a rename, but never over an existing file
                return None
            except FileExistsError:
                owner = Path(file.read_text())
                if owner == root:
                    return None
                if _counts(file, owner, base):
                    return owner
                file.unlink()
            finally:
                mine.unlink(missing_ok=True)


def _counts(file: Path, owner: Path, base: int) -> bool:
    if time.time() - file.stat().st_mtime < UNDECIDED_S:
        return True
    try:
        return bool(json.loads((owner / "lab.json").read_text())["base_port"] == base)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


def release(root: Path) -> None:
    """The lab in `root` claims nothing."""
    for file in CLAIMS.glob("[0-9]*"):
        with suppress(FileNotFoundError):
            if file.read_text() == str(root):
                file.unlink()
    with suppress(OSError):  # not there, or other labs' claims are in it
        CLAIMS.rmdir()
