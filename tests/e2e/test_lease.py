"""The Lease of the bridges on a real API server, and two candidates for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dynamig.kube import connect
from dynamig.kube.leader import REQUEST_SECONDS, ApiLeaseObject, Elector
from dynamig.testing.checks import check_lease
from lab.lab import Lab
from tests.e2e.cluster import NAMESPACE, until


@pytest.fixture
def lease(lab: Lab, namespace: str) -> Iterator[ApiLeaseObject]:
    client = connect(lab.admin_kubeconfig, timeout=REQUEST_SECONDS)
    yield ApiLeaseObject(client, namespace, "check")
    lab.kubectl("-n", namespace, "delete", "lease", "check", "--ignore-not-found")


def test_a_real_lease_does_what_the_fake_does(lease: ApiLeaseObject) -> None:
    check_lease(lease)


def test_one_leads_and_the_other_follows_when_it_stops(lab: Lab, lease: ApiLeaseObject) -> None:
    first, second = Elector(lease, "first"), Elector(lease, "second")
    first.start()
    until(lambda: _held(first))
    second.start()
    try:
        assert lab.kubectl_json("-n", NAMESPACE, "get", "lease", "check")["spec"]["holderIdentity"] == "first"
        assert not second.held
        first.stop()
        until(lambda: _held(second))
        assert not first.held
    finally:
        second.stop()


def _held(elector: Elector) -> None:
    assert elector.held, elector.trouble
