"""What events on the watch streams tell of a pod."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from lightkube import Client, KubeConfig

from bench.sightings import (
    ALLOCATED,
    BOUND,
    CLAIM_GONE,
    DELETING,
    HELD,
    NOTED,
    POD_GONE,
    PREPARED,
    RUNNING,
    SUCCEEDED,
    UNGATED,
    VERIFIED,
    Sightings,
    pod_of,
)
from bench.sightings import claim_stages as of_claim
from bench.sightings import pod_stages as of_pod
from dynamig.errors import Unavailable
from dynamig.protocol import names

NEW_POD: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {}}
NEW_CLAIM: dict[str, Any] = {"metadata": {"name": "p-devices-x7k"}}


def claim(prepared: str, reason: str = names.PREPARED) -> dict[str, Any]:
    condition = {"type": reason, "status": prepared}
    return {
        "metadata": {"name": "c", "finalizers": ["other", names.HELD]},
        "status": {"allocation": {"devices": {}}, "devices": [{"conditions": [condition]}]},
    }


def test_a_pod_is_bound_and_then_runs() -> None:
    gated = {**NEW_POD, "spec": {"schedulingGates": [{"name": names.GATE}]}}
    bound = {**NEW_POD, "spec": {"nodeName": "n1"}, "status": {"phase": "Pending"}}
    assert list(of_pod("ADDED", gated)) == []
    assert list(of_pod("ADDED", NEW_POD)) == [UNGATED]
    assert list(of_pod("MODIFIED", bound)) == [UNGATED, BOUND]
    assert list(of_pod("MODIFIED", {**bound, "status": {"phase": "Running"}})) == [UNGATED, BOUND, RUNNING]
    assert list(of_pod("MODIFIED", {**bound, "status": {"phase": "Succeeded"}})) == [UNGATED, BOUND, SUCCEEDED]
    assert list(of_pod("MODIFIED", {**gated, "metadata": {"name": "p", "deletionTimestamp": "now"}})) == [DELETING]
    assert list(of_pod("DELETED", gated)) == [POD_GONE]


def test_a_claim_is_allocated_held_and_prepared() -> None:
    assert list(of_claim("ADDED", NEW_CLAIM)) == []
    assert list(of_claim("MODIFIED", claim("True"))) == [ALLOCATED, HELD, PREPARED]
    assert list(of_claim("DELETED", NEW_CLAIM)) == [CLAIM_GONE]


def test_the_bridge_notes_a_claim_and_verifies_it() -> None:
    words = {names.HOLD: "{}", names.VERIFIED: "now"}
    assert list(of_claim("MODIFIED", {"metadata": {"name": "c", "annotations": words}})) == [NOTED, VERIFIED]


def test_a_failed_prepare_or_another_condition_is_not_prepared() -> None:
    assert PREPARED not in of_claim("MODIFIED", claim("False"))
    assert PREPARED not in of_claim("MODIFIED", claim("True", "Ready"))


def test_a_generated_claim_belongs_to_the_pod_that_owns_it() -> None:
    owned = {"metadata": {"name": "p-devices-x7k", "ownerReferences": [{"kind": "Pod", "name": "p"}]}}
    assert (pod_of(owned), pod_of(NEW_POD), pod_of(NEW_CLAIM)) == ("p", "p", "p-devices-x7k")


def nowhere() -> Sightings:
    """Nothing listens on port 1; the client is first used when it watches."""
    body = {
        "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "none", "user": {"token": "none"}}],
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
        "current-context": "none",
    }
    return Sightings(Client(KubeConfig.from_dict(body).get()), "ns")


def test_the_first_sight_counts() -> None:
    seen = nowhere()
    seen.note("p", BOUND, 1.0)
    seen.note("p", BOUND, 2.0)
    assert seen.wait("p", BOUND, within=0) == 1.0


def test_who_waits_is_woken() -> None:
    seen = nowhere()
    threading.Timer(0.05, seen.note, ("p", RUNNING, 7.0)).start()
    assert seen.wait("p", RUNNING, within=30) == 7.0


def test_a_stage_that_does_not_come_is_named_with_those_reached() -> None:
    seen = nowhere()
    seen.note("p", BOUND, 1.0)
    with pytest.raises(Unavailable, match=r"pod p not running within 0 s: \['bound'\]"):
        seen.wait("p", RUNNING, within=0)


def test_a_broken_stream_fails_who_waits() -> None:
    seen = nowhere()
    seen.watch()
    with pytest.raises(Unavailable, match="watching ns"):
        seen.wait("p", RUNNING, within=30)
