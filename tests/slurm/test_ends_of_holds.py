"""Slurm ends a hold, forgets it, or does not answer: pods end with a reason or go on, and native jobs find empty GPUs.

That last half is checked at the end of every stage (`stage.py`), by native jobs that look.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from lab.lab import Lab
from tests.e2e.cluster import NAMESPACE, Cluster, mig, until
from tests.slurm import faults
from tests.slurm.faults import Fault, Match
from tests.slurm.stage import PATIENCE, Stage, older_state, staged
from tests.slurm.writes import SLURM

pytestmark = pytest.mark.timeout(420)

DEAF = "trap '' TERM; nvml-list; while :; do sleep 0.2; done"
TURNED_AWAY_S = 240.0
"""Seconds within which a hold is there again: the native job that got the GPU first is turned away after 75."""

TIME_LIMIT_S = 150.0
"""Seconds within which slurmctld has ended a job whose limit is a minute."""


@pytest.fixture
def stage(lab: Lab, cluster: Cluster) -> Iterator[Stage]:
    with staged(lab, cluster) as made:
        yield made


def test_a_hold_outlives_the_instance(stage: Stage) -> None:
    """C-64: a pod that does not heed TERM is deleted; its job holds the GPU until the instance is gone."""
    pod = stage.cluster.pod("deaf", mig(profile="3g.40gb"), command=DEAF)
    stage.cluster.running(pod)
    hold = stage.hold_of(pod)
    stage.let_go(pod, grace_s=12)
    looks = 0
    while (holding := stage.holds()) and stage.cluster.instances():
        looks += 1
        time.sleep(0.2)
    assert looks > 5, "the pod takes its time"
    assert stage.cluster.instances() == [], "the hold was seen gone, and then an instance"
    assert holding in ([], [hold])
    stage.gone(pod)
    stage.no_holds()


def test_a_hold_that_is_cancelled_suspended_or_out_of_time_ends_its_pod_and_says_why(stage: Stage) -> None:
    """C-65. A suspended job's time limit never comes."""
    pods = {"cancelled": "cancelled", "late": "time limit", "suspended": "suspended"}
    for pod in pods:
        stage.cluster.pod(pod, mig(profile="1g.10gb"), command=DEAF, terminationGracePeriodSeconds=8)
    stage.cluster.running(*pods)
    holds = {pod: stage.hold_of(pod).job_id for pod in pods}
    stage.lab.slurm("scontrol", "update", f"jobid={holds['late']}", "timelimit=1")
    stage.lab.slurm("scontrol", "suspend", str(holds["suspended"]))
    stage.lab.slurm("scancel", str(holds["cancelled"]))
    for pod, word in pods.items():
        until(lambda pod=pod, word=word: says(stage, pod, str(holds[pod]), word), within=TIME_LIMIT_S)  # type: ignore[misc]
        stage.gone(pod)
    again = stage.cluster.pod("again", mig(profile="1g.10gb"))
    stage.cluster.running(again)


def test_a_hold_that_is_suspended_and_resumed_in_turns_ends_its_pod(stage: Stage) -> None:
    """By its own user, who may; no suspension is as long as a minute."""
    stage.cluster.pod("sly", mig(profile="1g.10gb"), command=DEAF, terminationGracePeriodSeconds=8)
    stage.cluster.running("sly")
    hold = str(stage.hold_of("sly").job_id)
    (job,) = stage.lab.slurm_json("scontrol", "show", "job", hold)["jobs"]
    turns = 0
    while not leaving(stage, "sly"):
        assert turns < 10, "her pod runs for ever"
        for word, seconds in (("suspend", 20), ("resume", 4)):
            if not leaving(stage, "sly"):
                stage.lab.slurm("setpriv", "--reuid", job["user_name"], "--clear-groups", "scontrol", word, hold)
                time.sleep(seconds)
        turns += 1
    assert turns >= 3, "not before a minute"
    until(lambda: says(stage, "sly", hold, "suspended", "in all"), within=PATIENCE)
    stage.gone("sly")


