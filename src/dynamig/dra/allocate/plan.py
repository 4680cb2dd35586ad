"""The claims of one attempt against one node, as bits: what may serve each request, whoever holds it now.

A plan depends on the question and the node's devices only, so it is made once for all pods that ask the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from dynamig.dra.allocate.bits import bit_numbers
from dynamig.dra.allocate.claims import MAX_RESULTS, Choice, Claim, Constraint, DeviceClass, Mode, Request
from dynamig.dra.allocate.decision import Refusal
from dynamig.dra.allocate.node import NodeDevices
from dynamig.dra.allocate.offers import State
from dynamig.dra.cel import Read

Classes = Mapping[str, DeviceClass]


class Question:
    """What is asked, without the names of claims. Equal questions are one object (`question`)."""

    __slots__ = ("classes", "specs")

    def __init__(self, specs: tuple[Spec, ...], classes: tuple[DeviceClass, ...]) -> None:
        self.specs = specs
        self.classes = {one.name: one for one in classes}


Spec = tuple[tuple[Request, ...], tuple[Constraint, ...]]


def question(claims: Sequence[Claim], classes: Classes) -> Question:
    """The one question for these claims and the classes that they name."""
    named = {choice.device_class for claim in claims for request in claim.requests for choice in request.choices}
    known = tuple(classes[name] for name in sorted(named) if name in classes)
    return _interned(tuple((claim.requests, claim.constraints) for claim in claims), known)


@lru_cache(maxsize=256)
def _interned(specs: tuple[Spec, ...], classes: tuple[DeviceClass, ...]) -> Question:
    return Question(specs, classes)


MAX_DEVICES = 256
"""Devices of one pod. The search goes one call deeper for each; eight nodes full of GPUs would be fewer."""


class Cannot(Exception):
    """Carries a refusal out of the middle of the work; never leaves the package."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint on this node. `having`: devices with the attribute; no other may be taken.

    `alike`: per device the devices with the same value; for a list value nothing, as Kubernetes compares only single
    values. `values`: the same, each set once. `lists`: devices with a list value.
    """

    constraint: Constraint
    having: int
    alike: Mapping[int, int]
    values: tuple[int, ...]
    lists: int

    def after(self, device: int, allowed: int) -> int:
        """What may still be taken once the device is."""
        if self.constraint.distinct:
            return allowed & ~self.alike.get(device, 0) & ~self.lists
        return allowed & self.alike.get(device, 0)

    def with_room(self, devices: int, count: int) -> int:
        """Those of the devices that the rule lets be taken together with enough others to make `count`."""
        if self.constraint.distinct:
            return devices
        enough = 0
        for alike in self.values:
            if (devices & alike).bit_count() >= count:
                enough |= devices & alike
        return enough


@dataclass(frozen=True, slots=True)
class Option:
    """One choice on this node, for claim number `claim`.

    `matching`: what its selectors take. `failing`: where they fail. `candidates`: of the matching, those without
    taints and with the attributes of the constraints. `count`: how many are wanted. `every`: for ALL the devices
    that it must have. `rules`: numbers of the claim's constraints that concern it.
    """

    claim: int
    choice: Choice
    matching: int
    failing: int
    candidates: int
    count: int
    every: tuple[int, ...] | None
    rules: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """Per request its options, in order."""

    requests: tuple[tuple[Option, ...], ...]
    rules: tuple[Rule, ...]


Plan = tuple[ClaimPlan, ...]


def plan(node: NodeDevices, asked: Question, names: Sequence[str]) -> Plan:
    """`names`: of the claims, for what is said to people.

    Raises: Cannot, for what no occupation of the node could change.
    """
    return node.once(asked, partial(_plan, node, asked, names))


def _plan(node: NodeDevices, asked: Question, names: Sequence[str]) -> Plan:
    made = tuple(_claim(node, asked, c, name) for c, name in enumerate(names))
    most = [sum(max(option.count for option in options) for options in claim.requests) for claim in made]
    if sum(min(count, MAX_RESULTS) for count in most) > MAX_DEVICES:
        what = f"{len(names)} claims of one pod, the first {names[0]}, may need more than {MAX_DEVICES} devices"
        raise Cannot(Refusal("TOO_MANY_DEVICES", what, "ask for fewer in one pod"))
    return made


def where(names: Sequence[str], option: Option) -> str:
    return _where(names[option.claim], option.choice)


def _where(claim: str, choice: Choice) -> str:
    return f"claim {claim}, request {choice.name}"


def expressions(asked: Question, choice: Choice) -> tuple[str, ...]:
    """The selectors of the class, then those of the request."""
    return asked.classes[choice.device_class].selectors + choice.selectors


def _claim(node: NodeDevices, asked: Question, c: int, name: str) -> ClaimPlan:
    requests, constraints = asked.specs[c]
    rules = tuple(node.once(one, partial(_rule, node, one)) for one in constraints)
    options = tuple(tuple(_options(node, asked, c, name, request, rules)) for request in requests)
    least = sum(min(option.count for option in alternatives) for alternatives in options)
    if least > MAX_RESULTS:
        what = f"claim {name} asks for {least} devices, {MAX_RESULTS} are the most"
        raise Cannot(Refusal("TOO_MANY_DEVICES", what, "split it into several claims", fatal=True))
    return ClaimPlan(options, rules)


def _rule(node: NodeDevices, constraint: Constraint) -> Rule:
    domain, _, name = constraint.attribute.partition("/")
    having = lists = 0
    alike: dict[int, int] = {}
    for value, devices in node.catalog.values(Read("attributes", domain, name)).items():
        if value is None:
            continue
        having |= devices
        if isinstance(value, tuple) and isinstance(value[0], type):
            alike |= dict.fromkeys(bit_numbers(devices), devices)
        else:
            lists |= devices
    return Rule(constraint, having, alike, tuple(set(alike.values())), lists)


def _options(
    node: NodeDevices, asked: Question, c: int, name: str, request: Request, rules: Sequence[Rule]
) -> Iterator[Option]:
    for choice in request.choices:
        if choice.device_class not in asked.classes:
            what = f"{_where(name, choice)} names the DeviceClass {choice.device_class}, which does not exist"
            raise Cannot(Refusal("UNKNOWN_CLASS", what, "create the class or correct its name", fatal=True))
        concerned = tuple(i for i, rule in enumerate(rules) if rule.constraint.concerns(request, choice))
        matching, failing = node.catalog.select(expressions(asked, choice))
        candidates = matching & ~node.intolerable(choice.tolerations)
        for i in concerned:
            candidates &= rules[i].having
        every = None
        if choice.mode is Mode.ALL:
            _check_all(node, _where(name, choice), expressions(asked, choice), failing)
            every = tuple(bit_numbers(matching))
        count = choice.count if every is None else len(every)
        yield Option(c, choice, matching, failing, candidates, count, every, concerned)


def _check_all(node: NodeDevices, who: str, texts: tuple[str, ...], failing: int) -> None:
    """ "All devices" has no meaning while some cannot be seen or told."""
    for offer, catalog in node.rejected_catalogs:
        pool = f"pool {offer.pool.driver}/{offer.pool.name}"
        match offer.state:
            case State.INCOMPLETE:
                code, then = "POOL_UPDATING", "it is tried again when the driver has published the rest"
            case State.INVALID:
                code, then = "POOL_INVALID", "its driver must be repaired"
            case _ if any(catalog.select(texts)):
                code, then = "POOL_UNSUPPORTED", "ask for a count, or let kube-scheduler allocate this claim"
            case _:
                continue
        what = f"{who} asks for all devices of {node.name}, and {pool} cannot be used: {offer.why}"
        raise Cannot(Refusal(code, what, then, fatal=offer.state is not State.UNSUPPORTED))
    if failing:
        raise Cannot(selector_fails(node, who, texts, (failing & -failing).bit_length() - 1))


def selector_fails(node: NodeDevices, who: str, texts: tuple[str, ...], device: int) -> Refusal:
    what = f"{who}, on device {node.ids[device]}: {node.catalog.why(texts, device)}"
    return Refusal("SELECTOR_FAILS", what, "let selectors test with has() or .? before they read", fatal=True)
