"""Who holds what, from slices and claims: every state of a claim and every shape of a pool."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamig.cli.holdings import STATES, Holding, HoldingState, holding_json
from dynamig.cli.view import GpuView, gpu_json, gpu_views
from dynamig.errors import Unavailable
from dynamig.mig import MiB
from dynamig.protocol import device_status, names
from dynamig.protocol.claims import read_claim
from dynamig.protocol.hold_note import Attempt, HoldNote, NotedDevice
from dynamig.protocol.identity import JobKey
from tests.unit.cli.cluster import (
    DRIVER,
    Object,
    claim,
    device,
    gpu_uuid,
    in_the_way,
    mig_uuid,
    pool,
    ready,
    slices,
    slices_of,
)

GPU = pool()
SMALL = (GPU, device("1g10gb-19-4", GPU))
HALF = (GPU, device("3g40gb-9-0", GPU))
WHOLE = (GPU, GPU.full_gpu)


def only(claims: list[Object], published: list[Object] | None = None) -> GpuView:
    (view,) = gpu_views(slices(GPU) if published is None else published, claims)
    return view


def holding(claims: list[Object]) -> Holding:
    (held,) = only(claims).holdings
    return held


def test_an_empty_gpu_is_free_on_all_slices() -> None:
    view = only([])
    assert (view.node, view.name, view.product) == ("n1", "n1/gpu-0", "NVIDIA H100 80GB HBM3")
    assert (view.memory_slices, view.devices, view.free) == (8, 26, tuple(range(8)))
    assert view.problem is None


def test_an_allocated_claim_holds_its_slices_before_the_driver_has_seen_it() -> None:
    view = only([claim("c", [HALF], pods=["p"])])
    (held,) = view.holdings
    assert (held.state, held.profile, held.memory_slices, held.uuid) == (
        HoldingState.ALLOCATED,
        "3g.40gb",
        (0, 1, 2, 3),
        None,
    )
    assert view.free == (4, 5, 6, 7)


def test_a_prepared_claim_is_ready_with_its_uuid() -> None:
    held = holding([ready(claim("c", [SMALL], pods=["p"]), [SMALL])])
    assert (held.state, held.uuid, held.pods) == (HoldingState.READY, mig_uuid(*SMALL), ("p",))
    assert held.gpu == gpu_uuid("n1", 0)


def test_the_full_gpu_is_held_over_all_slices() -> None:
    view = only([ready(claim("c", [WHOLE]), [WHOLE])])
    (held,) = view.holdings
    assert (held.profile, held.memory_slices, held.uuid) == (None, tuple(range(8)), gpu_uuid("n1", 0))
    assert view.free == ()


def test_a_claim_with_several_devices_has_one_holding_for_each() -> None:
    both = [SMALL, HALF]
    view = only([ready(claim("c", both, pods=["p"]), both)])
    assert [(h.memory_slices, h.claim) for h in view.holdings] == [((0, 1, 2, 3), "c"), ((4,), "c")]


def test_a_failed_prepare_says_why() -> None:
    asked = claim("c", [SMALL])
    error = Unavailable("IN_USE", "a client holds GPU instance 3", "wait")
    asked["status"]["devices"] = list(device_status.failed(read_claim(asked, DRIVER), DRIVER, error, 0.0))
    held = holding([asked])
    assert held.state is HoldingState.FAILED
    assert "a client holds GPU instance 3" in held.reason


def test_a_claim_that_is_deleted_leaves_and_keeps_its_uuid() -> None:
    leaving = ready(claim("c", [SMALL], deletionTimestamp="2026-01-01T00:00:00Z"), [SMALL])
    held = holding([leaving])
    assert (held.state, held.uuid) == (HoldingState.LEAVING, mig_uuid(*SMALL))


def test_a_deallocated_claim_still_holds_what_the_note_on_it_names() -> None:
    note = json.dumps({"devices": [{"pool": GPU.name, "device": HALF[1].name, "gpu": "GPU-0"}]})
    noted = claim("c", [], finalizers=[names.HELD], annotations={names.HOLD: note, names.NODE: "n1"})
    view = only([noted])
    (held,) = view.holdings
    assert (held.state, held.memory_slices, held.node) == (HoldingState.LEAVING, (0, 1, 2, 3), "n1")
    assert view.free == (4, 5, 6, 7)


@pytest.mark.parametrize(("job", "told"), [(JobKey(14, "s14"), 14), (None, None)])
def test_the_job_that_pays_is_the_one_on_the_note(job: JobKey | None, told: int | None) -> None:
    note = HoldNote((NotedDevice(GPU.name, SMALL[1].name, GPU.gpu.uuid),), Attempt("pod-uid", 1, job))
    paid = claim("c", [SMALL], finalizers=[names.HELD], annotations={names.HOLD: note.to_json()})
    assert holding([paid]).job == told
    assert holding_json(holding([paid]))["slurm_job"] == told


def test_a_note_that_cannot_be_read_does_not_hide_the_claim() -> None:
    noted = claim("c", [], finalizers=[names.HELD], annotations={names.HOLD: "{", names.NODE: "n1"})
    views = gpu_views(slices(GPU), [noted])
    assert [h.claim for v in views for h in v.holdings] == ["c"]


def test_a_claim_without_allocation_and_note_holds_nothing() -> None:
    assert only([claim("c", [])]).holdings == ()


def test_admin_access_looks_on_and_holds_nothing() -> None:
    looking = claim("c", [HALF])
    looking["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    view = only([looking])
    assert view.holdings[0].state is HoldingState.ADMIN
    assert view.free == tuple(range(8))


def test_devices_of_other_drivers_are_not_ours() -> None:
    other = claim("c", [HALF])
    other["status"]["allocation"]["devices"]["results"][0]["driver"] = "net.example.com"
    assert only([other]).holdings == ()


def test_another_driver_does_not_get_what_a_note_of_ours_names() -> None:
    note = json.dumps({"devices": [{"pool": GPU.name, "device": HALF[1].name, "gpu": "GPU-0"}]})
    leaving = claim("c", [], finalizers=[names.HELD], annotations={names.HOLD: note, names.NODE: "n1"})
    others = claim("d", [HALF], finalizers=[names.HELD])
    for published in ([], slices(GPU)):
        assert gpu_views(published, [leaving, others], "net.example.com") == ()


def test_a_gpu_without_mig_is_one_device() -> None:
    plain = pool(geometry=None, product_name="NVIDIA L4", memory=MiB(23034))
    (view,) = gpu_views(slices(plain), [claim("c", [(plain, plain.full_gpu)])])
    assert (view.memory_slices, view.free, view.devices) == (0, (), 1)
    assert view.holdings[0].memory_slices == ()


def test_an_incomplete_pool_says_so_and_shows_what_is_there() -> None:
    view = only([claim("c", [HALF])], slices(GPU)[1:])
    assert view.problem == "1 slices seen, 2 announced"
    assert view.holdings[0].memory_slices == (0, 1, 2, 3)


def test_a_pool_whose_devices_are_missing_is_still_seen() -> None:
    view = only([], slices(GPU)[:1])
    assert (view.name, view.devices) == ("n1/gpu-0", 0)
    assert view.problem is not None


def test_a_device_that_is_no_longer_published_is_shown_from_the_claim() -> None:
    (view,) = gpu_views([], [ready(claim("c", [HALF]), [HALF])])
    assert view.problem == "no longer published, but in claims"
    assert (view.name, view.uuid) == ("n1/gpu-0", gpu_uuid("n1", 0))
    assert view.holdings[0].memory_slices == (0, 1, 2, 3)


@pytest.mark.parametrize("also", ["values", "terms"])
def test_an_allocation_that_is_good_on_several_nodes_names_none(also: str) -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["n1", "n2"] if also == "values" else ["n1"]}
    terms = [{"matchFields": [field]}] * (2 if also == "terms" else 1)
    held = claim("c", [SMALL])
    held["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": terms}
    assert only([held], []).node is None


def test_whoever_may_not_read_slices_sees_what_the_claims_tell() -> None:
    told, untold = ready(claim("told", [HALF]), [HALF]), claim("untold", [SMALL])
    untold["status"]["allocation"]["nodeSelector"] = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    }
    (view,) = gpu_views(None, [told, untold])
    assert (view.name, view.node, view.problem) == ("n1/gpu-0", "n1", None), "nobody looked, so nothing is wrong"
    assert {h.claim: (h.profile, h.memory_slices) for h in view.holdings} == {
        "told": ("3g.40gb", (0, 1, 2, 3)),
        "untold": ("unknown", ()),
    }


def test_a_pool_of_several_gpus_becomes_one_view_each() -> None:
    """NVIDIA's driver publishes one pool for a node."""
    first, second = pool(number=0), pool(number=1)
    published = slices(first) + slices(second)
    for one in published:
        one["spec"]["pool"] = {"name": "n1", "generation": 1, "resourceSliceCount": len(published)}
    held = claim("c", [(second, device("3g40gb-9-4", second))])
    held["status"]["allocation"]["devices"]["results"][0]["pool"] = "n1"
    views = gpu_views(published, [held])
    assert [(v.name, v.uuid) for v in views] == [
        ("n1/gpu-0", gpu_uuid("n1", 0)),
        ("n1/gpu-1", gpu_uuid("n1", 1)),
    ]
    assert [len(v.holdings) for v in views] == [0, 1]
    assert views[1].free == (0, 1, 2, 3)