def leaving(stage: Stage, pod: str) -> bool:
    found = stage.lab.kubectl("-n", NAMESPACE, "get", "pod", pod, "--ignore-not-found", "-o", "json")
    return not found or "deletionTimestamp" in json.loads(found)["metadata"]


def says(stage: Stage, pod: str, *words: str) -> None:
    """An event does, which outlives the pod."""
    messages = [event["message"] for event in stage.cluster.events(pod)]
    assert any(all(word in message for word in words) for message in messages), messages


@pytest.mark.soak
def test_a_hold_that_slurmctld_forgot_is_held_again_or_its_pod_ends(stage: Stage) -> None:
    """slurmctld is killed and knows only what it knew before the hold was submitted, as after a crash right then."""
    with older_state(stage.lab) as crash_to_before:
        pod = stage.cluster.pod("forgotten", mig(profile="2g.20gb"))
        stage.cluster.running(pod)
        (instance,) = stage.cluster.instances()
        before = stage.hold_of(pod)
        crash_to_before()
    until(lambda: held_again_or_ended(stage, pod, before.identity.attempt), within=TURNED_AWAY_S)
    if stage.holds():
        assert stage.cluster.instances() == [instance], "the pod goes on with what it had"


def held_again_or_ended(stage: Stage, pod: str, attempt: int) -> None:
    """A new hold runs, or the pod is gone."""
    if stage.lab.kubectl("-n", "e2e", "get", "pod", pod, "--ignore-not-found") == "":
        return
    (hold,) = stage.holds_of(pod)
    assert hold.state == "RUNNING"
    assert hold.identity.attempt > attempt


AWAY: dict[str, Fault] = {"gone": faults.lose, "slow": faults.delay(20), "broken": faults.refuse}


@pytest.mark.parametrize("how", [pytest.param(h, marks=pytest.mark.soak if h == "broken" else ()) for h in AWAY])
def test_slurmrestd_is_away(stage: Stage, how: str) -> None:
    """C-66: nothing is ended or given back on missing information; then the backlog is worked off."""
    cluster = stage.cluster
    for pod in ("stays", "leaves"):
        cluster.pod(pod, mig(profile="1g.10gb"))
    cluster.running("stays", "leaves")
    holds = {hold.job_id for hold in stage.holds()}
    away = stage.proxies.slurm.order(Match(), AWAY[how], count=None)
    cluster.pod("comes", mig(profile="1g.10gb"))
    stage.let_go("leaves")
    stage.gone("leaves")
    time.sleep(5)
    assert away.hits > 0
    assert {hold.job_id for hold in stage.holds()} == holds, "nobody could have said that they may go"
    assert (cluster.phase("stays"), cluster.phase("comes")) == ("Running", "Pending")
    stage.proxies.calm()
    cluster.running("comes")
    until(lambda: two_holds(stage), within=PATIENCE)


def two_holds(stage: Stage) -> None:
    assert [hold.state for hold in stage.holds()] == ["RUNNING", "RUNNING"]


def test_a_grant_without_gpu_index_is_refused_with_the_reason(stage: Stage) -> None:
    """C-67: shards that Slurm only counts (index null, seen with gres.conf without File) say nothing about a GPU."""
    stage.proxies.slurm.order(Match("GET", "/resources/"), faults.edit(without_index), count=None)
    pod = stage.cluster.pod("counted", mig(profile="1g.10gb"))
    until(lambda: says(stage, pod, "which GPU"), within=PATIENCE)
    assert "allocation" not in (stage.cluster.claim_of(pod).get("status") or {})
    until(lambda: cancelled(stage), within=PATIENCE)
    stage.proxies.calm()
    stage.cluster.running(pod)
    assert len(stage.holds_of(pod)) == 1


def without_index(body: bytes) -> bytes:
    answer = json.loads(body)
    for node in answer.get("nodes") or ():
        for gres in node["gres"]:
            gres["index"] = None
    return json.dumps(answer).encode()


def cancelled(stage: Stage) -> None:
    """A hold that could not be used was given back."""
    assert any(SLURM["cancel"].fits(write.request) for write in stage.proxies.slurm.writes)
