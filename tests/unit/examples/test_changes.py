"""What is told as it happens: every change once, in words."""

from __future__ import annotations

from dynamig.cli.view import gpu_views
from examples.demo.changes import changes, place
from examples.demo.seen import Snapshot, snapshot
from tests.unit.cli.cluster import claim, mig_uuid, pool, slices
from tests.unit.examples.world import PLACED, POOLS, WAITS, api_claim, api_pod, moment, on

EMPTY = moment(()).api


def told(before: Snapshot, after: Snapshot) -> list[str]:
    return list(changes(before, after))


def test_nothing_new_is_nothing_told() -> None:
    now = moment(("notebook", "training")).api
    assert told(now, now) == []


def test_a_pod_comes_up() -> None:
    after = snapshot([s for p in (pool(),) for s in slices(p)], [api_claim("notebook")], [api_pod("notebook", "n1")])
    assert told(EMPTY, after) == [
        "notebook is scheduled to n1",
        "notebook is Running",
        f"n1/gpu-0, memory slice 6: 1g.10gb is cut for notebook: {mig_uuid(*PLACED['notebook'][0][0])}",
    ]


def test_the_schedulers_reason_is_told_once_without_its_second_half() -> None:
    waiting = snapshot([], [], [api_pod("latecomer", None, waits=WAITS)])
    assert told(EMPTY, waiting) == [
        'latecomer waits; the scheduler says: "0/2 nodes are available: 2 cannot allocate all claims."'
    ]
    assert told(waiting, waiting) == []


def test_an_allocation_alone_is_not_told_as_cut() -> None:
    allocated = snapshot(slices(pool()), [claim("notebook", on("n1/gpu-0", "1g10gb-19-6"))], [])
    assert told(EMPTY, allocated) == []


def test_the_end_of_a_claim_is_told_with_its_place() -> None:
    full = moment(("notebook", "training")).api
    assert set(told(full, EMPTY)) >= {
        "n1/gpu-0, memory slice 6: empty again, 1g.10gb is destroyed",
        "n2/gpu-0: given back",
        "notebook is gone",
    }


def test_a_place_names_slices_of_partitions_only() -> None:
    views = gpu_views(slices(pool()), [api_claim("inference")])
    assert place(views[0].holdings[0]) == "n1/gpu-0, memory slices 0-3"


def test_what_is_given_back_is_told_before_what_is_handed_out() -> None:
    full, later = moment(("notebook", "training")).api, moment(("notebook", "latecomer")).api
    lines = told(full, later)
    back = lines.index("n2/gpu-0: given back")
    cut = next(i for i, line in enumerate(lines) if "is cut for latecomer" in line)
    scheduled = lines.index("latecomer is scheduled to n1")
    assert back < scheduled < cut


def test_a_claim_that_only_the_api_server_still_has_is_told_of_once_and_first() -> None:
    """The driver has emptied the GPU and cut it anew; the finalizer goes a moment later."""
    before, end = moment(("training",)).api, moment(("latecomer",)).api
    old = api_claim("training")
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    published = [s for p in POOLS.values() for s in slices(p, node=p.name.split("/")[0])]
    between = snapshot(published, [old, api_claim("latecomer")], [])
    first, second = told(before, between), told(between, end)
    assert first.index("n2/gpu-0: given back") < next(i for i, line in enumerate(first) if "cut for latecomer" in line)
    assert not any("given back" in line for line in second)