@given(st.sets(st.sampled_from([d.name for d in GPU.devices if d.partition]), max_size=3))
def test_withdrawn_slices_are_those_that_no_untainted_device_uses(foreign: set[str]) -> None:
    taken = {s for d in GPU.devices if d.name in foreign for s in slices_of(d)}
    taints = in_the_way(taken, GPU) if taken else {}
    tainted = pool(taints=taints)
    view = only([], slices(tainted))
    usable = {s for d in tainted.devices if not d.taints for s in slices_of(d)}
    assert taken <= set(view.withdrawn)
    assert not usable & set(view.withdrawn)
    assert set(view.free) | set(view.withdrawn) == set(range(8)), "nothing is held"
    assert sum(w.devices for w in view.withdrawals) == len(taints)


def test_taints_that_only_inform_withdraw_nothing() -> None:
    published = slices(GPU)
    for one in published[1]["spec"]["devices"]:
        one["taints"] = [{"key": "example.com/note", "effect": "None"}]
    view = only([], published)
    assert (view.withdrawn, view.withdrawals) == ((), ())


def test_views_are_by_node_and_name() -> None:
    published = slices(pool("n2"), node="n2") + slices(pool(number=1)) + slices(GPU)
    assert [v.name for v in gpu_views(published, [])] == ["n1/gpu-0", "n1/gpu-1", "n2/gpu-0"]


