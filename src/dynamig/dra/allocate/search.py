"""Exact search for devices: complete, lazy, in the order of the policy, with a limit.

One device after the other, request by request, claim by claim, going back where nothing is left: the search of
kube-scheduler, and with FIRST_FIT the same first solution. What makes it fast keeps that solution:

- Candidates are the common bits of "selected", "counters suffice", "not in use" and "allowed by the constraints".
- A state in which the rest once failed is remembered. Identical requests reach the same state in any order, so their
  permutations cost nothing.
- Looking ahead, requests with the same candidates must together find enough of them.

The last one is left out while selectors fail on a device, or all devices are asked for under a constraint: then
kube-scheduler's answer depends on whether it gets to that device, and only walking as it does finds out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from dynamig.dra.allocate.bits import bit_numbers, bits_of
from dynamig.dra.allocate.claims import MAX_RESULTS
from dynamig.dra.allocate.decision import Refusal
from dynamig.dra.allocate.node import Occupancy
from dynamig.dra.allocate.plan import Cannot, ClaimPlan, Option, Plan, Question, expressions, selector_fails, where
from dynamig.dra.allocate.policy import FewestLost

Left = tuple[int | None, ...]


class State(NamedTuple):
    """`taken`: devices of this attempt. `mine`: those of the current claim. `allowed`: what each constraint of the
    current claim still allows. `left` and `fitting` as in `Occupancy`.
    """

    taken: int
    mine: int
    allowed: tuple[int, ...]
    left: Left
    fitting: int


class Need(NamedTuple):
    """Requests that share their candidates: so many devices in all. `rules` are those of claim number `claim`."""

    claim: int
    candidates: int
    rules: tuple[int, ...]
    wanted: int


class Search:
    """One attempt. `order`: None for FIRST_FIT. `names`: of the claims, for what is said to people.

    After `run` has said True, `picks` are options with their devices, and `state` is what is left.
    """

    def __init__(
        self,
        occupancy: Occupancy,
        plan: Plan,
        asked: Question,
        names: Sequence[str],
        order: FewestLost | None,
        limit: int,
    ) -> None:
        self.steps = 0
        self.picks: list[tuple[Option, int]] = []
        self.state = State(0, 0, (), occupancy.left, occupancy.fitting)
        self._node, self._held = occupancy.node, occupancy.held
        self._plan, self._asked, self._names, self._order, self._limit = plan, asked, names, order, limit
        self._failed: set[tuple[int, int, int, int, tuple[int, ...], Left]] = set()
        self._needs = self._node.once(("needs", asked), partial(_needs, plan))
        self._exactly_as_kubernetes = order is None and self._node.once(("aborts", asked), partial(_may_abort, plan))

    def run(self) -> bool:
        """Whether there is a solution. Raises: Cannot."""
        if not self._exactly_as_kubernetes and not all(map(self._all_together, self._plan)):
            return False
        return self._claim(0, self.state)

    def _all_together(self, claim: ClaimPlan) -> bool:
        """Whether the devices of each request for all could be taken if it were the only one.

        All partitions of a GPU exclude each other; no choice made before could change that.
        """
        for options in claim.requests:
            state = self.state
            for device in (options[0].every or ()) if len(options) == 1 else ():
                if not state.fitting >> device & 1:
                    return False
                state = self._after(options[0], device, state)
        return True

    def _claim(self, c: int, state: State) -> bool:
        if c == len(self._plan):
            self.state = state
            return True
        fresh = state._replace(mine=0, allowed=(-1,) * len(self._plan[c].rules))
        return self._promising(c, 0, fresh) and self._request(c, 0, fresh)

    def _request(self, c: int, r: int, state: State) -> bool:
        requests = self._plan[c].requests
        if r == len(requests):
            return self._claim(c + 1, state)
        key = (c, r, state.taken, state.mine, state.allowed, state.left)
        if key in self._failed:
            return False
        for option in requests[r]:
            if state.mine.bit_count() + option.count > MAX_RESULTS:
                continue
            if option.every is not None:
                done = bool(option.every) and self._all(c, r, option, option.every, state)
            else:
                done = self._some(c, r, option, option.count, option.candidates | option.failing, state)
            if done:
                return True
        self._failed.add(key)
        return False

    def _some(self, c: int, r: int, option: Option, count: int, rest: int, state: State) -> bool:
        """`count` more devices out of `rest`, then what comes after them. Each set of devices is tried once."""
        if count == 0:
            return self._request(c, r + 1, state)
        unused = rest & ~self._unavailable(option, state)
        aborting = unused & option.failing if self._exactly_as_kubernetes else 0
        able = unused & option.candidates & state.fitting & _allowed(option, state)
        if not self._exactly_as_kubernetes and count > 1:
            for i in option.rules:
                able = self._plan[c].rules[i].with_room(able, count)
        if not aborting and able.bit_count() < count:
            return False
        for device in self._ordered(able | aborting, state):
            if aborting >> device & 1:
                raise Cannot(self._selector_fails(option, device))
            rest &= ~(1 << device)
            if after := self._go_on(c, r, option, device, state):
                if self._some(c, r, option, count - 1, rest, after):
                    return True
                self.picks.pop()
        return False

    def _all(self, c: int, r: int, option: Option, devices: tuple[int, ...], state: State) -> bool:
        """Exactly these devices, then what comes after them."""
        if not devices:
            return self._request(c, r + 1, state)
        device, rest = devices[0], devices[1:]
        bit = 1 << device
        if bit & self._unavailable(option, state) or not bit & state.fitting:
            return False
        if bit & self._node.intolerable(option.choice.tolerations):
            return False
        if not bit & option.candidates & _allowed(option, state):
            if self._exactly_as_kubernetes:
                raise Cannot(self._constraint_breaks(option, device))
            return False
        if after := self._go_on(c, r, option, device, state):
            if self._all(c, r, option, rest, after):
                return True
            self.picks.pop()
        return False

    def _go_on(self, c: int, r: int, option: Option, device: int, state: State) -> State | None:
        """The state with the device taken, which is picked then; None if that leads nowhere."""
        self.steps += 1
        if self.steps > self._limit:
            raise Cannot(_limit_reached(self._limit))
        after = self._after(option, device, state)
        if not self._promising(c, r + 1, after):
            return None
        self.picks.append((option, device))
        return after

    def _after(self, option: Option, device: int, state: State) -> State:
        bit, g = 1 << device, self._node.group_of[device]
        left, fitting = state.left, state.fitting
        if g >= 0:
            group = self._node.groups[g]
            rest = (left[g] or 0) - group.take(device)
            left = (*left[:g], rest, *left[g + 1 :])
            fitting = fitting & ~group.all | group.fitting(rest)
        allowed = state.allowed
        if option.rules and allowed:
            rules = self._plan[option.claim].rules
            allowed = tuple(rules[i].after(device, one) if i in option.rules else one for i, one in enumerate(allowed))
        return State(state.taken | bit, state.mine | bit, allowed, left, fitting)

    def _unavailable(self, option: Option, state: State) -> int:
        """In use for this option: admin access only minds devices of its own claim."""
        return state.mine if option.choice.admin else self._held | state.taken

    def _ordered(self, devices: int, state: State) -> Iterator[int]:
        return bit_numbers(devices) if self._order is None else self._order.order(devices, state.left)

    def _promising(self, c: int, r: int, state: State) -> bool:
        """Whether each need from request `r` of claim `c` on could be met if it were the only one."""
        if self._exactly_as_kubernetes or not (needs := self._needs[c][r]):
            return True
        free = state.fitting & ~self._held & ~state.taken
        for need in needs:
            able = free & need.candidates
            if need.claim == c:
                for i in need.rules:
                    able &= state.allowed[i]
            if able.bit_count() < need.wanted:
                return False
        return True

    def _selector_fails(self, option: Option, device: int) -> Refusal:
        texts = expressions(self._asked, option.choice)
        return selector_fails(self._node, where(self._names, option), texts, device)

    def _constraint_breaks(self, option: Option, device: int) -> Refusal:
        who = where(self._names, option)
        what = f"{who} asks for all devices, and a constraint of the claim forbids {self._node.ids[device]}"
        return Refusal("CONSTRAINT_BREAKS_ALL", what, "ask for a count instead, or drop the constraint", fatal=True)


def _allowed(option: Option, state: State) -> int:
    bits = -1
    for i in option.rules:
        bits &= state.allowed[i]
    return bits


def _may_abort(plan: Plan) -> bool:
    options = (option for claim in plan for request in claim.requests for option in request)
    return any(option.failing or (option.every and option.rules) for option in options)


def _needs(plan: Plan) -> list[list[tuple[Need, ...]]]:
    """For each claim and request what is needed from there on, in the claim itself and in the later ones.

    Alternatives and admin access are left out: what they need is not known, or not exclusive.
    """
    return [[tuple(_merged(plan, c, r)) for r in range(len(claim.requests) + 1)] for c, claim in enumerate(plan)]


def _merged(plan: Plan, first_claim: int, first_request: int) -> Iterator[Need]:
    wanted: dict[tuple[int, int, tuple[int, ...]], int] = {}
    for c in range(first_claim, len(plan)):
        for options in plan[c].requests[first_request if c == first_claim else 0 :]:
            if len(options) == 1 and not options[0].choice.admin:
                key = (c, options[0].candidates & _required(options[0]), options[0].rules)
                wanted[key] = wanted.get(key, 0) + max(options[0].count, 1)  # all of nothing is no answer either
    return (Need(*key, count) for key, count in wanted.items())


def _required(option: Option) -> int:
    return -1 if option.every is None else bits_of(option.every)


def _limit_reached(limit: int) -> Refusal:
    what = f"no answer after {limit} steps of the search"
    return Refusal("SEARCH_LIMIT", what, "ask with a count instead of several equal requests, or for fewer devices")
