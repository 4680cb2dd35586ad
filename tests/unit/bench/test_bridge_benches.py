"""Benches of the bridge that need no lab, in small: that they measure what they say."""

from __future__ import annotations

import pytest

from bench import bridge_look
from bench.churn import MEAN_LIFE_S, PATIENCE, Arrival, arrivals, served
from bench.fake_cluster import GPUS, FakeCluster
from bench.placings import PROFILE, Bridge, FewestLost, FirstFit, Naive
from dynamig.bridge.actions import Submit
from dynamig.protocol.slurm_jobs import JobState

SHORT, LONG = MEAN_LIFE_S * PATIENCE / 2, MEAN_LIFE_S


def at(seconds: float, *profiles: str, life: float = LONG) -> list[Arrival]:
    return [Arrival(seconds, profile, life) for profile in profiles]


def whole_node(life: float = LONG) -> list[Arrival]:
    return at(0.0, *["7g.80gb"] * GPUS, life=life)


@pytest.mark.parametrize("way", [Bridge, Naive, FirstFit, FewestLost])
def test_every_way_fills_a_node_serves_who_waits_a_little_and_loses_who_waits_too_long(
    way: type[Bridge] | type[Naive] | type[FirstFit] | type[FewestLost],
) -> None:
    late = at(1.0, "1g.10gb")
    assert served(way(1), [*whole_node(SHORT), *late]) == frozenset(range(GPUS + 1))
    assert served(way(1), [*whole_node(LONG), *late]) == frozenset(range(GPUS))


def test_the_naive_bridge_counts_the_picks_that_the_bridge_avoids() -> None:
    """1g.20gb costs 1 shard at the end of a GPU and 2 elsewhere; whoever always asks for 1 is given GPUs whose end is
    taken."""
    pods = [*at(0.0, "4g.40gb", "3g.40gb"), *at(1.0, *["1g.20gb"] * 3)]
    naive, bridge = Naive(1), Bridge(1)
    assert served(bridge, pods) == frozenset(range(len(pods)))
    served(naive, pods)
    assert bridge.counts.wrong == 0
    assert bridge.counts.holds == len(pods)
    assert naive.counts.wrong > 0


def test_arrivals_are_the_same_for_the_same_seed_and_come_at_the_rate() -> None:
    pods = arrivals({"1g.10gb": 1}, at_once=5, number=1000, per_life=100.0, seed=1)
    assert pods == arrivals({"1g.10gb": 1}, at_once=5, number=1000, per_life=100.0, seed=1)
    assert [p.at for p in pods[:5]] == [0.0] * 5
    assert pods[-1].at == pytest.approx(10 * MEAN_LIFE_S, rel=0.2)


def test_a_filled_cluster_is_what_a_look_starts_from() -> None:
    cluster = bridge_look.filled(2)
    running = [name for name in cluster.sets.pods if cluster.running(name)]
    assert len(running) == 2 * bridge_look.PER_NODE
    assert len({job.key for job in cluster.slurm.jobs.values()}) == len(running)
    assert all(job.state is JobState.RUNNING for job in cluster.slurm.jobs.values())
    assert list(cluster.settle()) == [], "joined from its nodes it has nothing to do"
    cluster.arrive(["1g.10gb"])
    (submit,) = [a for a in cluster.settle() if isinstance(a, Submit)]
    assert submit.plan.choice is not None


def test_the_allocator_alone_places_what_fits() -> None:
    alone = bridge_look.Allocator(FakeCluster.of(1))
    assert alone.best_for(["3g.40gb"] * (2 * GPUS + 1)) == 2 * GPUS
    assert alone.best_for(["3g.40gb"]) == 1, "nothing of it stays"


def test_sizes_are_those_of_the_profiles() -> None:
    assert (PROFILE["1g.20gb"].size, PROFILE["7g.80gb"].size) == (2, 8)
