"""A checked expression as nested closures, about a microsecond for a typical selector.

A closure takes the *frame*: a list with the device's four variables, the steps left, then one slot for each variable
of a comprehension. CEL has no recursion, so every variable has its slot when the closure is made.

Errors are exceptions. Two places hold them back, as CEL's logic demands: `&&` and `||` drop an error that the other
side decides, and an accumulator carries one until a later step absorbs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dynamig.dra.cel.functions import FUNCTIONS, Function
from dynamig.dra.cel.syntax import Call, Comprehension, Const, Expr, Ident, ListLiteral, MapLiteral, Select
from dynamig.dra.cel.values import (
    CelError,
    Optional,
    TypeValue,
    Value,
    among_constants,
    find,
    is_list,
    is_map,
    lookup,
    no_such_overload,
)

Frame = list[Value]
Program = Callable[[Frame], Value]

DEVICE = {"device.driver": 0, "device.allowMultipleAllocations": 1, "device.attributes": 2, "device.capacity": 3}
STEPS_LEFT = 4
MAX_STEPS = 200_000
"""Comprehension steps of one evaluation. Kubernetes accepts only expressions that it estimates to cost at most
1,000,000, about five a step (CELSelectorExpressionMaxCost, k8s.io/api resource/v1)."""

TYPES = {name: TypeValue(name) for name in ("bool", "int", "uint", "double", "string", "bytes", "list", "map")} | {
    "null_type": TypeValue("null_type"),
    "type": TypeValue("type"),
}


class Unsupported(Exception):
    """The expression is good CEL, and uses what this evaluator does not have."""


class _Failed:
    """An error in an accumulator."""

    __slots__ = ("error",)

    def __init__(self, error: CelError) -> None:
        self.error = error


Scope = Mapping[str, int]


def compile_expression(expression: Expr) -> tuple[Program, int]:
    """The program and the number of slots that its frame needs. Raises: Unsupported."""
    slots = [STEPS_LEFT + 1]
    return _compile(expression, DEVICE, slots), slots[0]


def _compile(node: Expr, scope: Scope, slots: list[int]) -> Program:
    match node:
        case Const(value):
            return lambda frame: value
        case Ident(name):
            return _variable(name, scope)
        case Select(operand, field, True):
            return _presence(_compile(operand, scope, slots), field)
        case Select(operand, field, _):
            return _select(_compile(operand, scope, slots), field)
        case Call("@in", (item, ListLiteral(elements, _))) if all(isinstance(one, Const) for one in elements):
            return _among(_compile(item, scope, slots), [one.value for one in elements if isinstance(one, Const)])
        case Call(function, arguments):
            return _call(function, [_compile(one, scope, slots) for one in arguments])
        case ListLiteral(elements, optional):
            return _list([_compile(one, scope, slots) for one in elements], optional)
        case MapLiteral(entries):
            return _map([(_compile(k, scope, slots), _compile(v, scope, slots), o) for k, v, o in entries])
        case Comprehension():
            return _fold(node, scope, slots)


def _among(item: Program, constants: list[Value]) -> Program:
    """Nothing is in an empty list, not even an error."""
    return (lambda frame: among_constants(item(frame), constants)) if constants else (lambda frame: False)


def _variable(name: str, scope: Scope) -> Program:
    if name in scope:
        slot = scope[name]
        return (lambda frame: frame[slot]) if name in DEVICE else (lambda frame: _unwrapped(frame[slot]))
    if name in TYPES:
        constant = TYPES[name]
        return lambda frame: constant
    raise Unsupported(f"the name {name}")


def _unwrapped(value: Value) -> Value:
    if type(value) is _Failed:
        raise value.error
    return value


def _select(operand: Program, field: str) -> Program:
    def select(frame: Frame) -> Value:
        container = operand(frame)
        if type(container) is dict:
            try:
                return container[field]
            except KeyError:
                raise CelError(f"no such key: {field}") from None
        return lookup(container, field)

    return select


def _presence(operand: Program, field: str) -> Program:
    return lambda frame: find(operand(frame), field).has


def _call(name: str, arguments: list[Program]) -> Program:
    if special := _SPECIAL.get(name):
        return special(*arguments)
    if (function := FUNCTIONS.get(name)) is None:
        raise Unsupported(f"the function {name}")
    return _applied(function, arguments)


def _applied(function: Function, arguments: list[Program]) -> Program:
    match arguments:
        case [only]:
            return lambda frame: function(only(frame))
        case [first, second]:
            return lambda frame: function(first(frame), second(frame))
        case _:
            return lambda frame: function(*(one(frame) for one in arguments))


def _logic(decisive: bool) -> Callable[[Program, Program], Program]:
    """`||` for True, `&&` for False: either side may decide, and then the other's error does not matter."""

    def combine(left: Program, right: Program) -> Program:
        def evaluate(frame: Frame) -> bool:
            failed: CelError | None = None
            try:
                if _truth(left(frame)) is decisive:
                    return decisive
            except CelError as error:
                failed = error
            try:
                if _truth(right(frame)) is decisive:
                    return decisive
            except CelError as error:
                raise failed or error from None
            if failed:
                raise failed
            return not decisive

        return evaluate

    return combine


