"""The allocator beside Kubernetes' own on random cases: the same answer, and with first fit the same devices."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dynamig.dra.allocate import (
    Allocation,
    NodeDevices,
    Occupancy,
    Policy,
    Refusal,
    allocate,
    allocation_status,
    held_devices,
    offers_by_node,
    read_claim,
    read_class,
)
from tests.integration.oracle.cases import case, pairs_under_a_constraint
from tests.integration.oracle.oracle import Oracle

CASES = 2000
BATCH = 250
Object = dict[str, Any]


def occupancies(given: Object) -> dict[str, Occupancy]:
    offers = offers_by_node(given["resourceSlices"])
    held = held_devices(given["allocatedClaims"])
    names = [node["metadata"]["name"] for node in given["nodes"]]
    return {name: NodeDevices(name, offers.get(name, ())).occupied(held) for name in names}


def ask(given: Object, occupancy: Occupancy, policy: Policy) -> Allocation | Refusal:
    claims = [read_claim(one) for one in given["pods"][0]["claims"]]
    return allocate(occupancy, claims, {c.name: c for c in map(read_class, given["deviceClasses"])}, policy)


def outcome(answer: Allocation | Refusal) -> str:
    """In the oracle's words."""
    match answer:
        case Allocation():
            return "fits"
        case Refusal(fatal=True):
            return "fatal"
        case Refusal(code="POOL_INVALID"):
            return "nodeError"
        case Refusal(code="SEARCH_LIMIT"):
            return "limit"
        case _:
            return "nofit"


def picks(given: Object, answer: Allocation) -> dict[str, list[str]]:
    names = [f"d/{one['metadata']['name']}" for one in given["pods"][0]["claims"]]
    return {
        name: [f"{p.request}={p.device}{' (admin)' if p.admin else ''}" for p in chosen]
        for name, chosen in zip(names, answer.picks, strict=True)
    }


def statuses(given: Object, answer: Allocation) -> dict[str, Object]:
    classes = {c.name: c for c in map(read_class, given["deviceClasses"])}
    claims = [read_claim(one) for one in given["pods"][0]["claims"]]
    return {claim.name: allocation_status(answer, i, claim, classes) for i, claim in enumerate(claims)}


def compare(given: Object, theirs: Object) -> Counter[str]:
    seen: Counter[str] = Counter()
    for node, occupancy in occupancies(given).items():
        (expected,) = [one for one in theirs["pods"][0]["nodes"] if one["node"] == node]
        if expected["outcome"] == "timeout":
            seen["timeout of Kubernetes"] += 1
            continue
        where = f"{given['name']}, node {node}"
        first = ask(given, occupancy, Policy.FIRST_FIT)
        if outcome(first) == "limit":
            seen["limit of ours"] += 1
            continue
        assert outcome(first) == expected["outcome"], f"{where}: {first} but {expected}"
        if isinstance(first, Allocation):
            assert picks(given, first) == expected["picks"], where
            if theirs["pods"][0].get("node") == node:
                assert statuses(given, first) == theirs["pods"][0]["allocations"], where
        if expected["outcome"] != "fatal":
            fewest = ask(given, occupancy, Policy.FEWEST_LOST)
            assert outcome(fewest) == expected["outcome"], f"{where}: {fewest} but {expected}"
        seen[expected["outcome"]] += 1
    return seen


@pytest.mark.parametrize("first", range(0, CASES, BATCH))
def test_same_as_kubernetes(first: int, oracle: Oracle) -> None:
    cases = [case(number) for number in range(first, first + BATCH)]
    answers = oracle.run("allocate", cases, "-")
    seen: Counter[str] = Counter()
    for given, theirs in zip(cases, answers, strict=True):
        seen += compare(given, theirs)
    assert seen["fits"] > BATCH / 5, seen
    assert seen["nofit"] > BATCH / 5, seen
    assert seen["timeout of Kubernetes"] + seen["limit of ours"] < BATCH / 20, seen


def test_constraints_compare_as_kubernetes_does(oracle: Oracle) -> None:
    cases = pairs_under_a_constraint()
    seen: Counter[str] = Counter()
    for given, theirs in zip(cases, oracle.run("allocate", cases, "-"), strict=True):
        seen += compare(given, theirs)
    assert seen["fits"] >= 50, seen
    assert seen["nofit"] >= 50, seen
