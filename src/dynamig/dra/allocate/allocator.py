"""Which devices a set of claims gets: on one node, or on the best of many (decision 0009)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dynamig.dra.allocate.claims import Claim
from dynamig.dra.allocate.decision import Allocation, Pick, Refusal
from dynamig.dra.allocate.explain import no_room
from dynamig.dra.allocate.node import Occupancy
from dynamig.dra.allocate.offers import State
from dynamig.dra.allocate.plan import Cannot, Classes, Question, plan, question
from dynamig.dra.allocate.policy import Demand, Policy, Score, fewest_lost
from dynamig.dra.allocate.search import Search

STEP_LIMIT = 20_000
"""Devices tried before the search gives up, about 0.2 s. The worst case known of Kubernetes' own takes 31,297 of its
steps and 48 of these (bench/allocate.py)."""

KEPT_ANSWERS = 64
"""Answers an occupancy keeps."""


Names = tuple[str, ...]
"""Of the claims, for what is said to people."""


class Found(NamedTuple):
    """A solution: per claim its (choice name, device number, admin access)."""

    picks: tuple[tuple[tuple[str, int, bool], ...], ...]
    score: Score
    steps: int


class _Manner(NamedTuple):
    """How to choose. `demand`: as pairs, since it is part of what an answer is kept by."""

    policy: Policy
    demand: frozenset[tuple[str, int]] | None
    limit: int


def allocate(
    occupancy: Occupancy,
    claims: Sequence[Claim],
    classes: Classes,
    policy: Policy = Policy.FEWEST_LOST,
    *,
    demand: Demand | None = None,
    limit: int = STEP_LIMIT,
) -> Allocation | Refusal:
    """Devices on this node for all claims together, or none.

    Whether they fit is Kubernetes' answer (1.37.2, default gates) with either policy, and with FIRST_FIT so are the
    devices. Where kube-scheduler would abort the attempt, FIRST_FIT gives a fatal refusal; FEWEST_LOST passes over
    a device on which a selector fails.

    `classes`: by name. `demand`: only for FEWEST_LOST, see `policy`. `limit`: steps of the search.
    """
    asked, names = question(claims, classes), tuple(claim.name for claim in claims)
    manner = _Manner(policy, None if demand is None else frozenset(demand.items()), limit)
    match _answer(occupancy, asked, names, manner):
        case Found() as found:
            return _allocation(occupancy, found)
        case refusal:
            return refusal or _no_room(occupancy, asked, names)


def best_node(
    nodes: Iterable[Occupancy],
    claims: Sequence[Claim],
    classes: Classes,
    policy: Policy = Policy.FEWEST_LOST,
    *,
    demand: Demand | None = None,
    limit: int = STEP_LIMIT,
) -> Allocation | Refusal:
    """The allocation with the smallest score, the first of equal ones; with FIRST_FIT the first at all.

    With FIRST_FIT a fatal refusal ends the search, as in kube-scheduler. What no node can serve is refused with the
    reasons counted, and one in full: the first node's that has such devices at all.
    """
    asked, names = question(claims, classes), tuple(claim.name for claim in claims)
    manner = _Manner(policy, None if demand is None else frozenset(demand.items()), limit)
    best: tuple[Score, Occupancy, Found] | None = None
    refusing: list[tuple[Occupancy, Refusal | None]] = []
    for occupancy in nodes:
        answer = _answer(occupancy, asked, names, manner)
        if isinstance(answer, Found):
            if policy is Policy.FIRST_FIT:
                return _allocation(occupancy, answer)
            if best is None or answer.score < best[0]:
                best = answer.score, occupancy, answer
        elif answer and answer.fatal and policy is Policy.FIRST_FIT:
            return answer
        else:
            refusing.append((occupancy, answer))
    return _allocation(*best[1:]) if best else _nowhere(refusing, asked, names)


def _answer(occupancy: Occupancy, asked: Question, names: Names, manner: _Manner) -> Found | Refusal | None:
    """What is found, now or when the same was asked before; None for no room, told only if somebody wants to know.

    Only refusals name the claims, so what holds for all is kept without their names.
    """
    answers, key = occupancy.answers, (asked, manner)
    for known in (key, (*key, names)):
        if known in answers:
            answer: Found | Refusal | None = answers[known]
            return answer
    if len(answers) >= KEPT_ANSWERS:
        answers.clear()
    try:
        answers[key] = answer = _search(occupancy, asked, names, manner)
    except Cannot as cannot:
        answers[(*key, names)] = answer = cannot.refusal
    return answer


def _search(occupancy: Occupancy, asked: Question, names: Names, manner: _Manner) -> Found | None:
    """Raises: Cannot."""
    order = fewest_lost(occupancy.node, manner.demand)
    made = plan(occupancy.node, asked, names)
    chosen = order if manner.policy is Policy.FEWEST_LOST else None
    search = Search(occupancy, made, asked, names, chosen, manner.limit)
    if not search.run():
        return None
    picks: list[list[tuple[str, int, bool]]] = [[] for _ in names]
    for option, device in search.picks:
        picks[option.claim].append((option.choice.name, device, option.choice.admin))
    score = order.score(occupancy.left, search.state.left, search.state.taken)
    return Found(tuple(map(tuple, picks)), score, search.steps)


def _allocation(occupancy: Occupancy, found: Found) -> Allocation:
    ids = occupancy.node.ids
    picks = tuple(tuple(Pick(name, ids[device], admin) for name, device, admin in claim) for claim in found.picks)
    return Allocation(occupancy.node.name, picks, found.score, found.steps)


def _no_room(occupancy: Occupancy, asked: Question, names: Names) -> Refusal:
    refusal = no_room(occupancy, plan(occupancy.node, asked, names), asked, names)
    if any(offer.state is State.INVALID for offer in occupancy.node.rejected):
        return Refusal("POOL_INVALID", refusal.what, "its driver must be repaired")
    return refusal


def _nowhere(nodes: Sequence[tuple[Occupancy, Refusal | None]], asked: Question, names: Names) -> Refusal:
    if not nodes:
        return Refusal("NO_ROOM", "no node offers devices", "see whether a driver publishes ResourceSlices")
    refusals = [refusal or _no_room(occupancy, asked, names) for occupancy, refusal in nodes]
    first = next((refusal for refusal in refusals if refusal.code != "NO_MATCH"), refusals[0])
    codes = Counter(refusal.code for refusal in refusals)
    counted = ", ".join(f"{code} on {count}" for code, count in codes.most_common())
    return Refusal(first.code, f"none of {len(nodes)} nodes ({counted}); {first.what}", first.next_step, first.fatal)
