"""A device selector: compiled once, then asked about any number of devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dynamig.dra.cel.checker import environment
from dynamig.dra.cel.evaluate import MAX_STEPS, Program, Unsupported, compile_expression
from dynamig.dra.cel.reads import Read, reads
from dynamig.dra.cel.regex import matches
from dynamig.dra.cel.syntax import Call, Const, Expr, decode
from dynamig.dra.cel.values import CelError, DomainMap, Quantity, Value, parse_semver
from dynamig.dra.cel.walk import walk
from dynamig.dra.read import PublishedDevice, PublishedValue
from dynamig.dra.version import Version
from dynamig.errors import Refused

MAX_LENGTH = 10 * 1024
"""CELSelectorExpressionMaxLength, k8s.io/api v0.37.2 resource/v1."""

OTHERS = (
    *("timestamp", "duration", "url", "isURL", "ip", "isIP", "cidr", "isCIDR", "find", "findAll", "format"),
    *("strings", "sortBy", "transformList", "transformMap", "transformMapEntry", "existsOne", "exists", "all"),
)
"""Functions that Kubernetes evaluates and this package does not; decision 0008 says why."""


@dataclass(frozen=True, slots=True)
class Selector:
    """`reads`: the attributes and capacities that decide the answer; None if that cannot be told beforehand."""

    expression: str
    reads: frozenset[Read] | None
    _program: Program
    _slots: int

    def matches(self, driver: str, device: PublishedDevice) -> bool:
        """Raises: CelError where evaluation fails on this device."""
        frame = [driver, False, *device_variables(driver, device), MAX_STEPS]
        frame += [None] * (self._slots - len(frame))
        try:
            answer = self._program(frame)
        except RecursionError:
            raise CelError("nested too deeply") from None
        if type(answer) is not bool:
            raise CelError(f"the result is a {type(answer).__name__}, not a bool")
        return answer


def compile_selector(expression: str) -> Selector:
    """Raises: Refused BAD_SELECTOR for an expression that Kubernetes would not take either, UNSUPPORTED_SELECTOR for
    one that it would.
    """
    if len(expression.encode()) > MAX_LENGTH:
        raise Refused("BAD_SELECTOR", f"a selector is longer than {MAX_LENGTH} bytes")
    try:
        tree = _parse(expression)
        program, slots = compile_expression(tree)
        return Selector(expression, reads(tree), program, slots)
    except Unsupported as error:
        raise _unsupported(expression, str(error)) from error
    except RecursionError as error:
        raise _unsupported(expression, "deeper nesting") from error


def device_variables(driver: str, device: PublishedDevice) -> tuple[DomainMap, DomainMap]:
    """`device.attributes` and `device.capacity`. Raises: CelError for a published version that is none."""
    attributes = {name: _attribute(value) for name, value in device.attributes.items()}
    capacity = {name: Quantity(amount) for name, amount in device.capacity.items()}
    return _by_domain(driver, attributes), _by_domain(driver, capacity)


def _by_domain(driver: str, values: Mapping[str, Value]) -> DomainMap:
    domains = DomainMap()
    for name, value in values.items():
        domain, slash, short = name.partition("/")
        domains.setdefault(domain if slash else driver, {})[short if slash else name] = value
    return domains


def _attribute(value: PublishedValue) -> Value:
    if isinstance(value, tuple):
        return [_attribute(one) for one in value]
    return parse_semver(value) if isinstance(value, Version) else value


def _parse(expression: str) -> Expr:
    if _FIELD_TEST.search(expression):
        raise _unsupported(expression, "has() of a field of device itself, which is always there")
    try:
        serialized = _checked(expression)
    except RuntimeError as error:  # the binding's only kind of error
        if not _only_mixed_numbers(str(error)):
            raise _compile_error(expression, str(error)) from error
        serialized = environment().compile(expression, disable_check=True).serialize()
    try:
        tree = decode(serialized)
    except ValueError as error:
        raise _unsupported(expression, str(error)) from error
    _check_patterns(expression, tree)
    return tree


def _checked(expression: str) -> bytes:
    checked = environment().compile(expression)
    if (result := checked.return_type().name()) not in ("BOOL", "DYN"):
        raise _bad(expression, f"its result is {result.lower()}, not bool")
    serialized: bytes = checked.serialize()
    return serialized


_FIELD_TEST = re.compile(r"\bhas\(\s*device\s*\.\s*\w+\s*\)")
"""cel-cpp takes `device.driver` for one name and would answer with its value."""

_MIXED = re.compile(
    r"no matching overload for '_(?:<|<=|>|>=)_' applied to '\((?:int|uint|double), (?:int|uint|double)\)'"
)


_REASON = re.compile(r"^(?:INVALID_ARGUMENT: )?ERROR: <input>:(.*)$", re.MULTILINE)
"""Line, column and reason; the lines between show the expression again."""


def _only_mixed_numbers(message: str) -> bool:
    """Whether nothing is wrong but comparisons as `1 < 1.5`, which Kubernetes allows and cel-cpp's checker does not."""
    return 0 < message.count("ERROR: ") == len(_MIXED.findall(message))


def _compile_error(expression: str, message: str) -> Refused:
    reason = "; ".join(_REASON.findall(message)) or message
    if "recursion limit exceeded" in message:
        return _unsupported(expression, "more than 32 levels of nesting")
    used = next((name for name in OTHERS if f"undeclared reference to '{name}'" in message), None)
    return _unsupported(expression, f"the function {used}") if used else _bad(expression, reason)


def _check_patterns(expression: str, tree: Expr) -> None:
    """A constant pattern is checked now, as Kubernetes does (cel.ValidateRegexLiterals)."""
    for node in walk(tree):
        match node:
            case Call("matches", (_, Const(str() as pattern))):
                try:
                    matches("", pattern)
                except CelError as error:
                    raise _bad(expression, str(error)) from error


def _bad(expression: str, why: str) -> Refused:
    return Refused("BAD_SELECTOR", f"selector {_quoted(expression)} does not compile: {why}", "correct the expression")


def _unsupported(expression: str, what: str) -> Refused:
    told = f"selector {_quoted(expression)} uses {what}, which dynamig does not evaluate"
    return Refused("UNSUPPORTED_SELECTOR", told, "write it without, or let kube-scheduler allocate this claim")


def _quoted(expression: str) -> str:
    """The expression on one line, cut if it is long."""
    line = " ".join(expression.split())
    return f"`{line}`" if len(line) <= 200 else f"`{line[:200]}...`"
