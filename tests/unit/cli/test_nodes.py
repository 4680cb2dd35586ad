"""Silent drivers and nodes: said where it is known, and nothing said where it is not."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dynamig.cli.holdings import HoldingState
from dynamig.cli.nodes import Reports, clock
from dynamig.cli.view import CANNOT_LEAVE, OUT_OF_USE, PUBLISHED_NO_MORE, GpuView, gpu_json, gpu_views
from dynamig.dra import Taint
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.loans import Borrower, Loan
from dynamig.protocol.node_report import OwnGpu, Report
from dynamig.protocol.outages import Outage
from tests.unit.cli.cluster import Object, claim, device, gpu_uuid, pool, ready, slices

NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)
GPU = pool()
HALF = (GPU, device("3g40gb-9-0", GPU))
QUARTER = (GPU, device("1g10gb-19-6", GPU))


def lease(
    age_s: float = 5.0, *, node: str = "n1", registered: bool = True, loans: tuple[Loan, ...] = (), **changes: Any
) -> Object:
    told = {key: changes.pop(key) for key in ("outages", "gpus") if key in changes}
    report = Report("boot", 1, registered, (), loans=loans, **told).to_json()
    renewed = (NOW - timedelta(seconds=age_s)).isoformat().replace("+00:00", "Z")
    meta = {"name": names.lease_name(node), "annotations": {names.REPORT: report}}
    return {"metadata": meta, "spec": {"renewTime": renewed}} | changes


def node(ready_: str = "True", name: str = "n1") -> Object:
    condition = {"type": "Ready", "status": ready_, "lastTransitionTime": "2026-03-04T11:50:00Z"}
    return {"metadata": {"name": name}, "status": {"conditions": [condition]}}


def seen(
    *,
    leases: list[Object] | None,
    nodes: list[Object] | None = None,
    claims: list[Object] | None = None,
    published: bool = True,
) -> tuple[GpuView, ...]:
    def named(objects: list[Object] | None) -> dict[str, Object] | None:
        return None if objects is None else {o["metadata"]["name"]: o for o in objects}

    reports = Reports(named(leases), named(nodes), NOW)
    return gpu_views(slices(GPU) if published else [], claims or [], reports=reports)


def test_a_fresh_report_is_no_trouble() -> None:
    (view,) = seen(leases=[lease()], nodes=[node()])
    assert view.wrong == ""
    assert gpu_json(view)["driver_silent_since"] is None


def test_a_driver_that_does_not_report_is_silent_since_its_last_report() -> None:
    (view,) = seen(leases=[lease(61)])
    since = NOW - timedelta(seconds=61)
    assert view.wrong == f"driver silent since {clock(since, NOW)}"
    assert gpu_json(view)["driver_silent_since"] == since.isoformat()


@pytest.mark.parametrize(("age", "silent"), [(39.9, False), (40.0, False), (40.1, True)])
def test_four_renewals_may_be_lost(age: float, silent: bool) -> None:
    (view,) = seen(leases=[lease(age)])
    assert ("silent" in view.wrong) is silent


@pytest.mark.parametrize(("age", "told"), [(-29.0, False), (-31.0, True)])
def test_a_report_from_the_future_is_no_proof_of_life(age: float, told: bool) -> None:
    (view,) = seen(leases=[lease(age)])
    assert view.wrong.startswith("the node's clock is 31 s ahead") is told
    assert bool(view.wrong) is told


@pytest.mark.parametrize(("age", "late"), [(24.9, False), (25.1, True), (40.0, True)])
def test_two_lost_renewals_are_told_before_the_kubelet_takes_the_slices_away(age: float, late: bool) -> None:
    for published in (True, False):
        views = seen(leases=[lease(age)], published=published)
        assert [v.wrong for v in views if "driver last reported at" in v.wrong] == [v.wrong for v in views if late]
        assert len(views) == (published or late)
        assert all(gpu_json(v)["driver_silent_since"] is None for v in views)


def test_an_unregistered_driver_and_an_unreadable_report_are_told() -> None:
    assert seen(leases=[lease(registered=False)])[0].wrong == "driver is not registered with the kubelet"
    assert "cannot be read" in seen(leases=[lease(spec={})])[0].wrong
    broken = lease()
    broken["metadata"]["annotations"][names.REPORT] = "{"
    assert "cannot be read" in seen(leases=[broken])[0].wrong


def test_a_node_without_report_among_nodes_with_one_is_told() -> None:
    (view,) = seen(leases=[lease(node="n2")])
    assert view.wrong == "no driver of dynamig has reported"


def test_nothing_is_said_where_leases_may_not_be_read_or_nobody_of_ours_reports() -> None:
    assert seen(leases=None)[0].wrong == ""
    assert seen(leases=[])[0].wrong == ""


def test_a_node_that_is_not_ready_or_gone_is_told() -> None:
    assert seen(leases=[lease()], nodes=[node("Unknown")])[0].wrong.startswith("node not ready since ")
    assert seen(leases=[lease()], nodes=[node(name="n2")])[0].wrong == "the node does not exist"


def test_an_older_day_has_its_date() -> None:
    assert len(clock(NOW - timedelta(days=2), NOW)) == len("2026-03-02 12:00:00")
    assert len(clock(NOW - timedelta(seconds=1), NOW)) == len("12:00:00")


def test_a_dead_driver_without_claims_leaves_a_row_for_its_node() -> None:
    (view,) = seen(leases=[lease(99)], published=False)
    assert (view.name, view.devices, view.free, view.whole_is_free) == ("n1", 0, (), False)
    assert view.wrong.startswith("driver silent since")
    assert seen(leases=[lease()], published=False) == (), "a driver that has no GPUs is no trouble"


def test_a_dead_drivers_gpu_is_one_row_with_profiles_as_far_as_they_are_known() -> None:
    note = json.dumps({"devices": [{"pool": GPU.name, "device": QUARTER[1].name, "gpu": "GPU-n1-0"}]})
    held: dict[str, Any] = {"finalizers": [names.HELD], "annotations": {names.NODE: "n1", names.HOLD: note}}
    claims = [ready(claim("told", [HALF]), [HALF]), claim("new", [QUARTER], **held), claim("untold", [QUARTER])]
    (view,) = seen(leases=[lease(99)], published=False, claims=claims)
    assert {h.claim: h.profile for h in view.holdings} == {"told": "3g.40gb", "new": "unknown", "untold": "unknown"}
    assert (view.name, view.uuid, view.free) == ("n1/gpu-0", "GPU-n1-0", ())


def test_a_dead_drivers_whole_gpu_is_known_by_its_uuid() -> None:
    whole = (GPU, GPU.full_gpu)
    held = claim("c", [whole], finalizers=[names.HELD], annotations={names.NODE: "n1"})
    (view,) = seen(leases=[lease(99)], published=False, claims=[ready(held, [whole])])
    assert view.holdings[0].profile is None


def test_reports_say_nothing_of_other_drivers() -> None:
    other = [dict(s, spec=dict(s["spec"], driver="net.example.com")) for s in slices(GPU)]
    reports = Reports({lease(99)["metadata"]["name"]: lease(99)}, None, NOW)
    (view,) = gpu_views(other, [], "net.example.com", reports)
    assert view.wrong == ""


LOAN = Loan(GpuUuid("GPU-n1-0"), Borrower(12, "s1", 1), NOW.timestamp())


def test_a_loan_in_a_report_takes_the_whole_gpu() -> None:
    (view,) = seen(leases=[lease(loans=(LOAN,))])
    assert (view.loan, view.free, view.wrong) == (LOAN, (), "")
    assert gpu_json(view)["lent_to"] == {"slurm_job": 12, "restart": 1, "since": "2026-03-04T12:00:00+00:00"}


def test_a_loan_outlives_the_silence_of_its_driver() -> None:
    (view,) = seen(leases=[lease(61, loans=(LOAN,))])
    assert view.loan == LOAN
    assert "silent" in view.wrong


def test_a_loan_of_another_gpu_is_not_this_ones() -> None:
    (view,) = seen(leases=[lease(loans=(replace(LOAN, gpu=GpuUuid("GPU-n1-1")),))])
    assert (view.loan, view.free) == (None, tuple(range(8)))


@pytest.mark.parametrize("loans", [[{"v": 99}], [{"v": 1, "gpu": "GPU-n1-0"}], {"v": 1}, 7])
def test_loans_that_cannot_be_read_are_trouble(loans: object) -> None:
    odd = lease()
    report = json.loads(odd["metadata"]["annotations"][names.REPORT]) | {"loans": loans}
    odd["metadata"]["annotations"][names.REPORT] = json.dumps(report)
    (view,) = seen(leases=[odd])
    assert "cannot be read" in view.wrong
    assert view.loan is None


def test_loans_of_dynamigs_driver_say_nothing_of_another_drivers_gpus() -> None:
    other = [dict(s, spec=dict(s["spec"], driver="net.example.com")) for s in slices(GPU)]
    held = lease(loans=(LOAN,))
    (view,) = gpu_views(other, [], "net.example.com", Reports({held["metadata"]["name"]: held}, None, NOW))
    assert view.loan is None


UUID = GpuUuid(gpu_uuid("n1", 0))
SILENT = Outage("GPU_LOST", int((NOW - timedelta(minutes=7)).timestamp()))
WATCHED = replace(SILENT, until=int((NOW + timedelta(minutes=2)).timestamp()))


def out_of_use() -> list[Object]:
    """A GPU as its driver publishes it while it does not answer, or not for long enough."""
    taint = (Taint(names.UNHEALTHY_TAINT, "", "NoSchedule"),)
    return slices(pool(taints={d.name: taint for d in GPU.devices}))


def telling(outage: Outage) -> Reports:
    return Reports({"dynamig-node-n1": lease(outages={UUID: outage})}, None, NOW)


@pytest.mark.parametrize(
    ("outage", "words"),
    [
        (SILENT, f"does not answer its driver since {clock(NOW - timedelta(minutes=7), NOW)} (GPU_LOST)"),
        (
            WATCHED,
            "answers its driver again after GPU_LOST, offered again at "
            f"{clock(NOW + timedelta(minutes=2), NOW)} if it goes on",
        ),
    ],
)
def test_a_silent_gpu_and_one_that_is_watched_are_told_apart(outage: Outage, words: str) -> None:
    (view,) = gpu_views(out_of_use(), [], reports=telling(outage))
    assert view.problem == words
    (unread,) = gpu_views(out_of_use(), [], reports=Reports(None, None, NOW))
    assert unread.problem == OUT_OF_USE


@pytest.mark.parametrize(("outage", "why"), [(SILENT, CANNOT_LEAVE), (WATCHED, "")])
def test_what_leaves_a_silent_gpu_says_what_it_waits_for(outage: Outage, why: str) -> None:
    held = ready(claim("c", [HALF], pods=["p"]), [HALF])
    (view,) = gpu_views(out_of_use(), [held], reports=telling(outage), ending={("ml", "p")})
    assert [(h.state, h.reason) for h in view.holdings] == [(HoldingState.LEAVING, why)]
    (running,) = gpu_views(out_of_use(), [held], reports=telling(outage))
    assert [(h.state, h.reason) for h in running.holdings] == [(HoldingState.READY, "")]


def test_the_gpus_of_a_dead_driver_stay_in_sight_when_its_slices_are_gone() -> None:
    own = tuple(OwnGpu(GpuUuid(gpu_uuid("n1", n)), f"n1/gpu-{n}", "H100") for n in range(2))
    held = [ready(claim("c", [HALF]), [HALF])]
    first, second = seen(leases=[lease(61, gpus=own)], published=False, claims=held)
    assert (first.uuid, first.product, [h.claim for h in first.holdings]) == (own[0].uuid, "H100", ["c"])
    assert (second.name, second.uuid, second.product) == ("n1/gpu-1", own[1].uuid, "H100")
    assert second.wrong == f"driver silent since {clock(NOW - timedelta(seconds=61), NOW)}; {PUBLISHED_NO_MORE}"
    assert seen(leases=[lease(5, gpus=own)], published=False) == (), "it will publish them"