def test_json_has_the_fields_that_programs_rely_on() -> None:
    """Fields may be added; whoever removes or renames one breaks a script."""
    view = only([ready(claim("c", [SMALL], pods=["p"]), [SMALL])])
    body: dict[str, Any] = json.loads(json.dumps(gpu_json(view)))
    held = {
        "namespace": "ml",
        "claim": "c",
        "pods": ["p"],
        "node": "n1",
        "pool": "n1/gpu-0",
        "device": SMALL[1].name,
        "gpu": "GPU-n1-0",
        "profile": "1g.10gb",
        "memory_slices": [4],
        "state": "ready",
        "reason": "",
        "uuid": mig_uuid(*SMALL),
        "slurm_job": None,
    }
    assert body.pop("holdings") == [held]
    assert holding_json(view.holdings[0]) == held
    assert body == {
        "name": "n1/gpu-0",
        "node": "n1",
        "pool": "n1/gpu-0",
        "product": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-n1-0",
        "memory_slices": 8,
        "free": [0, 1, 2, 3, 5, 6, 7],
        "unusable": [],
        "withdrawn": [],
        "withdrawals": [],
        "devices": 26,
        "problem": None,
        "driver_silent_since": None,
        "lent_to": None,
    }


def test_every_state_is_explained() -> None:
    assert set(STATES) == set(HoldingState)