def _truth(value: Value) -> bool:
    return value if value is True or value is False else no_such_overload()


def _conditional(condition: Program, yes: Program, no: Program) -> Program:
    return lambda frame: yes(frame) if _truth(condition(frame)) else no(frame)


def _not_strictly_false(condition: Program) -> Program:
    def evaluate(frame: Frame) -> bool:
        try:
            return condition(frame) is not False
        except CelError:
            return True

    return evaluate


_SPECIAL: dict[str, Callable[..., Program]] = {
    "_&&_": _logic(False),
    "_||_": _logic(True),
    "_?_:_": _conditional,
    "@not_strictly_false": _not_strictly_false,
}


def _list(elements: list[Program], optional: frozenset[int]) -> Program:
    if not optional:
        return lambda frame: [one(frame) for one in elements]

    def build(frame: Frame) -> list[Value]:
        values = [one(frame) for one in elements]
        return [v.value if i in optional else v for i, v in enumerate(values) if i not in optional or v.has]

    return build


def _map(entries: list[tuple[Program, Program, bool]]) -> Program:
    def build(frame: Frame) -> dict[Value, Value]:
        result: dict[Value, Value] = {}
        for key, program, optional in entries:
            value = program(frame)
            if optional and not (isinstance(value, Optional) and value.has):
                continue
            result[key(frame)] = value.value if optional else value
        return result

    return build


def _fold(node: Comprehension, scope: Scope, slots: list[int]) -> Program:
    over, initial = _compile(node.range, scope, slots), _held(_compile(node.initial, scope, slots))
    if "device" in (node.variable, node.accumulator):
        raise Unsupported("a local variable named device")
    item, total = slots[0], slots[0] + 1
    slots[0] += 2
    inner = {**scope, node.variable: item, node.accumulator: total}
    condition = _compile(node.condition, inner, slots)
    step = _held(_compile(node.step, inner, slots))
    result = _compile(node.result, inner, slots)

    def evaluate(frame: Frame) -> Value:
        values = over(frame)
        if not is_list(values) and not is_map(values):
            no_such_overload()
        frame[total] = initial(frame)
        for frame[item] in values:
            frame[STEPS_LEFT] -= 1
            if frame[STEPS_LEFT] < 0:
                raise CelError(f"more than {MAX_STEPS} steps")
            if condition(frame) is not True:
                break
            frame[total] = step(frame)
        return result(frame)

    return evaluate


def _held(program: Program) -> Program:
    def evaluate(frame: Frame) -> Value:
        try:
            return program(frame)
        except CelError as error:
            return _Failed(error)

    return evaluate
