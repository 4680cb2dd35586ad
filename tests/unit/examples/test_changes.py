"""What is told as it happens: every change once, in words."""

from __future__ import annotations

from dataclasses import replace

from dynamig.cli.view import gpu_views
from examples.demo.changes import changes, place
from examples.demo.seen import Snapshot, snapshot
from tests.unit.cli.cluster import claim, mig_uuid, pool, slices
from tests.unit.examples.world import PLACED, POOLS, SHARING, api_claim, api_pod, books, on

EMPTY = books()


def told(before: Snapshot, after: Snapshot) -> list[str]:
    return list(changes(before, after))


def test_nothing_new_is_nothing_told() -> None:
    now = books(("notebook", "training"), {"train": "n1/gpu-0"}, waits=("pipeline", "evaluate"))
    assert told(now, now) == []


def test_a_pod_comes_up() -> None:
    assert told(EMPTY, books(("notebook",))) == [
        "notebook is scheduled to n2",
        "notebook is Running",
        "Slurm: job 3 for pod notebook runs on n2 and has 1 shard of GPU 0",
        f"n2/gpu-0, memory slice 4: 1g.10gb is cut for notebook: {mig_uuid(*PLACED['notebook'][0])}",
    ]


def test_what_slurm_says_to_a_pod_is_told_once() -> None:
    waiting = books(waits=("pipeline",))
    assert told(EMPTY, waiting) == ["pipeline is told: Slurm job 7 waits: Resources"]
    assert told(waiting, waiting) == []


def test_what_slurm_does_not_know_yet_is_not_told() -> None:
    assert told(EMPTY, snapshot([], [], [api_pod("pipeline", None, told="Slurm job 7 waits: None")])) == []


def test_a_gated_pod_to_which_nobody_spoke_has_nothing_to_tell() -> None:
    quiet = api_pod("pipeline", None, told="x")
    for reason in ("WaitingForClaims", None):
        quiet["status"]["conditions"][1]["reason"] = reason
        assert told(EMPTY, snapshot([], [], [quiet])) == []
    del quiet["status"]["conditions"][1]
    assert told(EMPTY, snapshot([], [], [quiet])) == []


def test_the_schedulers_reason_is_told_without_its_second_half() -> None:
    why = "0/2 nodes are available: 2 cannot allocate all claims. preemption: 0/2 nodes are available."
    unplaced = api_pod("pipeline", None)
    unplaced["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": why}]
    assert told(EMPTY, snapshot([], [], [unplaced])) == [
        "pipeline is told: 0/2 nodes are available: 2 cannot allocate all claims."
    ]


def test_a_native_job_waits_runs_and_is_over() -> None:
    waiting, runs = books(waits=("evaluate",)), books(native={"evaluate": "n2/gpu-0"})
    assert told(EMPTY, waiting) == ["Slurm: job 8 (evaluate of alice) waits: Resources"]
    assert told(waiting, runs) == [
        "Slurm: job 8 (evaluate of alice) runs on n2 and has all of GPU 0",
        "n2/gpu-0: lent to Slurm job 8, with MIG mode off",
    ]
    assert told(runs, EMPTY) == ["n2/gpu-0: given back by Slurm job 8", "Slurm: job 8 (evaluate of alice) is over"]


def test_a_job_that_was_just_submitted_has_no_reason_to_tell() -> None:
    fresh = books(waits=("evaluate",))
    assert told(EMPTY, replace(fresh, jobs=tuple(replace(j, reason="None") for j in fresh.jobs))) == []


def test_another_reason_of_slurm_is_told() -> None:
    waiting = books(waits=("evaluate",))
    other = replace(waiting, jobs=tuple(replace(j, reason="Priority") for j in waiting.jobs))
    assert told(waiting, other) == ["Slurm: job 8 (evaluate of alice) waits: Priority"]


def test_an_allocation_alone_is_not_told_as_cut() -> None:
    allocated = snapshot(slices(pool()), [claim("notebook", on("n1/gpu-0", "1g10gb-19-6"))], [])
    assert told(EMPTY, allocated) == []


def test_the_end_of_a_claim_is_told_with_its_place() -> None:
    assert set(told(books(("notebook", "training")), EMPTY)) >= {
        "n2/gpu-0, memory slice 4: empty again, 1g.10gb is destroyed",
        "n2/gpu-1: given back",
        "Slurm: job 3 for pod notebook is over",
        "notebook is gone",
    }


def test_a_place_names_slices_of_partitions_only() -> None:
    views = gpu_views(slices(POOLS["n2/gpu-0"], node="n2"), [api_claim("inference")])
    assert place(views[0].holdings[0]) == "n2/gpu-0, memory slices 0-3"


def test_what_is_given_back_is_told_before_what_is_handed_out() -> None:
    lines = told(books(native={"simulate": "n1/gpu-1"}), books(("pipeline",)))
    back = lines.index("n1/gpu-1: given back by Slurm job 2")
    over = lines.index("Slurm: job 2 (simulate of alice) is over")
    scheduled = lines.index("pipeline is scheduled to n1")
    cut = next(i for i, line in enumerate(lines) if "is cut for pipeline" in line)
    assert back < over < scheduled < cut


def test_a_claim_that_only_the_api_server_still_has_is_told_of_once_and_first() -> None:
    """The driver has emptied the GPU and cut it anew; the finalizer goes a moment later."""
    other = [(POOLS["n2/gpu-0"], POOLS["n2/gpu-0"].full_gpu)]
    before, end = books(("notebook",)), replace(books(SHARING[1:]), pods=(), jobs=())
    old = api_claim("notebook")
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    published = [s for p in POOLS.values() for s in slices(p, node=p.name.split("/")[0])]
    new = api_claim("inference")
    new["status"]["devices"][0]["device"] = other[0][1].name
    new["status"]["allocation"]["devices"]["results"][0]["device"] = other[0][1].name
    between = snapshot(published, [old, new], [])
    first, second = told(before, between), told(between, end)
    gone = "n2/gpu-0, memory slice 4: empty again, 1g.10gb is destroyed"
    assert first.index(gone) < next(i for i, line in enumerate(first) if "ready for inference" in line)
    assert gone not in second
