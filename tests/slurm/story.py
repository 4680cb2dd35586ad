"""Pods come, wait, run, end, and lose what they had: every kind of write of the bridge happens in this story."""

from __future__ import annotations

from tests.e2e.cluster import mig, until
from tests.slurm.stage import PATIENCE, Stage, each_has_one_hold

STAYING, PASSING = ("stays-0", "stays-1", "stays-2"), ("passes-0", "passes-1")
BY_HAND = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "by-hand"},
    "spec": {"devices": {"requests": [mig(profile="1g.10gb")]}},
}
"""A claim that outlives its pod, and so is released in words; one that was made for a pod is deleted with it."""


def tell_the_story(stage: Stage) -> None:
    """Told to its end nothing is left of it; the stage checks that, and what native jobs saw meanwhile."""
    cluster = stage.cluster
    for pod in STAYING:
        cluster.pod(pod, mig(profile="2g.20gb"))
    for pod in PASSING:
        cluster.pod(pod, mig(profile="1g.10gb"), command="sleep 2")
    cluster.apply(BY_HAND)
    cluster.pod_of_claim("borrows", "by-hand", command="sleep 2")
    cluster.running(*STAYING)
    cluster.succeeded(*PASSING, "borrows")
    until(lambda: each_has_one_hold(stage, STAYING), within=PATIENCE)

    stage.lab.slurm("scancel", str(stage.hold_of(STAYING[0]).job_id))
    stage.gone(STAYING[0])

    with stage.no_gpu_empty():
        cluster.pod("never", mig(profile="7g.80gb"))
        until(lambda: has_pending_hold(stage, "never"), within=PATIENCE)
        stage.let_go("never")
        stage.gone("never")
        until(lambda: each_has_one_hold(stage, STAYING[1:]), within=PATIENCE)

    stage.let_go(*STAYING[1:])
    stage.gone(*STAYING[1:])
    stage.no_holds()
    assert cluster.instances() == []


def has_pending_hold(stage: Stage, pod: str) -> None:
    (hold,) = stage.holds_of(pod)
    assert hold.state == "PENDING"
