"""The seven steps in memory: what Slurm holds, what Kubernetes allocates, and in which order things end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynamig.bridge.actions import LetGo, TakeBack
from dynamig.bridge.decide import LONGEST_PREPARE, one_job
from dynamig.bridge.sets import claim_sets
from dynamig.errors import Conflict, DynamigError, Refused, Unavailable
from dynamig.protocol import device_status, names
from dynamig.protocol.claims import read_claim
from dynamig.protocol.identity import JobKey
from dynamig.protocol.slurm_jobs import Ending, HeldGpu, JobState, SlurmNodeName
from tests.unit.bridge.stage import NODES, Stage, wants

N1 = SlurmNodeName("n1")


def test_a_pod_is_held_committed_verified_ungated_and_bound() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("3g.40gb"))
    stage.settle()
    (job,) = stage.slurm.jobs.values()
    assert job.state is JobState.RUNNING
    assert job.gpu is not None
    ((pool, _),) = stage.devices("a")
    assert pool == f"{job.node}/gpu-{job.gpu.index}", "the device is on the GPU that the job holds"
    assert stage.sets.pods["a"]["spec"]["nodeName"] == job.node
    claim = stage.sets.claims["a-0"]
    assert names.VERIFIED in claim["metadata"]["annotations"]
    assert claim["metadata"]["annotations"][names.NODE] == job.node


def test_the_order_of_release_hardware_first_then_the_job() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    stage.sets.finish_pod("a")
    for _ in range(5):
        stage.look()
    assert stage.job_states() == ["running"], "the claim is still held: nothing is known to be gone"
    stage.sets.driver_lets_go("a")
    stage.look()
    assert stage.job_states() == ["running"], "the driver still reports the claim"
    stage.driver_claims["n1"].clear()
    stage.driver_claims["n2"].clear()
    stage.look()
    assert stage.job_states() == ["ended"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Refused("INSTANCE_LOST", "GPU-n1-0: profile 19 at {0}:1 is not there"), names.INSTANCE_LOST),
        (Refused("FOREIGN_INSTANCE", "in the way"), "PrepareFailed"),
        (Unavailable("NODE_REBOOTED", "the node was rebooted"), None),
    ],
)
def test_a_pod_that_will_never_have_its_device_is_ended_and_told_why(error: DynamigError, told: str | None) -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    claim = stage.sets.claims["a-0"]
    view = read_claim(claim, names.DRIVER_NAME)
    claim["status"]["devices"] = list(device_status.failed(view, names.DRIVER_NAME, error, stage.now))
    stage.look()
    reason, message = stage.sets.told["a"][-1]
    assert ("deletionTimestamp" in stage.sets.pods["a"]["metadata"]) is (told is not None)
    assert reason == (told or names.PAID)
    assert told is None or error.what in message


@pytest.mark.parametrize(
    ("lists", "unnamed"),
    [(True, False), (False, False), (False, True)],
    ids=["listed-the-claim", "listed-none", "report-unreadable"],
)
def test_a_node_that_does_not_report_keeps_the_hold(lists: bool, unnamed: bool) -> None:
    """Whatever its last report says: it is too old to be believed, or says nothing, not even which Slurm node it is."""
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    stage.sets.finish_pod("a")
    stage.sets.driver_lets_go("a")
    stage.not_ready = set(NODES)
    if not lists:
        stage.driver_claims = {n: set() for n in NODES}
    if unnamed:
        stage.slurm_names = dict.fromkeys(NODES, SlurmNodeName(""))
    for _ in range(5):
        stage.look()
    assert stage.job_states() == ["running"]


def test_a_claim_that_its_node_never_saw_is_let_go_on_the_nodes_word() -> None:
    """Deleted between commit and bind: no driver knows of it, so none will let go of it."""
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.look()
    stage.look()
    ((pool, _),) = stage.devices("a")
    stage.sets.force_delete_pod("a")
    stage.settle()
    (claim,) = stage.sets.claims.values()
    assert names.HELD in claim["metadata"]["finalizers"]
    node = pool.split("/")[0]
    stage.driver_claims[node].add(claim["metadata"]["uid"])
    stage.now += 2 * LONGEST_PREPARE
    stage.settle()
    assert stage.job_states() == ["running"], "the driver reports the claim"
    stage.driver_claims[node].clear()
    stage.settle()
    assert stage.sets.claims == {}
    assert stage.job_states() == ["ended"]


def test_a_report_from_before_the_last_prepare_that_could_begin_says_nothing() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.look_for(2)
    assert stage.devices("a")
    stage.sets.force_delete_pod("a")
    stage.not_ready = set(NODES)
    stage.look_for(2 * LONGEST_PREPARE)
    assert names.HELD in stage.sets.claims["a-0"]["metadata"]["finalizers"]
    stage.not_ready = set()
    stage.settle()
    assert stage.sets.claims == {}


def test_a_node_that_is_not_ready_is_asked_for_nothing_and_given_nothing() -> None:
    stage = Stage(not_ready={"n1"})
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.look()
    assert stage.slurm.requests[1].purpose.nodes == ("n2",)
    stage.not_ready = set(NODES)
    stage.look_for(5)
    assert stage.devices("a") == []
    assert stage.sets.told["a"][-1][0] == names.NODE_NOT_READY


def test_a_paid_pod_whose_device_is_not_made_is_told_that_the_driver_is_silent() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.look_for(3)
    assert stage.sets.told["a"][-1][0] == names.PAID
    stage.not_ready = set(NODES)
    stage.look()
    reason, message = stage.sets.told["a"][-1]
    assert reason == names.NODE_NOT_READY
    assert message.endswith("pays for it, but its driver does not report")
    stage.not_ready = set()
    stage.settle()
    assert stage.sets.told["a"][-1][0] == names.PAID
    (claim,) = stage.sets.claims.values()
    claim["status"]["devices"] = [
        {"driver": names.DRIVER_NAME, "pool": "p", "device": "d"}
    ]  # made: it needs no driver now
    stage.not_ready = set(NODES)
    stage.look_for(3)
    assert stage.sets.told["a"][-1][0] == names.PAID


def test_a_claim_that_is_being_deleted_gets_no_device() -> None:
    stage = Stage()
    stage.take_all_gpus()
    stage.sets.create_claim("shared", wants("1g.10gb"))
    stage.sets.create_pod("a", uses=["shared"])
    stage.look_for(2)
    claim = stage.sets.claims["shared"]
    assert names.HELD in claim["metadata"]["finalizers"]
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    stage.slurm.end_native(N1, 0)
    stage.look_for(5)
    assert not claim["status"].get("allocation")


def test_a_claim_that_somebody_else_allocated_is_not_taken_for_one_that_never_had_a_device() -> None:
    """Of devices that the bridge did not choose it knows no node that could say that they are gone."""
    stage = Stage()
    stage.take_all_gpus()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    claim = stage.sets.claims["a-0"]
    stage.sets.force_delete_pod("a")
    result = {"request": "r", "driver": names.DRIVER_NAME, "pool": "n1/gpu-0", "device": "gpu-0"}
    claim["status"] = {"allocation": {"devices": {"results": [result]}}}
    stage.look_for(LONGEST_PREPARE + 5)
    assert names.HELD in claim["metadata"]["finalizers"]


def test_a_node_that_was_declared_out_of_service_lets_go_of_everything() -> None:
    """Its pods were removed by Kubernetes; its driver will never speak again."""
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    node = stage.sets.pods["a"]["spec"]["nodeName"]
    stage.sets.finish_pod("a")
    stage.not_ready = {node}
    for _ in range(5):
        stage.look()
    assert stage.job_states() == ["running"]
    stage.gone = {node}
    stage.settle()
    assert stage.job_states() == ["ended"]
    assert stage.sets.claims == {}


def test_pods_fill_the_gpus_without_overlap_and_the_next_one_waits_with_slurms_reason() -> None:
    stage = Stage()
    for n in range(28):
        stage.sets.create_pod(f"p{n}", wants("1g.10gb"))
        stage.settle()
    devices = [d for n in range(28) for d in stage.devices(f"p{n}")]
    assert len(set(devices)) == 28
    stage.sets.create_pod("late", wants("1g.10gb"))
    stage.settle()
    assert stage.sets.told["late"][-1] == ("SlurmPending", "Slurm job 29 waits: Resources")
    assert stage.devices("late") == []


def test_a_native_job_keeps_its_gpu_and_a_pod_waits_for_it() -> None:
    stage = Stage()
    stage.take_all_gpus()
    stage.sets.create_pod("a", wants("7g.80gb"))
    stage.settle()
    assert stage.devices("a") == []
    stage.slurm.end_native(N1, 1)
    stage.settle()
    assert stage.devices("a")[0][0] == "n1/gpu-1"
    assert not stage.slurm.start_native(N1, 1), "the GPU is held"


def test_a_request_that_no_gpu_can_serve_says_why() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("5g.60gb"))
    stage.settle()
    assert stage.sets.told["a"][-1][0] == "NoLegalPlacement"
    assert "5g.60gb" in stage.sets.told["a"][-1][1]
    assert stage.slurm.jobs == {}


def test_several_claims_of_one_pod_are_on_one_gpu_and_one_job() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("2g.20gb"), wants("1g.10gb"))
    stage.settle()
    (first, second) = stage.devices("a")
    assert first[0] == second[0]
    (job,) = stage.slurm.jobs.values()
    assert job.gpu is not None
    assert job.gpu.shards == 3


def test_scancel_before_the_pod_is_bound_ends_it() -> None:
    """Somebody cancelled it: asking again would be an argument with the administrator."""
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    while not stage.devices("a"):
        stage.look()
    stage.slurm.end(1, Ending.CANCELLED)
    stage.settle()
    assert stage.sets.told["a"][-1][0] == "SlurmJobCancelled"
    assert stage.sets.pods["a"]["metadata"]["deletionTimestamp"]
    assert names.HELD not in stage.sets.claims["a-0"]["metadata"]["finalizers"], "nothing was prepared"
    assert len(stage.slurm.jobs) == 1


def test_a_node_that_fails_before_the_pod_is_bound_takes_back_and_holds_anew() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    while not stage.devices("a"):
        stage.look()
    stage.slurm.end(1, Ending.NODE_FAIL)
    stage.settle()
    assert stage.slurm.jobs[2].identity.attempt == 2
    assert stage.sets.pods["a"]["spec"].get("nodeName")


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (Ending.CANCELLED, "SlurmJobCancelled"),
        (Ending.EXPIRED, "SlurmTimeLimit"),
        (Ending.PREEMPTED, "SlurmPreempted"),
    ],
)
def test_a_live_hold_that_somebody_ends_ends_its_pod_with_the_reason(ending: Ending, reason: str) -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    stage.slurm.end(1, ending)
    stage.look()
    assert stage.sets.pods["a"]["metadata"]["deletionTimestamp"]
    assert stage.sets.told["a"][-1][0] == reason


def test_a_pod_deleted_while_it_waits_leaves_nothing() -> None:
    stage = Stage()
    stage.take_all_gpus()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    stage.sets.pods["a"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    stage.settle()
    assert stage.job_states() == ["ended"]
    assert names.HELD not in stage.sets.claims["a-0"]["metadata"]["finalizers"]


def test_an_answer_that_was_lost_makes_no_twin() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    submit = stage.slurm.submit

    def loses(request: object) -> object:
        submit(request)  # type: ignore[arg-type]
        raise Unavailable("SLURM_UNAVAILABLE", "the answer was lost")

    stage.slurm.submit = loses  # type: ignore[method-assign,assignment]
    for _ in range(3):
        stage.look()
    stage.slurm.submit = submit  # type: ignore[method-assign]
    stage.settle()
    assert len(stage.slurm.jobs) == 1
    assert stage.devices("a")


@pytest.mark.parametrize("paid", [False, True], ids=["the-later-attempt", "the-one-that-pays"])
def test_of_a_sets_jobs_one_stays(paid: bool) -> None:
    """A job that was thought lost runs again while the next attempt waits."""
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.look_for(3 if paid else 1)
    (of,) = claim_sets(stage.world())
    first = stage.slurm.jobs[1]
    assert first.state is JobState.RUNNING
    purpose = replace(first.purpose, identity=replace(first.identity, attempt=2))
    second = replace(first, key=JobKey(2, "sluid-2"), purpose=purpose, state=JobState.PENDING)
    stays, goes = (first, second) if paid else (second, first)
    assert one_job((first, second), of) == (stays, (goes,))


def test_silence_of_slurm_changes_nothing() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    before = stage.devices("a")
    stage.slurm.silent = True
    with pytest.raises(Unavailable):
        stage.look()
    assert stage.devices("a") == before
    assert stage.sets.told.get("a", []) == [t for t in stage.sets.told.get("a", []) if t[0] != "SlurmJobEnded"]


@pytest.mark.parametrize("call", ["note", "allocate", "ungate"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_conflict_at_any_write_is_decided_anew(call: str, nth: int) -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("2g.20gb"))
    stage.sets.faults.fail(call, Conflict("CONFLICT", "injected"), nth=nth)
    stage.settle()
    assert stage.sets.pods["a"]["spec"].get("nodeName")
    assert [s for s in stage.job_states() if s == "running"] == ["running"]


def test_two_looks_change_nothing_the_second_time() -> None:
    stage = Stage()
    for n in range(3):
        stage.sets.create_pod(f"p{n}", wants("2g.20gb"))
    stage.settle()
    assert stage.look() == 0


def test_devices_that_cost_more_shards_than_the_job_holds_are_not_committed() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("4g.40gb"))
    stage.look()
    assert stage.slurm.jobs[1].gpu == HeldGpu(0, 4)
    stage.slurm.jobs[1] = replace(stage.slurm.jobs[1], gpu=HeldGpu(0, 3))
    stage.look()
    assert stage.devices("a") == []
    assert stage.slurm.jobs[1].state is JobState.ENDED


@pytest.mark.parametrize("by_hand", [False, True])
def test_what_kube_scheduler_has_reserved_for_a_pod_that_is_deleted_is_left_alone(by_hand: bool) -> None:
    """It binds the pod next, or the claim controller takes the reservation away."""
    stage = Stage()
    if by_hand:
        stage.sets.create_claim("a-0", wants("1g.10gb"))
        stage.sets.create_pod("a", uses=["a-0"])
    else:
        stage.sets.create_pod("a", wants("1g.10gb"))
    stage.look_for(2)
    claim = stage.sets.claims["a-0"]
    claim["status"]["reservedFor"] = [{"name": "a"}]
    stage.sets.delete_pod("a", 30)
    before = len(stage.done)
    stage.look_for(5)
    assert [action for action, _ in stage.done[before:] if isinstance(action, LetGo | TakeBack)] == []
    del claim["status"]["reservedFor"]
    stage.look()
    assert stage.devices("a") == []


def test_a_pod_that_runs_and_lost_one_allocation_keeps_the_other() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("2g.20gb"), wants("1g.10gb"))
    stage.settle()
    assert stage.sets.pods["a"]["status"]["phase"] == "Running"
    stage.sets.clear("a-0")
    before = len(stage.done)
    stage.look_for(5)
    assert [action for action, _ in stage.done[before:] if isinstance(action, TakeBack)] == []


def test_a_burst_of_pods_is_served_without_two_of_them_choosing_one_place() -> None:
    stage = Stage()
    for n in range(12):
        stage.sets.create_pod(f"p{n}", wants("2g.20gb"))
    for _ in range(6):
        stage.look()
        stage.sets.schedule()
    devices = [d for n in range(12) for d in stage.devices(f"p{n}")]
    assert len(devices) == len(set(devices)) == 12
    assert len(stage.slurm.jobs) == 12, "no hold had to be asked for twice"


def test_a_hold_pays_for_the_processors_of_its_pod() -> None:
    stage = Stage()
    stage.slurm.cpus = 4
    for n in range(3):
        stage.sets.create_pod(f"p{n}", wants("1g.10gb"), cpu="2500m")
        stage.settle()
    assert [r.purpose.cpus for r in stage.slurm.requests.values()] == [3, 3, 3]
    assert {j.node for j in stage.slurm.jobs.values()} == {"n1", "n2", None}, "the third waits for processors"
    assert stage.sets.told["p2"][-1][0] == "SlurmPending"


def test_what_pods_hold_stands_in_the_nodes_extra_beside_what_others_wrote() -> None:
    stage = Stage()
    stage.slurm.extra[N1] = {"rack": 7}
    stage.sets.create_pod("a", wants("3g.40gb"))
    stage.settle()
    node = SlurmNodeName(stage.sets.pods["a"]["spec"]["nodeName"])
    (entry,) = stage.slurm.extra[node][names.EXTRA_KEY]["claims"]
    assert (entry["claim"], entry["pods"], entry["gpu"]) == ("ns/a-0", ["a"], 0)
    assert entry["device"] == stage.devices("a")[0][1]
    stage.sets.finish_pod("a")
    stage.sets.driver_lets_go("a")
    stage.settle()
    assert stage.slurm.extra[N1] == {"rack": 7}


def test_a_pod_that_kube_scheduler_cannot_place_is_committed_thrice_and_then_held_elsewhere() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    nodes: list[str] = []
    while len(set(nodes)) < 2:
        stage.look()
        if stage.devices("a") and not stage.sets.pods["a"]["spec"]["schedulingGates"]:
            nodes.append(stage.devices("a")[0][0].split("/")[0])
            stage.unschedule("a")  # kube-scheduler clears the allocation of a pod that fits nowhere
    assert nodes == ["n1", "n1", "n1", "n2"]
    stage.now += 60
    stage.settle()
    assert stage.sets.pods["a"]["spec"]["nodeName"] == "n2"
    assert [s for s in stage.job_states() if s == "running"] == ["running"]


def test_a_gated_pod_that_is_deleted_by_force_leaves_nothing() -> None:
    stage = Stage()
    stage.take_all_gpus()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    stage.sets.force_delete_pod("a")
    stage.settle()
    assert stage.job_states() == ["ended"]
    assert stage.sets.claims == {}


def test_shards_that_slurm_only_counts_are_refused_with_the_reason() -> None:
    """Case C-67."""
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.look()
    stage.slurm.jobs[1] = replace(stage.slurm.jobs[1], gpu=HeldGpu(None, 1))
    stage.look()
    assert stage.sets.told["a"][-1][0] == "NoGpuIndex"
    assert "without saying on which GPU" in stage.sets.told["a"][-1][1]
    assert stage.slurm.jobs[1].state is JobState.ENDED
    assert stage.devices("a") == []


def test_a_suspended_hold_says_nothing_and_changes_nothing() -> None:
    stage = Stage()
    stage.sets.create_pod("a", wants("1g.10gb"))
    stage.settle()
    before = stage.devices("a")
    stage.slurm.jobs[1] = replace(stage.slurm.jobs[1], gpu=None)
    assert stage.look() == 0
    assert stage.devices("a") == before
