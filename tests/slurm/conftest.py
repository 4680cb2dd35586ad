"""A lab in which Slurm and Kubernetes share the GPUs: `make slurm` brings it up with the hooks of `deploy/slurm`.

Tests that run side by side (pytest-xdist) have a lab for each worker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamig.errors import Unavailable
from dynamig.protocol import names
from lab.lab import Lab
from lab.slurm.daemons import resume
from tests.e2e.cluster import NAMESPACE, Cluster, until

FOLDERS = (os.environ.get("DYNAMIG_SLURM_LAB_DIR") or str(Path(__file__).parents[2] / ".lab-slurm")).split(":")
"""Of labs, one for each worker."""


@pytest.fixture(scope="session")
def lab(worker_id: str) -> Lab:
    """Fails, and does not skip, where there is no such lab that is ready. `worker_id`: gw0, gw1, ..., else master."""
    worker = int(worker_id.removeprefix("gw")) if worker_id.startswith("gw") else 0
    assert worker < len(FOLDERS), f"worker {worker} has no lab: DYNAMIG_SLURM_LAB_DIR names {FOLDERS}"
    opened = Lab.open(Path(FOLDERS[worker]))
    assert opened.spec.lends, "this lab has no hooks of deploy/slurm: its drivers do not lend"
    not_ready = [f"{s.name}: {s.reason}" for s in opened.status() if s.reason is not None]
    assert not_ready == [], f"the lab is not ready (make slurm): {not_ready}"
    return opened


@pytest.fixture(scope="session")
def namespace(lab: Lab) -> Iterator[str]:
    lab.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true", "--timeout=90s")
    lab.kubectl("create", "namespace", NAMESPACE)
    lab.kubectl("label", "namespace", NAMESPACE, f"{names.SCHEDULER_LABEL}=slurm")
    yield NAMESPACE
    lab.kubectl("delete", "namespace", NAMESPACE, "--wait=true", "--timeout=90s")


@pytest.fixture
def cluster(lab: Lab, namespace: str) -> Iterator[Cluster]:
    """An empty cluster and an empty queue, and afterwards again."""
    found = Cluster(lab)
    yield found
    for node in lab.nodes:
        found.emulator(node).clear_faults()
    for daemon in lab.daemons:
        if lab.pid(daemon) is None:
            lab.start(daemon)
    for node in lab.nodes:
        resume(lab.layout, node)  # one test's drained node is not the next one's
    for user in ("alice", "root"):
        lab.slurm("scancel", f"--user={user}")
    for kind in ("pods", "resourceclaims", "resourceclaimtemplates"):
        _delete_all(lab, kind)
    found.empty()
    until(lambda: _no_jobs(lab))


def _no_jobs(lab: Lab) -> None:
    assert lab.slurm("squeue", "--noheader") == ""


def _delete_all(lab: Lab, kind: str) -> None:
    try:
        lab.kubectl("-n", NAMESPACE, "delete", kind, "--all", "--grace-period=1", "--wait=true", "--timeout=90s")
    except Unavailable as error:
        raise AssertionError(f"{kind} of the last test do not go away: {error}") from error
