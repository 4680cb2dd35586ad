"""The lab that `make lab-up` brought up, and a check after every test that nothing was left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dynamig.errors import Unavailable
from lab.lab import Lab, default_dir
from tests.e2e.cluster import NAMESPACE, Cluster


@pytest.fixture(scope="session")
def lab() -> Lab:
    """Fails, and does not skip, where there is no lab that is ready: `make lab-up` brings one up."""
    opened = Lab.open(default_dir())
    not_ready = [f"{s.name}: {s.reason}" for s in opened.status() if s.reason is not None]
    assert not_ready == [], f"the lab is not ready (make lab-up): {not_ready}"
    return opened


@pytest.fixture(scope="session")
def namespace(lab: Lab) -> Iterator[str]:
    lab.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true", "--timeout=90s")
    lab.kubectl("create", "namespace", NAMESPACE)
    yield NAMESPACE
    lab.kubectl("delete", "namespace", NAMESPACE, "--wait=true", "--timeout=90s")


@pytest.fixture
def cluster(lab: Lab, namespace: str) -> Iterator[Cluster]:
    """An empty cluster, and afterwards again: whatever a test leaves running is deleted, and nothing may remain."""
    found = Cluster(lab)
    found.empty()
    yield found
    for node in lab.nodes:
        found.emulator(node).clear_faults()
        if lab.pid(f"driver-{node}") is None:
            found.restart_driver(node)
    for kind in ("pods", "resourceclaims", "resourceclaimtemplates"):
        _delete_all(lab, kind)
    found.empty()


def _delete_all(lab: Lab, kind: str) -> None:
    try:
        lab.kubectl("-n", NAMESPACE, "delete", kind, "--all", "--grace-period=1", "--wait=true", "--timeout=90s")
    except Unavailable as error:
        raise AssertionError(f"{kind} of the last test do not go away: {error}") from error
