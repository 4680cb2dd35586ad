"""What each fence is for: one scripted interleaving that passes with it, and shows the violation without.

The same script runs twice, on the bridge or Slurm as they are and composed without the fence (`unfenced.py`). So every
check of these tests is one that can fail.
"""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from dynamig.bridge.service import Bridge
from dynamig.errors import Conflict
from dynamig.kube import connect
from dynamig.kube.claims import patch_metadata
from dynamig.kube.sets import ApiSets
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimView, read_claim
from dynamig.protocol.hold_note import HoldNote, hold_note
from dynamig.protocol.identity import JobKey, Role, identity_of
from dynamig.protocol.times import to_rfc3339
from lab import bridge
from lab.lab import Lab
from lab.slurm import config
from tests.e2e.cluster import NAMESPACE, Cluster, mig, until, whole
from tests.slurm import faults
from tests.slurm.proxied_bridge import Compose
from tests.slurm.stage import PATIENCE, Findings, Stage, watched
from tests.slurm.test_dead_steps import loans, nothing_is_lent
from tests.slurm.unfenced import PROLOGS, WithoutReport, WithoutVerify, without, without_identity
from tests.slurm.writes import KUBERNETES, order

pytestmark = pytest.mark.timeout(420)

DEAF = "trap '' TERM; nvml-list; while :; do sleep 0.2; done"
"""A program that TERM does not end: its pod leaves when its grace period is over."""

SLOW_S = 8
NOTHING = Findings((), frozenset())


@pytest.fixture
def watch(lab: Lab, cluster: Cluster) -> Callable[[Compose], AbstractContextManager[tuple[Stage, list[Findings]]]]:
    """A stage with a bridge of this process, and where its findings will be after the block."""

    @contextmanager
    def watching(compose: Compose = Bridge) -> Iterator[tuple[Stage, list[Findings]]]:
        findings: list[Findings] = []
        with watched(lab, cluster, compose, findings.append) as stage:
            yield stage, findings

    return watching


Watch = Callable[..., AbstractContextManager[tuple[Stage, list[Findings]]]]


# -- the loan: no native process starts on a GPU that has anything of ours ---------------------------------------------


@pytest.mark.parametrize("wants", [mig(profile="2g.20gb"), whole()], ids=["slice", "whole"])
@pytest.mark.parametrize("fenced", [True, False])
def test_loan(lab: Lab, watch: Watch, fenced: bool, wants: dict[str, Any]) -> None:
    """scancel of a hold gives the GPU to the native job that waits for it, at once. Its pod needs seconds to end."""
    with watch() as (stage, findings), nullcontext() if fenced else without(lab, *PROLOGS):
        pod = stage.cluster.pod("deaf", wants, command=DEAF, terminationGracePeriodSeconds=SLOW_S)
        stage.cluster.running(pod)
        stage.lab.slurm("scancel", str(stage.hold_of(pod).job_id))
        stage.gone(pod)
    assert (findings[0].looks == ()) is fenced, findings


@pytest.mark.parametrize("fenced", [True, False])
def test_task_prolog(lab: Lab, cluster: Cluster, fenced: bool) -> None:
    """slurmd is stopped while a prolog waits. It does not hear that the job was turned away, and launches it."""
    output = f"restarted-{fenced}.out"
    script = "#!/bin/sh\necho STARTED\n"
    with nullcontext() if fenced else without(lab, "TaskProlog"), impatient(lab, "n1"), cluster.killed_driver("n1"):
        job = lab.submit(script, "--nodelist=n1", "--gres=gpu:2", f"--output={output}")
        until(lambda: prolog_runs(lab, "n1"))
        step = f"srun --jobid={job} --overlap -n1 %s echo STARTED </dev/null >>~/{output}.steps 2>&1 &"
        lab.slurm("sh", "-c", f"{step % '--gres=gpu:2'} {step % '--gres=none'}", user="alice")  # told its GPUs, or none
        lab.kill("slurmd-n1", signal.SIGTERM)
        until(lambda: ended(lab, "slurmd-n1"), within=PATIENCE)
        lab.start("slurmd-n1")
        until(lambda: waits(lab, job), within=PATIENCE)
        said = lab.node("n1").run("sh", "-c", f"cat ~alice/{output}")
        of_steps = lab.slurm("sh", "-c", f"cat ~/{output}.steps", user="alice")
    assert ("STARTED" in said, "was turned away" in said) == (not fenced, fenced), said
    # Without the fence they start or not, as they reach slurmd before it stops listening or after: no claim about that.
    assert not (fenced and "STARTED" in of_steps), of_steps


