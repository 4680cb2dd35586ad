"""Programs of others that run on the emulator: fetched when a test first needs them, from PyPI, the Go proxy and
Debian, and kept in dynamig's cache (lab/cache.py), never in the repository.

A client that cannot be fetched is an error of the test that needs it: what nobody ran has not been shown to work.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dynamig.errors import Unavailable
from lab import debian
from lab.cache import cache_root, cached, digest
from lab.execute import Cancel
from lab.progress import Task
from lab.versions import DEBIAN_SUITE

MONITORS = ("nvitop==1.7.2", "gpustat==1.1.1", "nvidia-ml-py==13.615.71")

TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit/cmd"
TOOLKIT_VERSION = "v1.20.2"

SLURM_PLUGIN = "slurm-wlm-nvml-plugin"
SLURM_PLUGIN_SUITES = ("sid", DEBIAN_SUITE)
"""In contrib. Debian's testing does not always have what its unstable has; the version decides, not the suite."""

PROBE = Path(__file__).with_name("nvlib_probe")

FETCH_S = 540


def fetch(command: Sequence[str], *, cwd: Path | None = None, **env: str) -> str:
    """Standard output. Raises Unavailable CLIENT_NOT_FETCHED with the command's last words."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=FETCH_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _not_fetched(command, str(error)) from error
    if done.returncode != 0:
        raise _not_fetched(command, (done.stderr or done.stdout).strip()[-800:])
    return done.stdout


def _not_fetched(command: Sequence[str], why: str) -> Unavailable:
    what = f"`{' '.join(command[:6])}`: {why}"
    return Unavailable("CLIENT_NOT_FETCHED", what, "a real client is needed here: see that the registry answers")


def kept(name: str, recipe: Sequence[str], build: Callable[[Path], None]) -> Path:
    """`<cache>/clients/<name>/<digest of the recipe>`, built once, complete or not there."""
    target = cache_root(os.environ) / "clients" / name / digest(*recipe)
    target.parent.mkdir(parents=True, exist_ok=True)
    return cached(target, build, Cancel())


def monitors() -> Path:
    """A folder for PYTHONPATH with nvitop, gpustat and the NVML binding that they bring."""

    def build(folder: Path) -> None:
        fetch([sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--target", str(folder), *MONITORS])

    return kept("monitors", [*MONITORS, sys.version], build)


def container_toolkit() -> Path:
    """A folder with nvidia-ctk and nvidia-cdi-hook, built from their Go module."""
    programs = [f"{TOOLKIT}/{name}@{TOOLKIT_VERSION}" for name in ("nvidia-ctk", "nvidia-cdi-hook")]

    def build(folder: Path) -> None:
        for program in programs:
            fetch(["go", "install", program], GOBIN=str(folder), GOFLAGS="-mod=mod")

    return kept("container-toolkit", programs, build)


def nvlib_probe() -> Path:
    """The program of nvlib_probe/, built on go-nvml and go-nvlib at the versions of its go.mod."""
    sources = [*sorted(PROBE.glob("*.go")), PROBE / "go.mod", PROBE / "go.sum"]

    def build(folder: Path) -> None:
        fetch(["go", "build", "-mod=readonly", "-o", str(folder / "nvlib-probe"), "."], cwd=PROBE)

    return kept("nvlib-probe", [source.read_text() for source in sources], build) / "nvlib-probe"


def debian_root() -> Path:
    """The Debian root that the lab's machines share; it has slurmd."""
    target = cache_root(os.environ) / "debian" / debian.recipe_digest()

    def build(folder: Path) -> None:
        debian.build(folder, Task("debian-root", debian.BOOTSTRAP_S), Cancel(), folder.with_suffix(".log"))

    return cached(target, build, Cancel())


def version_in(root: Path, package: str) -> str:
    """The version of a package that is installed in a Debian root."""
    query = ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "--show", "--showformat=${Version}", package]
    return fetch(query).strip()


def slurm_nvml_plugin(root: Path) -> Path:
    """Debian's gpu_nvml.so, of exactly the version of the root's slurmd: Slurm loads no other."""
    version = version_in(root, "slurmd")

    def build(folder: Path) -> None:
        for suite in SLURM_PLUGIN_SUITES[:-1]:
            if _has(folder / "apt", suite, version):
                return _unpack(folder, suite, version)
        return _unpack(folder, SLURM_PLUGIN_SUITES[-1], version)

    folder = kept("slurm-nvml-plugin", [SLURM_PLUGIN, version], build)
    return folder / "usr/lib/x86_64-linux-gnu/slurm-wlm/gpu_nvml.so"


def _apt(apt: Path, suite: str) -> list[str]:
    """Options for apt with that suite's contrib and nothing else; lists on this machine stay as they are."""
    for part in ("lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (apt / "sources.list").write_text(f"deb [signed-by={keyring}] {debian.mirror()} {suite} contrib\n")
    options = [
        f"-oDir::Etc::sourcelist={apt}/sources.list",
        "-oDir::Etc::sourceparts=-",
        f"-oDir::State::lists={apt}/lists",
        f"-oDir::Cache={apt}/cache",
        "-oAPT::Sandbox::User=root",
        "-oAcquire::Check-Valid-Until=false",
    ]
    fetch(["apt-get", *options, "update"])
    return options


def _has(apt: Path, suite: str, version: str) -> bool:
    """Lines of madison: package | version | source."""
    lines = fetch(["apt-cache", *_apt(apt, suite), "madison", SLURM_PLUGIN]).splitlines()
    return version in [line.split("|")[1].strip() for line in lines]


def _unpack(folder: Path, suite: str, version: str) -> None:
    apt = folder / "apt"
    fetch(["apt-get", *_apt(apt, suite), "download", f"{SLURM_PLUGIN}={version}"], cwd=apt)
    (package,) = apt.glob("*.deb")
    fetch(["dpkg-deb", "-x", str(package), str(folder)])
    shutil.rmtree(apt)
