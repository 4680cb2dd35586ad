"""What is in the way of claims that found no room: in numbers, or in the selectors themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dynamig.dra.allocate.decision import Refusal
from dynamig.dra.allocate.node import NodeDevices, Occupancy
from dynamig.dra.allocate.offers import State
from dynamig.dra.allocate.plan import ClaimPlan, Option, Plan, Question, Rule, expressions, selector_fails, where
from dynamig.dra.allocate.unmatched import unmatched


def no_room(occupancy: Occupancy, plan: Plan, asked: Question, names: Sequence[str]) -> Refusal:
    """The first request that finds too little by itself; else that they do not fit together."""
    for claim in plan:
        for options in claim.requests:
            if not any(_enough(occupancy, claim, option) for option in options):
                return _one_request(occupancy, claim, options, asked, names)
    everyone = ", ".join(where(names, options[0]) for claim in plan for options in claim.requests)
    what = f"{everyone}: each finds devices on {occupancy.node.name}, together they do not fit"
    return Refusal("NO_ROOM", what, "wait for devices to become free, or ask for less in one pod")


def _one_request(
    occupancy: Occupancy, claim: ClaimPlan, options: Sequence[Option], asked: Question, names: Sequence[str]
) -> Refusal:
    node, who = occupancy.node, where(names, options[0])
    if len(options) == 1 and (failing := options[0].failing) and not options[0].matching:
        device = (failing & -failing).bit_length() - 1
        told = selector_fails(node, who, expressions(asked, options[0].choice), device)
        return replace(told, fatal=False)  # kube-scheduler would have said so during the search, had it got there
    left_out = [*_rejected(node, options, asked)]
    if not left_out and not any(option.matching for option in options):
        none = "; or ".join(dict.fromkeys(unmatched(node, asked, option) for option in options))
        return Refusal("NO_MATCH", f"{who}: {none}", "correct the selector, or ask for what there is")
    counted = "; or ".join(_counts(occupancy, claim, option) for option in options)
    what = "; ".join([f"{who}: {counted}", *left_out])
    return Refusal("NO_ROOM", what, "wait for devices to become free, or ask for smaller ones")


def _enough(occupancy: Occupancy, claim: ClaimPlan, option: Option) -> bool:
    free = _free(occupancy, option)
    if option.every is not None:
        return bool(option.every) and free.bit_count() == option.count
    return all(_most_alike(claim.rules[i], free) >= option.count for i in option.rules) and (
        free.bit_count() >= option.count
    )


def _free(occupancy: Occupancy, option: Option) -> int:
    return option.candidates & occupancy.fitting & (-1 if option.choice.admin else ~occupancy.held)


def _most_alike(rule: Rule, free: int) -> int:
    """How many of the free devices a constraint lets be taken together."""
    values = {rule.alike.get(i, 1 << i) for i in range(free.bit_length()) if free >> i & 1}
    if rule.constraint.distinct:
        return len(values)
    return max(((value & free).bit_count() for value in values), default=0)


def _counts(occupancy: Occupancy, claim: ClaimPlan, option: Option) -> str:
    node, rest = occupancy.node, option.matching
    said = [f"{rest.bit_count()} of {len(node.ids)} devices of {node.name} match {option.choice.name}"]
    for bits, why in _obstacles(occupancy, option):
        if found := rest & bits:
            said.append(f"{found.bit_count()} {why}")
            rest &= ~bits
    for i in option.rules:
        constraint = claim.rules[i].constraint
        if (most := _most_alike(claim.rules[i], rest)) < rest.bit_count():
            said.append(f"at most {most} {'differ' if constraint.distinct else 'agree'} in {constraint.attribute}")
    wanted = "all" if option.every is not None else str(option.count)
    return ", ".join([*said, f"{rest.bit_count()} are free, {wanted} wanted"])


def _obstacles(occupancy: Occupancy, option: Option) -> Iterator[tuple[int, str]]:
    tainted = occupancy.node.intolerable(option.choice.tolerations)
    if not option.choice.admin:
        yield occupancy.held, "are held"
    keys = ", ".join(occupancy.node.taints_of(tainted & option.matching))
    yield tainted, f"have taints that are not tolerated ({keys})"
    yield option.matching & ~option.candidates & ~tainted, "lack an attribute of a constraint"
    yield ~occupancy.fitting, "overlap what is held"


def _rejected(node: NodeDevices, options: Sequence[Option], asked: Question) -> Iterator[str]:
    """Pools whose devices might have served, and are left out."""
    for offer, catalog in node.rejected_catalogs:
        wanted = any(any(catalog.select(expressions(asked, option.choice))) for option in options)
        if wanted or (offer.state is not State.UNSUPPORTED and not catalog.all):
            yield f"pool {offer.pool.driver}/{offer.pool.name} is left out: {offer.why}"
