"""The allocator against simple definitions of what it promises, on made-up states."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from dynamig.dra.allocate import (
    Allocation,
    Claim,
    Constraint,
    DeviceId,
    NodeDevices,
    Occupancy,
    Policy,
    allocate,
    offers_by_node,
)
from dynamig.mig import Geometry, Partition, Table, fewest_lost
from tests.unit.dra.allocating import CLASSES, DRIVER, SAME_GPU, claim, exactly, slices, wants
from tests.unit.mig.models import A30, BY_HAND, H100

NODES = {name: NodeDevices("n1", offers_by_node(slices(geometry=model))["n1"]) for name, model in BY_HAND.items()}
TABLES = {name: Table(model) for name, model in BY_HAND.items()}
TWO_A30 = NodeDevices("n1", offers_by_node(slices(gpus=2, geometry=A30))["n1"])
FOUR_H100 = NodeDevices("n1", offers_by_node(slices(gpus=4))["n1"])


def device(partition: Partition, geometry: Geometry) -> DeviceId:
    """The published device of a partition."""
    profile = geometry.profile(partition.profile)
    node = next(node for name, node in NODES.items() if BY_HAND[name] is geometry)
    found = [
        node.ids[i]
        for i, (_, published) in enumerate(node.devices)
        if published.profile == profile.name
        and node.ids[i].device.endswith(f"-{partition.profile}-{partition.placement.start}")
    ]
    (only,) = found
    return only


@given(st.sampled_from(sorted(BY_HAND)), st.data())
@settings(deadline=None, max_examples=150)
def test_on_one_gpu_it_is_the_fewest_lost_of_the_geometry(model: str, data: st.DataObject) -> None:
    geometry, table = BY_HAND[model], TABLES[model]
    live: list[Partition] = []
    for _ in range(data.draw(st.integers(0, 5))):
        if possible := table.possible(live):
            live.append(data.draw(st.sampled_from(possible)))
    profile = data.draw(st.sampled_from(geometry.profiles))
    expected = fewest_lost(table, live, profile.id)
    occupancy = NODES[model].occupied([device(one, geometry) for one in live])
    same_name = [p for p in geometry.profiles if p.name == profile.name]
    answer = allocate(occupancy, [wants(profile.name)], CLASSES)
    if expected is None:
        assert len(same_name) > 1 or not isinstance(answer, Allocation)
    elif len(same_name) == 1:
        assert isinstance(answer, Allocation)
        assert answer.picks[0][0].device == device(expected, geometry)


def free_sets(occupancy: Occupancy, wanted: list[str], same_gpu: bool) -> Iterable[tuple[int, ...]]:
    """Every legal answer, by trying all combinations."""
    node = occupancy.node
    by_request = [
        [i for i, (_, d) in enumerate(node.devices) if d.profile == profile and not occupancy.held >> i & 1]
        for profile in wanted
    ]
    for chosen in product(*by_request):
        ids = [node.ids[i] for i in chosen]
        held = {node.ids[i] for i in range(len(node.ids)) if occupancy.held >> i & 1}
        if len(set(ids)) < len(ids) or (same_gpu and len({node.devices[i][1].gpu for i in chosen}) > 1):
            continue
        if all(left is not None for left in node.occupied(held | set(ids)).left):
            yield chosen


@given(
    st.lists(st.sampled_from(range(len(TWO_A30.ids))), max_size=4),
    st.lists(st.sampled_from(["1g.6gb", "2g.12gb", "4g.24gb"]), min_size=1, max_size=3),
    st.booleans(),
)
@settings(deadline=None, max_examples=120)
def test_it_finds_an_answer_exactly_if_there_is_one(held: list[int], wanted: list[str], same_gpu: bool) -> None:
    occupancy = TWO_A30.occupied({TWO_A30.ids[i] for i in held})
    if any(left is None for left in occupancy.left):
        return  # overdrawn: what is legal then is Kubernetes' own rule, shown beside it
    legal = list(free_sets(occupancy, wanted, same_gpu))
    asked = wants(*wanted, same_gpu=same_gpu)
    for policy in Policy:
        answer = allocate(occupancy, [asked], CLASSES, policy)
        assert isinstance(answer, Allocation) is bool(legal)
        if isinstance(answer, Allocation):
            chosen = tuple(TWO_A30.number[pick.device] for pick in answer.picks[0])
            assert chosen in legal
            if policy is Policy.FIRST_FIT:
                assert chosen == min(legal)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, len(FOUR_H100.ids) - 1)), max_size=30))
@settings(deadline=None, max_examples=60)
def test_changes_lead_to_the_same_state_as_counting_anew(steps: list[tuple[bool, int]]) -> None:
    now, held = FOUR_H100.occupied(), set[DeviceId]()
    for hold, i in steps:
        one = FOUR_H100.ids[i]
        if hold:
            now, held = now.changed(hold=[one]), held | {one}
        else:
            now, held = now.changed(release=[one]), held - {one}
        assert now == FOUR_H100.occupied(held)


CLAIMS = st.lists(
    st.builds(
        lambda profile, count, same: claim(
            exactly("r", profile, count),
            constraints=(SAME_GPU,) if same else (Constraint(f"{DRIVER}/parentUUID", True, frozenset()),) * (count < 3),
        ),
        st.sampled_from([p.name for p in H100.profiles]),
        st.integers(1, 4),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


@given(CLAIMS, st.lists(st.integers(0, 1000), max_size=12))
@settings(deadline=None, max_examples=150)
def test_what_is_given_is_legal_and_both_policies_agree_that_it_exists(claims: list[Claim], choices: list[int]) -> None:
    occupancy, held = FOUR_H100.occupied(), set[DeviceId]()
    for number in choices:
        free = [i for i in range(len(FOUR_H100.ids)) if occupancy.free >> i & 1]
        if free:
            held.add(FOUR_H100.ids[free[number % len(free)]])
            occupancy = FOUR_H100.occupied(held)
    answers = [allocate(occupancy, claims, CLASSES, policy) for policy in Policy]
    assert len({isinstance(answer, Allocation) for answer in answers}) == 1
    for answer in answers:
        if not isinstance(answer, Allocation):
            continue
        devices = [pick.device for picks in answer.picks for pick in picks]
        assert len(set(devices)) == len(devices)
        assert not set(devices) & held
        assert None not in FOUR_H100.occupied(held | answer.held).left
        for asked, picks in zip(claims, answer.picks, strict=True):
            gpus = [FOUR_H100.devices[FOUR_H100.number[pick.device]][1].gpu for pick in picks]
            for constraint in asked.constraints:
                assert len(set(gpus)) == (len(gpus) if constraint.distinct else 1)
            assert all(a != b for a, b in combinations([pick.device for pick in picks], 2))
