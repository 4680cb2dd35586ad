"""What this machine lacks, all of it at once, each with the way to get it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dynamig.errors import Refused
from lab import cgroups
from lab.versions import GO_MINIMUM

GIB = 2**30
AS_ROOT = "namespaces, mounts and cgroups need root; run as root, in a virtual machine say"
PROGRAMS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "pivot_root": "util-linux",
    "mknod": "coreutils",
    "openssl": "openssl",
}
"""Always needed: program -> Debian package that has it."""

DEBIAN_PROGRAMS = {"apt-get": "apt", "dpkg-deb": "dpkg", "wget": "wget", "gpgv": "gpgv"}
"""Needed while the Debian root is not in the cache."""

CACHE_GIB = {"kubernetes": 9.0, "debian": 1.5}
"""Free space that a build needs, Go's own caches included (3.8 GiB of objects, 2 of modules were measured)."""

LAB_GIB = 1.0


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to be built because it is not in the cache yet."""

    kubernetes: bool
    debian: bool
    pause: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found on this machine."""

    root: bool
    programs: frozenset[str]
    go: tuple[int, int] | None
    namespaces: str | None
    """Why mount and pid namespaces cannot be made; None if they can."""
    overlay: bool
    cgroups: bool
    cache_gib: float
    lab_gib: float


@dataclass(frozen=True, slots=True)
class Lack:
    what: str
    how_to_get: str

    def __str__(self) -> str:
        return f"{self.what}: {self.how_to_get}"


def lacks(facts: Facts, needs: Needs) -> list[Lack]:
    """Pure."""
    found = []
    if not facts.root:
        found.append(Lack("not root", AS_ROOT))
    elif facts.namespaces is not None:
        found.append(Lack(f"no mount or pid namespaces ({facts.namespaces})", "allow CAP_SYS_ADMIN to this container"))
    if not facts.overlay:
        found.append(Lack("no overlayfs", "modprobe overlay"))
    if not facts.cgroups:
        found.append(Lack("no cgroup hierarchy is mounted", "mount one at /sys/fs/cgroup"))
    programs = PROGRAMS | (DEBIAN_PROGRAMS if needs.debian else {}) | ({"gcc": "gcc libc6-dev"} if needs.pause else {})
    for name in sorted(programs.keys() - facts.programs):
        found.append(Lack(f"no {name}", f"apt-get install {programs[name]}"))
    return found + _lacks_of_building(facts, needs)


def _lacks_of_building(facts: Facts, needs: Needs) -> list[Lack]:
    found = []
    wanted = ".".join(map(str, GO_MINIMUM))
    get_go = f"install Go {wanted} or newer, or point KUBE_BIN_DIR to ready Kubernetes programs"
    if needs.kubernetes and facts.go is None:
        found.append(Lack("no go", get_go))
    elif needs.kubernetes and facts.go is not None and facts.go < GO_MINIMUM:
        found.append(Lack(f"go {'.'.join(map(str, facts.go))} is too old", get_go))
    cache = sum(
        CACHE_GIB[name] for name, wanted in (("kubernetes", needs.kubernetes), ("debian", needs.debian)) if wanted
    )
    if facts.cache_gib < cache:
        found.append(Lack(f"{facts.cache_gib:.1f} GiB free for the cache, {cache:.1f} needed", "set DYNAMIG_CACHE"))
    if facts.lab_gib < LAB_GIB:
        found.append(Lack(f"{facts.lab_gib:.1f} GiB free for the lab, {LAB_GIB:.1f} needed", "use another --dir"))
    return found


def check(needs: Needs, cache: Path, lab: Path) -> None:
    """Raises: Refused with everything that is missing."""
    if found := lacks(gather(cache, lab), needs):
        listed = "".join(f"\n  - {lack}" for lack in found)
        raise Refused("PREFLIGHT", f"the lab cannot run here:{listed}", "")


def need_root() -> None:
    """Raises: Refused, before anything was stopped or removed: half of that would be worse than nothing."""
    if os.geteuid() != 0:
        raise Refused("PREFLIGHT", "not root", AS_ROOT)


def gather(cache: Path, lab: Path) -> Facts:
    names = {*PROGRAMS, *DEBIAN_PROGRAMS, "gcc"}
    return Facts(
        root=os.geteuid() == 0,
        programs=frozenset(name for name in names if shutil.which(name, path=_search_path())),
        go=_go_version(),
        namespaces=_namespace_problem(["unshare", "--mount", "--pid", "--fork", "true"]),
        overlay="overlay" in Path("/proc/filesystems").read_text().split(),
        cgroups=bool(cgroups.hierarchies()),
        cache_gib=_free_gib(cache),
        lab_gib=_free_gib(lab),
    )


def _search_path() -> str:
    """A user's PATH may lack the folders for administrators; what the lab starts looks there too."""
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def parse_go_version(text: str) -> tuple[int, int] | None:
    """(1, 26) from `go version go1.26.8 linux/amd64`."""
    found = re.search(r"\bgo(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _go_version() -> tuple[int, int] | None:
    if not shutil.which("go"):
        return None
    return parse_go_version(subprocess.run(["go", "version"], capture_output=True, text=True, check=False).stdout)


def _namespace_problem(argv: Sequence[str]) -> str | None:
    if not shutil.which(argv[0]):
        return None  # the missing program is reported as such
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip()


def _free_gib(path: Path) -> float:
    """Of the file system that `path` is on or would be on."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free / GIB
