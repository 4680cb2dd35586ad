"""Who may act: at most one, whatever is slow, stopped, or lies about the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from dynamig.errors import Conflict, Unavailable
from dynamig.kube.leader import (
    HELD_SECONDS,
    LEASE_SECONDS,
    RENEW_EVERY,
    Elector,
    Sighting,
    Step,
    cleared,
    next_step,
    sighted,
    written,
)
from dynamig.testing.checks import check_lease
from dynamig.testing.fake_lease import FakeLease


@dataclass
class World:
    """One Lease and one clock; the candidates' wall clocks are wrong on purpose."""

    lease: FakeLease = field(default_factory=FakeLease)
    now: float = 1000.0

    def candidate(self, name: str, *, wall: Callable[[], float] | None = None) -> Elector:
        return Elector(self.lease, name, clock=lambda: self.now, wall=wall or (lambda: self.now))

    @property
    def holder(self) -> str:
        assert self.lease.lease is not None
        return str(self.lease.lease["spec"].get("holderIdentity", ""))


def test_the_fake_is_a_lease() -> None:
    check_lease(FakeLease())


def test_the_first_acts_and_the_second_waits_as_long_as_it_renews() -> None:
    world = World()
    first, second = world.candidate("first"), world.candidate("second")
    for _ in range(30):
        first.step()
        second.step()
        world.now += RENEW_EVERY
        assert (first.held, second.held) == (True, False)


def test_a_dead_holder_is_followed_after_its_whole_duration_and_not_before() -> None:
    world = World()
    first, second = world.candidate("first"), world.candidate("second")
    first.step()
    second.step()
    seen = world.now
    while not second.held:
        world.now += 0.5
        second.step()
    assert world.now - seen == LEASE_SECONDS
    assert not first.held
    assert world.lease.lease is not None
    assert world.lease.lease["spec"]["leaseTransitions"] == 1


def test_wall_clocks_decide_nothing() -> None:
    """The holder's times lie an hour back: its Lease still counts from when it was seen to change."""
    world = World()
    first = world.candidate("first", wall=lambda: world.now - 900)
    second = world.candidate("second", wall=lambda: world.now + 9e8)
    first.step()
    second.step()
    world.now += LEASE_SECONDS - 1
    first.step()
    second.step()
    world.now += LEASE_SECONDS - 1
    second.step()
    assert world.holder == "first"


def test_a_holder_that_cannot_renew_stops_acting_before_anybody_may_follow() -> None:
    world = World()
    first = world.candidate("first")
    first.step()
    assert first.held
    world.now += HELD_SECONDS
    assert not first.held
    assert HELD_SECONDS < LEASE_SECONDS


def test_a_renewal_whose_answer_is_lost_does_not_count() -> None:
    world = World()
    first = world.candidate("first")
    first.step()
    world.now += HELD_SECONDS - 1
    world.lease.faults.fail("replace", Unavailable("API_UNAVAILABLE", "timeout"))
    with pytest.raises(Unavailable):
        first.step()
    world.now += 1
    assert not first.held
    first.step()
    assert first.held, "nobody took it, so it is ours again"


def test_who_was_stopped_for_long_finds_the_other_there() -> None:
    world = World()
    first, second = world.candidate("first"), world.candidate("second")
    first.step()
    second.step()
    world.now += LEASE_SECONDS
    second.step()
    assert (first.held, second.held) == (False, True)
    first.step()
    assert (first.held, world.holder) == (False, "second")


def test_whoever_sees_another_name_there_stops_at_once() -> None:
    world = World()
    first = world.candidate("first")
    first.step()
    assert world.lease.lease is not None
    world.lease.lease["spec"]["holderIdentity"] = "somebody"
    first.step()
    assert not first.held


def test_of_two_that_reach_for_it_one_wins() -> None:
    world = World()
    holder, one, two = world.candidate("holder"), world.candidate("one"), world.candidate("two")
    holder.step()
    one.step()
    two.step()
    world.now += LEASE_SECONDS
    read = world.lease.read()
    one.step()
    world.lease.read = lambda: read  # type: ignore[method-assign]  # two's read was before one's write
    with pytest.raises(Conflict):
        two.step()
    assert (one.held, two.held) == (True, False)


def test_a_clean_stop_lets_the_next_one_in_at_once() -> None:
    world = World()
    first, second = world.candidate("first"), world.candidate("second")
    first.step()
    second.step()
    first.stop()
    assert not first.held
    second.step()
    assert (second.held, world.holder) == (True, "second")


def test_whoever_stops_lets_go_of_its_own_only() -> None:
    world = World()
    first, second = world.candidate("first"), world.candidate("second")
    first.step()
    second.step()
    second.stop()
    assert world.holder == "first"


def test_a_label_on_the_lease_is_no_renewal() -> None:
    lease = {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": "other", "renewTime": "t"}}
    seen = sighted(None, lease, 10.0)
    labelled = {**lease, "metadata": {"resourceVersion": "2", "labels": {"a": "b"}}}
    assert sighted(seen, labelled, 20.0).since == 10.0


def test_the_lease_says_how_long_it_lasts() -> None:
    lease = {"spec": {"holderIdentity": "other", "leaseDurationSeconds": 60}}
    assert next_step(Sighting(lease, 0.0), "me", 59.9) is Step.WAIT
    assert next_step(Sighting(lease, 0.0), "me", 60.0) is Step.ACQUIRE
    assert next_step(Sighting({"spec": {"holderIdentity": "other"}}, 0.0), "me", LEASE_SECONDS - 0.1) is Step.WAIT


def test_times_and_transitions_are_as_client_go_writes_them() -> None:
    made = written(Sighting(None, 0.0), "me", 1_800_000_000.25)
    assert made == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2027-01-15T08:00:00.250000Z",
        "renewTime": "2027-01-15T08:00:00.250000Z",
        "leaseTransitions": 0,
    }
    renewed = written(Sighting({"spec": made}, 0.0), "me", 1_800_000_002.0)
    assert renewed == {**made, "renewTime": "2027-01-15T08:00:02.000000Z"}
    taken = written(Sighting({"spec": made}, 0.0), "other", 1_800_000_020.0)
    assert (taken["leaseTransitions"], taken["acquireTime"]) == (1, "2027-01-15T08:00:20.000000Z")
    let_go = cleared(Sighting({"spec": taken}, 0.0), 1_800_000_021.0)
    assert "holderIdentity" not in let_go
    assert (let_go["leaseDurationSeconds"], let_go["leaseTransitions"]) == (1, 1)


def test_the_thread_takes_the_lease_says_what_is_wrong_and_lets_go() -> None:
    lease = FakeLease()
    lease.faults.fail("read", Unavailable("API_UNAVAILABLE", "the API server is away"))
    elector = Elector(lease, "me")
    elector.start()
    for _ in range(2000):
        if elector.held:
            break
        assert elector.trouble in ("", "API_UNAVAILABLE the API server is away")
        elector._stopping.wait(0.01)
    assert elector.held
    assert elector.trouble == ""
    elector.stop()
    assert lease.lease is not None
    assert "holderIdentity" not in lease.lease["spec"]