@pytest.mark.parametrize(
    "submit",
    [
        ("srun", "-w", "n1", "--gres=gpu:1", "sbatch", "--wait", "-w", "n2", "--output=/dev/null", "--wrap", "true"),
        ("env", "SLURM_JOB_GPUS=0", "SLURM_STEP_GPUS=0", "srun", "-w", "n2", "true"),
    ],
)
def test_a_job_without_gpus_runs_whatever_gpus_its_submitter_had(
    lab: Lab, cluster: Cluster, submit: tuple[str, ...]
) -> None:
    """Slurm hands the environment on, and with it the GPUs of the step that the job was submitted from."""
    lab.slurm(*submit, user="alice")  # raises unless the job ends well


RESTARTS = 4
"""Of slurmctld: the first job after one was started without SLURM_JOB_GPUS in two of three (26.05.5)."""


def test_a_job_whose_gpus_slurm_does_not_name_has_them_lent(lab: Lab, cluster: Cluster) -> None:
    """Started while its node has yet to register with a slurmctld that has just started."""
    for _ in range(RESTARTS):
        lab.stop("slurmctld")
        lab.start("slurmctld")
        output = f"unnamed-{uuid.uuid4().hex}.out"
        job = lab.submit("#!/bin/sh\necho STARTED\nsleep 1000\n", "--nodelist=n1", "--gres=gpu:2", f"--output={output}")
        started = partial(begun, lab, output)
        until(started, within=PATIENCE, on_timeout=partial(lab.slurm, "squeue"))
        assert [loan["job"]["id"] for loan in loans(cluster, "n1")] == [job, job]
        lab.slurm("scancel", str(job))
        until(lambda: nothing_is_lent(cluster, "n1"), within=PATIENCE)


def begun(lab: Lab, output: str) -> None:
    assert "STARTED" in lab.node("n1").run("sh", "-c", f"cat ~alice/{output} 2>/dev/null || :")


@contextmanager
def impatient(lab: Lab, node: str) -> Iterator[None]:
    """The node's prologs wait for twenty seconds only."""
    settings = lab.layout.node(node) / config.FOLDER / "slurm.env"
    before = settings.read_text()
    settings.write_text(before + "DYNAMIG_WAIT=20\n")
    try:
        yield
    finally:
        settings.write_text(before)


def prolog_runs(lab: Lab, node: str) -> None:
    assert "prolog.d/50-dynamig" in lab.node(node).run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")


def ended(lab: Lab, daemon: str) -> None:
    assert lab.pid(daemon) is None


def waits(lab: Lab, job: int) -> None:
    assert lab.slurm("squeue", "--noheader", f"--jobs={job}", "--format=%T").split() == ["PENDING"]


# -- P2: a job is looked for by identity before it is submitted again --------------------------------------------------


@pytest.mark.parametrize("compose", [Bridge, without_identity])
def test_identity_before_submit(watch: Watch, compose: Compose) -> None:
    """Slurm's answer to a submit is lost: the job is there, and nobody was told."""
    with watch(compose) as (stage, findings):
        order(stage.proxies, "submit", faults.drop)
        pod = stage.cluster.pod("paid-once", mig(profile="1g.10gb"))
        stage.cluster.running(pod)
        submitted = holds_ever(stage, pod)
        stage.lab.slurm("scancel", *map(str, submitted))  # a bridge that knows of one only would leave the other
    assert len(submitted) == (1 if compose is Bridge else 2)
    assert findings == [NOTHING]


def holds_ever(stage: Stage, pod: str) -> list[int]:
    """Ids of all holds that slurmctld has ever had for the pod."""
    uid = stage.cluster.get("pod", pod)["metadata"]["uid"]
    found = [
        (j["job_id"], identity_of(j["admin_comment"])) for j in stage.lab.slurm_json("scontrol", "show", "jobs")["jobs"]
    ]
    return [job_id for job_id, i in found if i is not None and i.set_uid == uid and i.role is Role.HOLD]


# -- P5: what was committed is verified before its pod may run ---------------------------------------------------------


@pytest.mark.parametrize("compose", [Bridge, WithoutVerify])
def test_verify(watch: Watch, compose: Compose) -> None:
    """While the bridge's allocation of one claim is on its way, another bridge gives the same device to another."""
    with watch(compose) as (stage, findings):
        with two_holds_on_one_gpu(stage), stage.proxies.api.gate(KUBERNETES["allocate"]) as gate:
            yield_one_gpu(stage)
            gate.wait_reached()
            commit_as_another_bridge(stage)
        if compose is Bridge:
            stage.cluster.running("first", "second")
        else:
            until(lambda: both_verified(stage), within=PATIENCE)
    assert (findings == [NOTHING]) is (compose is Bridge), findings


