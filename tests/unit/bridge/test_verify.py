"""Between commit and letting a pod go (P5): the job still runs, and nobody else has a memory slice of the set's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from dynamig.bridge.actions import Action, Verify
from dynamig.errors import Conflict, Unavailable
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimView
from dynamig.protocol.hold_note import HoldNote, NotedDevice
from dynamig.protocol.slurm_jobs import Ending, JobState
from dynamig.testing.fake_slurm import FakeSlurm
from tests.unit.bridge.stage import Stage, gpu, offers, wants


def test_an_overlap_under_another_name_is_seen_when_the_set_is_verified() -> None:
    """Somebody else allocates a device that shares memory slices with ours, at the moment when we allocate; names
    differ, slices do not."""
    stage = Stage()
    stage.sets.create_pod("a", wants("4g.40gb"))
    stage.look()
    allocate = stage.sets.allocate
    taken: list[tuple[str, str]] = []

    def both(claim: ClaimView, allocation: Mapping[str, Any]) -> ClaimView:
        made = allocate(claim, allocation)
        if not taken:
            taken.append(rival_of(made.allocated[0].pool, made.allocated[0].device))
            other = stage.sets.create_claim("other", wants("1g.10gb"))
            result = {"request": "r", "driver": names.DRIVER_NAME, "pool": taken[0][0], "device": taken[0][1]}
            other["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"name": "other"}]}
        return made

    stage.sets.allocate = both  # type: ignore[method-assign]
    stage.look()
    assert taken
    assert stage.devices("a") == [], "taken back: the other is not ours to judge"
    assert stage.sets.pods["a"]["spec"]["schedulingGates"], "and its pod was not let go"
    stage.now += 60
    stage.settle()
    ((pool, device),) = stage.devices("a")
    assert (pool, device) != taken[0]
    assert stage.sets.pods["a"]["spec"]["nodeName"]


@pytest.mark.parametrize(
    ("rival", "stays"),
    [
        ({"uid": "z", "verified": True}, False),
        ({"uid": "z", "reserved": True}, False),
        ({"uid": "z", "held": False}, False),
        ({"uid": "a"}, False),
        ({"uid": "a", "allocated": False}, False),
        ({"uid": "a", "published": False}, False),
        ({"uid": "z"}, True),
    ],
    ids=["verified", "reserved", "not-ours", "smaller-uid", "only-noted", "not-published-any-more", "greater-uid"],
)
def test_of_two_claims_that_overlap_the_one_that_came_first_stays_and_ours_is_not_verified(
    rival: dict[str, Any], stays: bool
) -> None:
    """The other one appears between commit and verification; UIDs are compared with `claim-a-0`."""
    stage = Stage()
    stage.sets.create_pod("a", wants("4g.40gb"))
    stage.meanwhile = lambda action: appears(stage, **rival) if isinstance(action, Verify) else None
    stage.look_for(2)
    assert rival["uid"] in stage.sets.claims
    assert bool(stage.devices("a")) is stays
    assert names.VERIFIED not in stage.sets.claims["a-0"]["metadata"]["annotations"]
    assert stage.sets.pods["a"]["spec"]["schedulingGates"]


def appears(
    stage: Stage,
    *,
    uid: str,
    held: bool = True,
    verified: bool = False,
    reserved: bool = False,
    allocated: bool = True,
    published: bool = True,
) -> None:
    """A claim with memory slices of pod a's."""
    pool, device = rival_of(*stage.devices("a")[0])
    device = device if published else "gpu-0-mig-of-old"
    claim = stage.sets.create_claim(uid, wants("1g.10gb"))
    words = {names.HOLD: HoldNote((NotedDevice(pool, device, gpu("n1", 0)),)).to_json(), names.VERIFIED: "now"}
    claim["metadata"]["annotations"] = words if verified else {names.HOLD: words[names.HOLD]}
    claim["metadata"]["finalizers"] = [names.HELD] if held else []
    if allocated:
        result = {"request": "r", "driver": names.DRIVER_NAME, "pool": pool, "device": device}
        claim["status"] = {"allocation": {"devices": {"results": [result]}}}
    if reserved:
        claim["status"]["reservedFor"] = [{"name": "other"}]


def rival_of(pool: str, device: str) -> tuple[str, str]:
    """A smaller device of the pool on the same memory slices."""
    published = next(o for o in offers().values() if o.name == pool)
    ours = published.device(device).partition
    assert ours is not None
    return pool, next(
        d.name
        for d in published.devices
        if d.partition is not None and d.name != device and d.partition.placement.overlaps(ours.placement)
    )


@pytest.mark.parametrize(
    "happens",
    [
        lambda slurm: slurm.end(1, Ending.NODE_FAIL),
        lambda slurm: slurm.forget(1),
        lambda slurm: slurm.jobs.update({1: replace(slurm.jobs[1], state=JobState.PENDING)}),
        lambda slurm: setattr(slurm, "silent", True),
    ],
    ids=["ended", "forgotten", "requeued", "silence"],
)
def test_a_job_that_is_not_seen_running_after_the_commit_lets_no_pod_go(happens: Callable[[FakeSlurm], None]) -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.meanwhile = lambda action: happens(stage.slurm) if isinstance(action, Verify) else None
    stage.look_for(2)
    assert stage.devices("a"), "committed"
    assert names.VERIFIED not in stage.sets.claims["a-0"]["metadata"]["annotations"]
    assert stage.sets.pods["a"]["spec"]["schedulingGates"]


def test_a_pod_is_not_let_go_before_the_hand_made_claim_that_it_uses_is_verified() -> None:
    stage = Stage()
    stage.sets.create_claim("shared", wants("3g.40gb"))
    stage.sets.create_pod("a", uses=["shared"])

    def meanwhile(action: Action) -> None:
        if isinstance(action, Verify):
            raise Conflict("CONFLICT", "it cannot be verified now")

    stage.meanwhile = meanwhile
    stage.look_for(10)
    assert stage.devices("a"), "committed"
    assert stage.sets.pods["a"]["spec"]["schedulingGates"]


def test_that_a_set_was_verified_once_says_nothing_of_what_it_is_committed_to_next() -> None:
    """kube-scheduler clears an allocation and leaves the annotations as they are."""
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.look_for(2)
    stage.unschedule("a")
    assert names.VERIFIED in stage.sets.claims["a-0"]["metadata"]["annotations"]

    def meanwhile(action: Action) -> None:
        if isinstance(action, Verify):
            raise Conflict("CONFLICT", "it cannot be verified now")

    stage.meanwhile = meanwhile
    stage.look_for(5)
    assert stage.devices("a")
    assert names.VERIFIED not in stage.sets.claims["a-0"]["metadata"]["annotations"]


def test_a_commit_that_was_interrupted_is_verified_before_its_pod_is_let_go() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    verified: list[Action] = []

    def meanwhile(action: Action) -> None:
        if isinstance(action, Verify):
            verified.append(action)
            if len(verified) == 1:
                raise Unavailable("API_UNAVAILABLE", "cut off after the commit")
            stage.slurm.end(1, Ending.NODE_FAIL)

    stage.meanwhile = meanwhile
    while len(verified) < 2:
        stage.look()
    assert stage.devices("a")
    assert stage.sets.pods["a"]["spec"]["schedulingGates"]
