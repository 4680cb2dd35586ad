"""The Kubernetes programs: one binary, built from the Go modules of Kubernetes, with a link per program.

Kubernetes publishes its source as a Go module whose own go.mod replaces its siblings (k8s.io/api and so on) by
folders of its repository. Used as a dependency those replacements do not count, so the generated go.mod replaces each
by the version that was published together: v0.37.2 for v1.37.2.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from dynamig.errors import Refused, Unavailable
from lab.cache import digest
from lab.commands import run_long
from lab.execute import Cancel
from lab.progress import Task
from lab.versions import KUBERNETES

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
SOURCE = Path(__file__).parent / "kube"
BUILD_S = 400.0
"""On two cores with empty caches; seconds with full ones."""


def recipe_digest() -> str:
    """Changes with everything that the binary is made from."""
    sources = [path.read_text() for path in sorted(SOURCE.glob("*.go"))]
    return f"{KUBERNETES}-{digest(KUBERNETES, ldflags(KUBERNETES), *sources)}"


def go_mod(upstream: str, version: str) -> str:
    """A go.mod for our main, from the go.mod of k8s.io/kubernetes at `version` (like `1.37.2`)."""
    keep = re.findall(r"^(?:go 1\.\S+|godebug .*)$", upstream, re.MULTILINE)
    siblings = sorted(set(re.findall(r"^\s+(k8s\.io/\S+) v0\.0\.0$", upstream, re.MULTILINE)))
    together = f"v0.{version.partition('.')[2]}"
    lines = ["module lab.local/kube", *keep, f"require k8s.io/kubernetes v{version}"]
    return "\n".join([*lines, *(f"replace {name} => {name} {together}" for name in siblings)]) + "\n"


def ldflags(version: str) -> str:
    """Without these every client is told version v0.0.0."""
    major, minor, _ = version.split(".")
    package = "k8s.io/component-base/version"
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s", "-w", *(f"-X {package}.{name}={value}" for name, value in values.items())])


def build(folder: Path, task: Task, cancel: Cancel, log: Path) -> None:
    """`folder` holds the binary and its links."""
    work = folder / "source"
    shutil.copytree(SOURCE, work)
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
    task.tell("downloading modules")
    (work / "go.mod").write_text(go_mod(_upstream_go_mod(work, env), KUBERNETES))
    run_long(["go", "mod", "tidy"], lambda line: task.tell(line), cancel, env=env, cwd=work, log=log)
    packages = _count_packages(work, env)
    built = 0

    def on_package(name: str) -> None:
        nonlocal built
        built += 1
        task.tell(name, built / packages)

    flags = ["-v", "-buildvcs=false", "-ldflags", ldflags(KUBERNETES), "-o", str(folder / "kube"), "."]
    run_long(["go", "build", *flags], on_package, cancel, env=env, cwd=work, log=log)
    shutil.rmtree(work)
    for name in PROGRAMS:
        (folder / name).symlink_to("kube")


def _upstream_go_mod(work: Path, env: dict[str, str]) -> str:
    argv = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{KUBERNETES}"]
    done = subprocess.run(argv, env=env, cwd=work.parent, capture_output=True, text=True, check=False)
    try:
        return Path(json.loads(done.stdout)["GoMod"]).read_text()
    except (ValueError, KeyError) as error:
        reason = (done.stdout + done.stderr).strip()
        raise Unavailable("NO_MODULE", f"k8s.io/kubernetes v{KUBERNETES}: {reason}", "check GOPROXY") from error


def _count_packages(work: Path, env: dict[str, str]) -> int:
    listed = subprocess.run(["go", "list", "-deps", "."], env=env, cwd=work, capture_output=True, text=True, check=True)
    return len(listed.stdout.splitlines())


def ready_made(folder: Path) -> Path:
    """The folder named by KUBE_BIN_DIR, checked. Raises Refused if a program is missing."""
    absent = [name for name in PROGRAMS if not os.access(folder / name, os.X_OK)]
    if absent:
        raise Refused("NO_BINARIES", f"KUBE_BIN_DIR={folder} lacks {', '.join(absent)}", "unset it to build them")
    return folder.resolve()
