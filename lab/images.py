"""The lab's images; the one of a notebook is in `notebook.py`.

`lab.local/pause:1` keeps sandboxes. `lab.local/tool:1` has busybox and the dynamic loader with glibc, both from the
Debian root, so that programs linked against the emulated NVML run in it; `nvml-list` is among them when it has been
built. `lab.local/hostile:1` is the same with the environment of NVIDIA's CUDA images, which asks a container runtime
hook for every GPU of the node: what a driver must not let happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynamig.errors import Refused
from lab.cache import digest
from lab.commands import run
from lab.execute import Cancel
from lab.nodes import PAUSE_IMAGE
from lab.oci import Entry, Image
from lab.progress import Task

TOOL_IMAGE = "lab.local/tool:1"
HOSTILE_IMAGE = "lab.local/hostile:1"
ALL_GPUS = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
LIBRARY_FOLDER = "usr/lib/x86_64-linux-gnu"
"""Where the loader of this glibc looks without being told, and where the driver mounts libnvidia-ml.so.1."""

LOADER = "usr/lib64/ld-linux-x86-64.so.2"
LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1")
PAUSE_SOURCE = Path(__file__).parent / "images/pause.c"
GCC = ("gcc", "-O2", "-Wall", "-Wextra", "-static")


def pause_digest() -> str:
    return digest(*GCC, PAUSE_SOURCE.read_text())


def build_pause(folder: Path, task: Task, cancel: Cancel, log: Path) -> None:
    """The static program of pause.c is in `folder`."""
    run([*GCC, "-o", str(folder / "pause"), str(PAUSE_SOURCE)])


def pause_image(pause: Path) -> Image:
    return Image(PAUSE_IMAGE, (Entry("pause", (pause / "pause").read_bytes()),), entrypoint=("/pause",))


def tool_images(debian: Path, nvml_list: Path | None) -> tuple[Image, Image]:
    """The tool image and its hostile twin. `nvml_list`: the program to add, if there is one."""
    entries = shell_entries(debian)
    if nvml_list is not None:
        entries += (Entry("usr/bin/nvml-list", nvml_list.read_bytes()),)
    shell = ("/bin/sh",)
    tool = Image(TOOL_IMAGE, entries, command=shell)
    return tool, Image(HOSTILE_IMAGE, entries, command=shell, env=(*tool.env, *ALL_GPUS))


def shell_entries(debian: Path) -> tuple[Entry, ...]:
    """Busybox, glibc with its loader, folders and accounts."""
    return (*_folders(), *_busybox(debian), *_glibc(debian), *_accounts())


def _folders() -> Sequence[Entry]:
    plain = ("usr", "usr/bin", "usr/lib", "usr/lib64", LIBRARY_FOLDER, "etc", "root", "run", "proc", "sys", "dev")
    links = {"bin": "usr/bin", "sbin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}
    return (
        *(Entry(path) for path in plain),
        Entry("tmp", mode=0o1777),
        *(Entry(path, to=target) for path, target in links.items()),
    )


def _busybox(debian: Path) -> Sequence[Entry]:
    busybox = debian / "usr/bin/busybox"
    applets = [name for name in run([str(busybox), "--list"]).split() if name != "busybox"]
    return (
        Entry("usr/bin/busybox", busybox.read_bytes()),
        *(Entry(f"usr/bin/{name}", to="busybox") for name in sorted(applets)),
    )


def _glibc(debian: Path) -> Sequence[Entry]:
    """Files, not the links between them: each under the name that programs ask for."""
    paths = (LOADER, *(f"{LIBRARY_FOLDER}/{name}" for name in LIBRARIES))
    absent = [path for path in paths if not (debian / path).exists()]
    if absent:
        raise Refused("NO_GLIBC", f"{debian} lacks {', '.join(absent)}", "remove that folder and run `lab up` again")
    return tuple(Entry(path, (debian / path).read_bytes()) for path in paths)


def _accounts() -> Sequence[Entry]:
    return (
        Entry("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n", mode=0o644),
        Entry("etc/group", b"root:x:0:\nnogroup:x:65534:\n", mode=0o644),
    )
