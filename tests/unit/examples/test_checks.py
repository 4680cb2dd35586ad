"""The demo's checks: all pass where all is well, and each thing that can be wrong fails the check that is about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dynamig.cli.holdings import HoldingState
from examples.demo import cast
from examples.demo.checks import all_checks, empty_gpus, overlaps
from examples.demo.evidence import Evidence
from examples.demo.seen import GpuSeen, Instance, JobSeen, MigSeen, Moment, Visible
from tests.unit.cli.cluster import mig_uuid
from tests.unit.examples.world import POOLS, UNUSED, books, evidence, full, later, moment, on

TRAIN_GPU, PIPELINE_GPU, SHARED, TRAINING_GPU = (
    str(POOLS[name].gpu.uuid) for name in ("n1/gpu-0", "n1/gpu-1", "n2/gpu-0", "n2/gpu-1")
)
NOTEBOOK_UUID = mig_uuid(*on("n2/gpu-0", "1g10gb-19-4")[0])


def failed(e: Evidence) -> set[str]:
    return {check.claims for check in all_checks(e) if not check.passed}


def with_gpu(moment: Moment, gpu: str, seen: GpuSeen) -> Moment:
    nodes = {
        name: replace(node, gpus={**node.gpus, gpu: replace(seen, minor=node.gpus[gpu].minor)})
        if gpu in node.gpus
        else node
        for name, node in moment.nodes.items()
    }
    return replace(moment, nodes=nodes)


def with_inside(moment: Moment, pod: str, seen: Visible, container: str = "main") -> Moment:
    return replace(moment, inside={**moment.inside, (pod, container): seen})


def with_job(moment: Moment, job_id: int, **changes: object) -> Moment:
    jobs = tuple(replace(j, **changes) if j.job_id == job_id else j for j in moment.api.jobs)  # type: ignore[arg-type]
    return replace(moment, api=replace(moment.api, jobs=jobs))


def without_job(moment: Moment, job_id: int) -> Moment:
    return replace(moment, api=replace(moment.api, jobs=tuple(j for j in moment.api.jobs if j.job_id != job_id)))


def without_instance(moment: Moment, gpu: str, uuid: str) -> Moment:
    there = moment.gpus[gpu]
    return with_gpu(moment, gpu, replace(there, instances=tuple(i for i in there.instances if uuid not in i.uuids)))


def more_instances(moment: Moment, gpu: str, *more: Instance) -> Moment:
    there = moment.gpus[gpu]
    return with_gpu(moment, gpu, GpuSeen(True, (*there.instances, *more)))


def test_all_pass_where_all_is_well() -> None:
    found = all_checks(evidence())
    assert [c.claims for c in found if not c.passed] == []
    assert all(c.seen for c in found)


# -- containers --------------------------------------------------------------------------------------------------------


def notebook_sees(e: Evidence, seen: Visible) -> Evidence:
    return replace(e, full=with_inside(e.full, "notebook", seen, "jupyter"))


def two_devices(e: Evidence) -> Evidence:
    seen = e.full.inside["notebook", "jupyter"]
    more = {**seen.mig, "MIG-other": MigSeen(SHARED, "NVIDIA H100 80GB HBM3 MIG 2g.20gb", 20096)}
    return notebook_sees(e, replace(seen, mig=more))


def other_uuid(e: Evidence) -> Evidence:
    other = {"MIG-other": MigSeen(SHARED, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984)}
    return notebook_sees(e, Visible({SHARED: True}, other))


def other_profile(e: Evidence) -> Evidence:
    other = {NOTEBOOK_UUID: MigSeen(SHARED, "NVIDIA H100 80GB HBM3 MIG 1g.20gb", 20096)}
    return notebook_sees(e, Visible({SHARED: True}, other))


def second_gpu(e: Evidence) -> Evidence:
    seen = e.full.inside["notebook", "jupyter"]
    return notebook_sees(e, replace(seen, gpus={**seen.gpus, TRAINING_GPU: True}))


def silent(e: Evidence) -> Evidence:
    rest = {key: value for key, value in e.full.inside.items() if key[0] != "notebook"}
    return replace(e, full=replace(e.full, inside=rest))


def elsewhere_on_the_hardware(e: Evidence) -> Evidence:
    moved = more_instances(without_instance(e.full, SHARED, NOTEBOOK_UUID), SHARED, Instance(5, 1, (NOTEBOOK_UUID,)))
    return replace(e, full=moved)


def not_on_the_hardware(e: Evidence) -> Evidence:
    return replace(e, full=without_instance(e.full, SHARED, NOTEBOOK_UUID))


def mig_on_under_training(e: Evidence) -> Evidence:
    return replace(e, full=with_gpu(e.full, TRAINING_GPU, GpuSeen(mig_on=True, instances=())))


def larger_than_needed(e: Evidence) -> Evidence:
    seen = e.full.inside["inference", "server"]
    grown = {uuid: replace(device, memory_mib=81152) for uuid, device in seen.mig.items()}
    return replace(e, full=with_inside(e.full, "inference", replace(seen, mig=grown), "server"))


def monitor_sees_embedding(e: Evidence) -> Evidence:
    return replace(e, full=with_inside(e.full, "inference", e.full.inside["embedding", "main"], "monitor"))


# -- books and hardware ------------------------------------------------------------------------------------------------


def foreign_instance(e: Evidence) -> Evidence:
    return replace(e, full=more_instances(e.full, SHARED, Instance(5, 1, ("MIG-foreign",))))


def overlap(e: Evidence) -> Evidence:
    return replace(e, full=more_instances(e.full, SHARED, Instance(3, 1, ())))


def alone_on_a_gpu(e: Evidence) -> Evidence:
    gpus = tuple(
        replace(g, holdings=tuple(replace(h, pool="n2/gpu-1") if "notebook" in h.pods else h for h in g.holdings))
        for g in e.full.api.gpus
    )
    return replace(e, full=replace(e.full, api=replace(e.full.api, gpus=gpus)))


def cdi_file_too_many(e: Evidence) -> Evidence:
    node = e.later.nodes["n1"]
    return replace(e, later=replace(e.later, nodes={**e.later.nodes, "n1": replace(node, cdi=node.cdi | {"uid-old"})}))


def journal_record_missing(e: Evidence) -> Evidence:
    node = e.later.nodes["n2"]
    return replace(e, later=replace(e.later, nodes={**e.later.nodes, "n2": replace(node, journal=frozenset())}))


# -- Slurm -------------------------------------------------------------------------------------------------------------


def nobody_pays(e: Evidence) -> Evidence:
    return replace(e, later=without_job(e.later, 3))


def two_pay(e: Evidence) -> Evidence:
    (job,) = e.later.api.paying("notebook")
    twice = (*e.later.api.jobs, replace(job, job_id=99))
    return replace(e, later=replace(e.later, api=replace(e.later.api, jobs=twice)))


def paid_as_another_user(e: Evidence) -> Evidence:
    return replace(e, later=with_job(e.later, 3, user="slurm"))


def paid_on_the_other_gpu(e: Evidence) -> Evidence:
    return replace(e, later=with_job(e.later, 3, shards={1: 1}))


def paid_on_the_other_node(e: Evidence) -> Evidence:
    return replace(e, later=with_job(e.later, 3, node="n1"))


def comment_of_another(e: Evidence) -> Evidence:
    (other,) = e.later.api.paying("embedding")
    return replace(e, later=with_job(e.later, 3, comment=other.comment))


def slurm_lends_another(e: Evidence) -> Evidence:
    return replace(e, full=with_job(e.full, 1, gpus=(1,)))


def loan_without_job(e: Evidence) -> Evidence:
    node = e.last.nodes["n1"]
    lent = replace(node, loans={**node.loans, PIPELINE_GPU: 77})
    return replace(e, last=replace(e.last, nodes={**e.last.nodes, "n1": lent}))


def job_saw_a_slice(e: Evidence) -> Evidence:
    return replace(e, looks={**e.looks, "evaluate": (GpuSeen(True, (Instance(0, 1, ("MIG-left",)),)), UNUSED)})


def job_never_looked(e: Evidence) -> Evidence:
    return replace(e, looks={**e.looks, "train": ()})


def cut_under_a_loan(e: Evidence) -> Evidence:
    return replace(e, later=more_instances(e.later, TRAIN_GPU, Instance(6, 1, ("MIG-x",))))


def whole_and_in_shards(e: Evidence) -> Evidence:
    return replace(e, later=with_job(e.later, 1, shards={0: 1}))


# -- waiting -----------------------------------------------------------------------------------------------------------


def pipeline_did_not_wait(e: Evidence) -> Evidence:
    return replace(e, full=replace(e.full, api=replace(e.full.api, pods=e.later.api.pods)))


def told_something_else(e: Evidence) -> Evidence:
    return replace(e, full=with_job(e.full, 7, reason="Licenses"))


def waited_for_nothing(e: Evidence) -> Evidence:
    node = e.full.nodes["n1"]
    free = replace(node, loans={TRAIN_GPU: node.loans[TRAIN_GPU]})
    return replace(e, full=replace(e.full, nodes={**e.full.nodes, "n1": free}))


def pipeline_ran_elsewhere(e: Evidence) -> Evidence:
    return replace(e, full=with_job(with_job(e.full, 1, gpus=(1,)), 2, gpus=(0,)))


def simulate_goes_on(e: Evidence) -> Evidence:
    simulate = next(j for j in e.full.api.jobs if j.name == "simulate")
    api = replace(e.later.api, jobs=(simulate, *e.later.api.jobs))
    return replace(e, later=replace(e.later, api=api))


def evaluate_overtook(e: Evidence) -> Evidence:
    return replace(e, later=with_job(e.later, 8, state="RUNNING", node="n1", gpus=(1,)))


def evaluate_got_another(e: Evidence) -> Evidence:
    return replace(e, last=with_job(e.last, 8, gpus=(1,)))


# -- the end -----------------------------------------------------------------------------------------------------------


def instance_left(e: Evidence) -> Evidence:
    return replace(e, end=more_instances(e.end, SHARED, Instance(6, 1, ("MIG-left",))))


def record_left(e: Evidence) -> Evidence:
    nodes = {**e.end.nodes, "n1": replace(e.end.nodes["n1"], journal=frozenset({"uid-left"}))}
    return replace(e, end=replace(e.end, nodes=nodes))


def loan_left(e: Evidence) -> Evidence:
    nodes = {**e.end.nodes, "n1": replace(e.end.nodes["n1"], loans={TRAIN_GPU: 1})}
    return replace(e, end=replace(e.end, nodes=nodes))


def claim_left(e: Evidence) -> Evidence:
    api = replace(e.end.api, claims={"uid": f"{cast.NAMESPACE}/team"})
    return replace(e, end=replace(e.end, api=api))


def hold_left(e: Evidence) -> Evidence:
    api = replace(e.end.api, jobs=books(("notebook",)).jobs)
    return replace(e, end=replace(e.end, api=api))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (two_devices, "notebook's"),
        (other_uuid, "notebook's"),
        (other_profile, "notebook's"),
        (second_gpu, "notebook's"),
        (silent, "notebook's"),
        (elsewhere_on_the_hardware, "notebook's"),
        (not_on_the_hardware, "hardware"),
        (mig_on_under_training, "training"),
        (larger_than_needed, "inference's"),
        (monitor_sees_embedding, "inference's"),
        (foreign_instance, "hardware"),
        (overlap, "three pods"),
        (alone_on_a_gpu, "three pods"),
        (cdi_file_too_many, "one CDI"),
        (journal_record_missing, "one CDI"),
        (nobody_pays, "one Slurm job"),
        (two_pay, "one Slurm job"),
        (paid_as_another_user, "one Slurm job"),
        (paid_on_the_other_gpu, "one Slurm job"),
        (paid_on_the_other_node, "one Slurm job"),
        (comment_of_another, "squeue's"),
        (slurm_lends_another, "native"),
        (loan_without_job, "native"),
        (job_saw_a_slice, "native"),
        (job_never_looked, "native"),
        (cut_under_a_loan, "no GPU"),
        (whole_and_in_shards, "no GPU"),
        (pipeline_did_not_wait, "pipeline had"),
        (told_something_else, "pipeline had"),
        (waited_for_nothing, "pipeline had"),
        (pipeline_ran_elsewhere, "pipeline got"),
        (simulate_goes_on, "pipeline got"),
        (evaluate_overtook, "evaluate"),
        (evaluate_got_another, "evaluate"),
        (instance_left, "all GPUs"),
        (record_left, "nothing is left on the nodes'"),
        (loan_left, "nothing is left on the nodes'"),
        (claim_left, "nothing is left in"),
        (hold_left, "nothing is left in"),
    ],
)
def test_what_is_wrong_fails_the_check_about_it(wrong: Callable[[Evidence], Evidence], told: str) -> None:
    assert any(claims.startswith(told) for claims in failed(wrong(evidence())))


def test_a_gpu_is_empty_that_is_neither_cut_nor_lent_nor_held_whole() -> None:
    assert empty_gpus(full()) == []
    assert empty_gpus(moment(("training",))) == [TRAIN_GPU, PIPELINE_GPU, SHARED]
    assert empty_gpus(later()) == []


def test_instances_of_different_gpus_do_not_overlap() -> None:
    one = GpuSeen(True, (Instance(0, 4, ()),))
    assert overlaps([one, one]) == 0
    assert overlaps([GpuSeen(True, (Instance(0, 4, ()), Instance(3, 1, ())))]) == 1


def test_the_worlds_holdings_are_ready_and_served() -> None:
    now = later().api
    assert {h.state for h in now.holdings} == {HoldingState.READY}
    assert all(now.served(role.pod) for role in cast.ROLES)


def test_a_pod_is_not_served_before_squeue_says_what_it_has() -> None:
    def untold(job: JobSeen) -> JobSeen:
        return replace(job, comment="Kubernetes pod dynamig-demo/notebook") if job.job_id == 3 else job

    now = later().api
    assert not replace(now, jobs=tuple(map(untold, now.jobs))).served("notebook")
