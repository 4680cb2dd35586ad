"""The Debian root that all machines of all labs share as their read-only lower layer.

Nothing is installed on the host: debootstrap is downloaded as a package and run from the folder it is unpacked to.
The mirror is the one that the host's apt uses, or DYNAMIG_DEBIAN_MIRROR.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from dynamig.errors import Unavailable
from lab.cache import digest
from lab.commands import clean_env, run, run_long
from lab.execute import Cancel
from lab.progress import Task
from lab.versions import DEBIAN_PACKAGES, DEBIAN_SUITE

BOOTSTRAP_S = 70.0
STEPS_PER_PACKAGE = 4
"""debootstrap names a package when it retrieves, validates, unpacks and configures it."""

PACKAGES_EXPECTED = 150


def recipe_digest() -> str:
    return f"{DEBIAN_SUITE}-{digest(DEBIAN_SUITE, *DEBIAN_PACKAGES, Path(__file__).read_text())}"


def choose_mirror(index_targets: str) -> str | None:
    """The archive's address from lines `address|label|component|created by` of `apt-get indextargets`."""
    for line in index_targets.splitlines():
        address, label, component, created_by = line.split("|")
        if (label, component, created_by) == ("Debian", "main", "Packages"):
            return address
    return None


def mirror() -> str:
    """Raises: Unavailable if apt knows no Debian archive (on another distribution)."""
    if own := os.environ.get("DYNAMIG_DEBIAN_MIRROR"):
        return own
    fields = "$(REPO_URI)|$(LABEL)|$(COMPONENT)|$(CREATED_BY)"
    if found := choose_mirror(run(["apt-get", "indextargets", "--format", fields])):
        return found
    raise Unavailable(
        "NO_MIRROR", "apt's configuration names no Debian archive", "set DYNAMIG_DEBIAN_MIRROR to one's address"
    )


def build(folder: Path, task: Task, cancel: Cancel, log: Path) -> None:
    """`folder` is a complete Debian with the lab's packages."""
    source = mirror()
    with tempfile.TemporaryDirectory(prefix="dynamig-debootstrap-") as name:
        tool = Path(name)
        task.tell("fetching debootstrap")
        fetch_debootstrap(tool, cancel, log)
        _bootstrap(tool, folder, source, task, cancel, log)
    shutil.rmtree(folder / "var/cache/apt/archives")
    (folder / "var/cache/apt/archives/partial").mkdir(parents=True)
    # The suite's Release file expires while a mirror stands still; debootstrap does not mind, apt inside would.
    (folder / "etc/apt/apt.conf.d/99no-expiry").write_text('Acquire::Check-Valid-Until "false";\n')


def fetch_debootstrap(folder: Path, cancel: Cancel, log: Path) -> None:
    """The package, unpacked into `folder`; apt's own lists and caches on the host stay as they are."""
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / "apt" / part).mkdir(parents=True)
    apt = [
        "apt-get",
        f"-oDir::State::lists={folder}/apt/lists",
        f"-oDir::Cache={folder}/apt/cache",
        "-oAPT::Sandbox::User=root",
    ]
    run_long([*apt, "update"], lambda _: None, cancel, log=log)
    run_long([*apt, "download", "debootstrap"], lambda _: None, cancel, cwd=folder, log=log)
    (package,) = folder.glob("debootstrap_*.deb")
    run(["dpkg-deb", "-x", str(package), str(folder)])


def _bootstrap(tool: Path, folder: Path, source: str, task: Task, cancel: Cancel, log: Path) -> None:
    scripts = tool / "usr/share/debootstrap"
    seen = 0

    def on_line(line: str) -> None:
        nonlocal seen
        seen += line.startswith("I: ")
        task.tell(line.removeprefix("I: "), min(0.99, seen / (STEPS_PER_PACKAGE * PACKAGES_EXPECTED)))

    # Namespaces of its own: its mounts and whatever a package's script starts end with it, however it ends.
    isolate = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    argv = [
        *isolate,
        str(tool / "usr/sbin/debootstrap"),
        "--variant=minbase",
        f"--include={','.join(DEBIAN_PACKAGES)}",
        DEBIAN_SUITE,
        str(folder),
        source,
        str(scripts / "scripts/sid"),  # an older debootstrap has no script for the newest suite; all are sid's
    ]
    run_long(argv, on_line, cancel, env=clean_env(DEBOOTSTRAP_DIR=str(scripts)), log=log)