@contextmanager
def two_holds_on_one_gpu(stage: Stage) -> Iterator[None]:
    """Two pods whose holds wait, for native jobs have all GPUs; `yield_one_gpu` lets both start on the same one."""
    with stage.no_gpu_empty():
        for pod in ("first", "second"):
            stage.cluster.pod(pod, mig(profile="1g.10gb"))
        until(lambda: both_wait(stage), within=PATIENCE)
        yield


def yield_one_gpu(stage: Stage) -> None:
    job = next(
        j for j in stage.lab.slurm_json("squeue")["jobs"] if j["job_state"][0] == "RUNNING" and j["nodes"] == "n1"
    )
    stage.lab.slurm("scancel", str(job["job_id"]))


def both_wait(stage: Stage) -> None:
    assert [h.state for pod in ("first", "second") for h in stage.holds_of(pod)] == ["PENDING", "PENDING"]


def commit_as_another_bridge(stage: Stage) -> None:
    """What the claim at the gate is about to get is allocated to the other claim, with the identity of a bridge."""
    client = connect(bridge.files(stage.lab.layout).kubeconfig)
    objects = ApiSets(client, names.DRIVER_NAME)

    def about_to_get() -> tuple[ClaimView, ClaimView]:
        held = [c for c in objects.all_held() if c.ref.namespace == NAMESPACE]
        (mine,) = [c for c in held if (note := hold_note(c)) is not None and note.devices]
        (other,) = [c for c in held if c.ref != mine.ref]
        return mine, other

    mine, other = until(about_to_get)
    device, attempt = noted(mine).devices[0], noted(other).attempt
    assert attempt is not None
    key = until(lambda: running_key(stage, attempt.set_uid))
    node = mine.annotations[names.NODE]
    note = HoldNote((device,), replace(attempt, job=key, shards=1, commits=1)).to_json()
    result = {"request": "mig", "driver": names.DRIVER_NAME, "pool": device.pool, "device": device.device}
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    allocation: dict[str, Any] = {
        "allocationTimestamp": to_rfc3339(time.time()),
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }
    objects.allocate(objects.note(other, {names.NODE: node, names.HOLD: note}), allocation)


def noted(claim: ClaimView) -> HoldNote:
    note = hold_note(claim)
    assert note is not None
    return note


def running_key(stage: Stage, set_uid: str) -> JobKey:
    job = next(
        j
        for j in stage.lab.slurm_json("squeue")["jobs"]
        if (i := identity_of(j["admin_comment"])) is not None and i.set_uid == set_uid
    )
    assert job["job_state"][0] == "RUNNING"
    return JobKey(job["job_id"], job["step_id"]["sluid"])


def both_verified(stage: Stage) -> None:
    for pod in ("first", "second"):
        assert names.VERIFIED in stage.cluster.claim_of(pod)["metadata"]["annotations"]


# -- P4: a hold is cancelled only after the node has reported that its claims are gone ---------------------------------


@pytest.mark.parametrize("compose", [Bridge, WithoutReport])
def test_report_before_cancel(lab: Lab, watch: Watch, compose: Compose) -> None:
    """Somebody takes our finalizer off a claim whose instance is being destroyed, slowly. No prolog helps here."""
    with watch(compose) as (stage, findings), without(lab, *PROLOGS):
        pod = stage.cluster.pod("torn", mig(profile="1g.10gb"))
        stage.cluster.running(pod)
        node, claim = stage.hold_of(pod).node, stage.cluster.claim_of(pod)["metadata"]["name"]
        stage.cluster.emulator(node).delay("nvmlGpuInstanceDestroy", float(SLOW_S), count=1)
        stage.let_go(pod)
        until(lambda: being_destroyed(stage), within=PATIENCE)
        tear_off(stage, claim)
        stage.gone(pod)  # by then the instance is, too
        stage.no_holds()
    assert (findings[0].looks == ()) is (compose is Bridge), findings


def being_destroyed(stage: Stage) -> None:
    (instance,) = stage.cluster.instances()
    assert instance.uuids == (), "its compute instance is still there"


def tear_off(stage: Stage, name: str) -> None:
    """Only the bridge itself may, so admission takes this for a bridge that errs."""
    client = connect(bridge.files(stage.lab.layout).kubeconfig)

    def torn() -> None:
        claim = read_claim(stage.cluster.get("resourceclaim", name), names.DRIVER_NAME)
        try:
            patch_metadata(client, names.DRIVER_NAME, claim, claim.finalizers - {names.HELD}, {})
        except Conflict as conflict:
            raise AssertionError(str(conflict)) from conflict

    until(torn)
