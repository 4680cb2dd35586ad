"""Behind the kubelet's calls: what is told to the API, how often it is tried, and when a claim is let go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dynamig.driver.settler import IDLE, Settler
from dynamig.errors import Conflict, Refused, Unavailable
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.seen import Found
from tests.unit.driver.bench_node import BenchNode


class Bench:
    def __init__(self) -> None:
        self.node = BenchNode.with_gpus()
        self.pokes = 0
        self.settler = Settler(self.node.service, self.node.outside(), names.DRIVER_NAME, self.poke)

    def poke(self) -> None:
        self.pokes += 1

    def steps(self, seconds: float) -> None:
        """Lets time pass, as the loop does: it sleeps for as long as a step says."""
        end = self.node.clock.now + seconds
        while self.node.clock.now < end:
            self.node.clock.now += max(self.settler.step(), 0.05)

    def prepared(self, uid: str) -> ClaimRef:
        ref = self.node.allocated(uid, self.node.device("1g.10gb", 0))
        self.node.prepare(ref)
        return ref


def condition(bench: Bench, uid: str) -> tuple[str, str, str]:
    (entry,) = bench.node.claims.reported[uid]
    (found,) = entry["conditions"]
    return found["status"], found["reason"], found["message"]


def test_a_prepared_claim_is_reported_once_with_its_uuid() -> None:
    bench = Bench()
    bench.prepared("a")
    bench.settler.step()
    (entry,) = bench.node.claims.reported["a"]
    assert entry["data"]["uuid"] == bench.node.live()[0].compute[0].uuid
    assert condition(bench, "a")[0] == "True"
    bench.node.claims.faults.fail("report", Unavailable("API_UNAVAILABLE", "must not be called again"))
    bench.steps(60)


def test_a_report_that_fails_is_tried_until_it_succeeds() -> None:
    bench = Bench()
    for nth in (1, 2, 3):
        bench.node.claims.faults.fail("report", Unavailable("API_UNAVAILABLE", "down"), nth=nth)
    bench.prepared("a")
    bench.settler.step()
    assert "a" not in bench.node.claims.reported
    bench.steps(10)
    assert condition(bench, "a")[0] == "True"


def test_a_failed_prepare_says_why_and_whether_it_is_tried_again() -> None:
    bench = Bench()
    ref = bench.node.allocated("a", bench.node.device("1g.10gb", 0))
    bench.settler.failed(ref, Unavailable("PLACEMENT_BUSY", "held by claim x"))
    assert bench.pokes == 1
    bench.settler.step()
    status, reason, message = condition(bench, "a")
    assert (status, reason) == ("False", "PlacementBusy")
    assert "it is tried again" in message


def test_a_claim_that_is_over_is_let_go_and_forgotten() -> None:
    bench = Bench()
    ref = bench.prepared("a")
    bench.node.service.endings.unprepare("a")
    bench.steps(5)
    assert "a" in bench.node.journal.records(), "still allocated"
    bench.node.claims.deallocate(ref)
    bench.steps(40)
    assert bench.node.journal.records() == {}
    found = bench.node.claims.get(ref)
    assert isinstance(found, Found)
    assert not found.value.held


def test_a_conflict_while_letting_go_is_decided_anew() -> None:
    bench = Bench()
    ref = bench.prepared("a")
    bench.node.service.endings.unprepare("a")
    bench.node.claims.deallocate(ref, delete=True)
    bench.node.claims.faults.fail("let_go", Conflict("CONFLICT", "changed meanwhile"))
    bench.steps(5)
    assert bench.node.is_clean()


def test_what_could_not_be_destroyed_is_destroyed_later_without_being_asked() -> None:
    bench = Bench()
    ref = bench.prepared("a")
    for nth in (1, 2, 3):
        bench.node.gpus.faults.fail("destroy_gpu_instance", Unavailable("IN_USE", "a monitor"), nth=nth)
    with pytest.raises(Unavailable):
        bench.node.service.endings.unprepare("a")
    bench.node.claims.deallocate(ref, delete=True)
    bench.steps(60)
    assert bench.node.is_clean()


def test_silence_of_the_api_server_keeps_everything() -> None:
    bench = Bench()
    bench.prepared("a")
    bench.node.service.endings.unprepare("a")
    bench.node.claims.silent = True
    bench.steps(120)
    assert "a" in bench.node.journal.records()


def test_a_failure_to_ask_takes_nothing_from_a_claim_that_is_prepared() -> None:
    bench = Bench()
    ref = bench.prepared("a")
    bench.settler.step()
    bench.settler.failed(ref, Unavailable("API_UNAVAILABLE", "for a second pod of the claim"))
    bench.steps(60)
    assert condition(bench, "a")[0] == "True"


def test_a_report_that_the_server_refuses_does_not_hold_the_claim() -> None:
    """The claim was allocated to another node before the failure was reported: its status is not ours any more."""
    bench = Bench()
    bench.prepared("old")
    ref = bench.node.allocated("a", bench.node.device("1g.10gb", 0))
    with pytest.raises(Unavailable) as failure:
        bench.node.prepare(ref)
    obj = bench.node.claims._objects["ns", "claim-a"]
    obj["status"]["allocation"]["devices"]["results"][0]["pool"] = "n2/gpu-0"
    bench.node.claims._touch(obj)
    for nth in range(1, 50):
        bench.node.claims.faults.fail("report", Refused("FORBIDDEN", "not this node's"), nth=nth)
    bench.settler.failed(ref, failure.value)
    bench.steps(60)
    found = bench.node.claims.get(ref)
    assert isinstance(found, Found)
    assert not found.value.held


def test_what_is_announced_while_a_claim_is_looked_at_is_looked_at_next(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.prepared("a")
    report = bench.node.claims.report

    def meanwhile(ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> None:
        report(ref, devices)
        bench.settler.changed(ref.uid)

    monkeypatch.setattr(bench.node.claims, "report", meanwhile)
    assert bench.settler.step() == 0.0
    assert bench.settler.step() == IDLE, "and once is enough"


def test_a_report_that_nobody_takes_does_not_hold_the_claim() -> None:
    bench = Bench()
    ref = bench.prepared("a")
    bench.node.service.endings.unprepare("a")
    for nth in range(1, 50):
        bench.node.claims.faults.fail("report", Unavailable("API_UNAVAILABLE", "down"), nth=nth)
    bench.settler.failed(ref, Unavailable("PLACEMENT_BUSY", "tried once more"))
    claim = bench.node.claims._objects[ref.namespace, ref.name]
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    bench.steps(5)
    assert not isinstance(bench.node.claims.get(ref), Found)


def test_a_failure_that_comes_while_an_older_one_is_reported_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    ref = bench.node.allocated("a", bench.node.device("1g.10gb", 0))
    report = bench.node.claims.report

    def meanwhile(ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> None:
        monkeypatch.setattr(bench.node.claims, "report", report)
        bench.settler.failed(ref, Unavailable("LENT", "the newer one"))
        report(ref, devices)

    monkeypatch.setattr(bench.node.claims, "report", meanwhile)
    bench.settler.failed(ref, Unavailable("PLACEMENT_BUSY", "the older one"))
    bench.steps(5)
    assert "the newer one" in condition(bench, "a")[2]
