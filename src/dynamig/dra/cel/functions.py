"""What the functions of an expression do, by name; the receiver of a member function is the first argument.

Sources: cel-go v0.29.2 (common/types, ext), k8s.io/apiserver v0.37.2 pkg/cel/library. The checker has seen the types
of all that is not dyn, so a wrong kind here is always "no such overload".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from dynamig.dra import quantity
from dynamig.dra.cel import lists, strings
from dynamig.dra.cel.conversions import to_bool, to_double, to_int, to_string, to_uint, type_of
from dynamig.dra.cel.regex import matches
from dynamig.dra.cel.values import (
    INT_MAX,
    INT_MIN,
    NONE,
    CelError,
    Optional,
    Quantity,
    Semver,
    TypeValue,
    Uint,
    Value,
    checked_int,
    checked_size,
    checked_uint,
    contains,
    equal,
    find,
    is_list,
    is_map,
    is_number,
    lookup,
    no_such_overload,
    parse_semver,
    surely_equal,
)
from dynamig.errors import Refused

Function = Callable[..., Value]


def typed(*kinds: type) -> Callable[[Function], Function]:
    """A function whose first arguments have exactly these kinds; any other is no overload of it."""

    def decorate(function: Function) -> Function:
        def checked(*arguments: Value) -> Value:
            for argument, kind in zip(arguments, kinds, strict=False):
                if type(argument) is not kind:
                    no_such_overload()
            return function(*arguments)

        return checked

    return decorate


def add(left: Value, right: Value) -> Value:
    if is_list(left) and is_list(right):
        return checked_size([*left, *right])
    if type(left) is not type(right):
        no_such_overload()
    match left:
        case Uint():
            return checked_uint(int(left) + right)
        case bool():
            no_such_overload()
        case int():
            return checked_int(left + right)
        case float():
            return left + right
        case str() | bytes():
            return checked_size(left + right)
    return no_such_overload()


def _arithmetic(exact: Callable[[int, int], int], floating: Callable[[float, float], float]) -> Function:
    def operate(left: Value, right: Value) -> Value:
        if type(left) is not type(right):
            no_such_overload()
        match left:
            case Uint():
                return checked_uint(exact(left, right))
            case bool():
                no_such_overload()
            case int():
                return checked_int(exact(left, right))
            case float():
                return floating(left, right)
        return no_such_overload()

    return operate


def _quotient(left: int, right: int) -> int:
    """Division as Go does it, towards zero."""
    if right == 0:
        raise CelError("division by zero")
    quotient = abs(int(left)) // abs(int(right))
    return quotient if (left < 0) == (right < 0) else -quotient


def _modulus(left: int, right: int) -> int:
    if right == 0:
        raise CelError("modulus by zero")
    return int(left) - int(right) * _quotient(left, right)


def _float_quotient(left: float, right: float) -> float:
    if right:
        return left / right
    return math.nan if not left or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)


def negate(value: Value) -> Value:
    if type(value) is int:
        return checked_int(-value)
    return -value if type(value) is float else no_such_overload()


def invert(value: Value) -> Value:
    return not value if type(value) is bool else no_such_overload()


def compare(left: Value, right: Value) -> int:
    """-1, 0 or 1. Raises: CelError for kinds without an order, and for NaN."""
    if is_number(left) and is_number(right):
        if math.isnan(left) or math.isnan(right):
            raise CelError("NaN values cannot be ordered")
    elif type(left) is not type(right) or type(left) not in (str, bool, bytes):
        no_such_overload()
    return bool(left > right) - bool(left < right)


def size(value: Value) -> int:
    return len(value) if is_list(value) or is_map(value) or type(value) in (str, bytes) else no_such_overload()


def to_quantity(text: str) -> Quantity:
    """Kubernetes also takes text without digits, `Gi` or `+`, as zero."""
    sign, digits = (text[:1], text[1:]) if text[:1] in ("+", "-") else ("", text)
    try:
        return Quantity(quantity.parse(f"{sign}0{digits}" if text else text))
    except Refused as error:
        raise CelError(error.what) from None


def _normalized(text: str) -> str:
    """`v1.02` -> `1.2.0`: short versions filled up, leading zeros dropped, as semver(text, true) reads them."""
    parts = text.removeprefix("v").split(".", 2)
    for i, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            parts[i] = stripped if stripped[:1].isdigit() else "0" + stripped
    if len(parts) < 3 and set("+-") & set(parts[-1]):
        raise CelError("a short version cannot have a pre-release or build metadata")
    return ".".join(parts + ["0"] * (3 - len(parts)))


def to_semver(text: str, normalize: bool = False) -> Semver:
    return parse_semver(_normalized(text) if normalize else text)


def _parses(parse: Function) -> Function:
    def question(*arguments: Value) -> bool:
        try:
            parse(*arguments)
        except CelError:
            return False
        return True

    return question


def _versions_or_quantities(answer: Callable[[int], Value]) -> Function:
    def ask(left: Value, right: Value) -> Value:
        if type(left) is not type(right):
            no_such_overload()
        if type(left) is Quantity:
            return answer((left.amount > right.amount) - (left.amount < right.amount))
        return answer(left.compare(right)) if type(left) is Semver else no_such_overload()

    return ask


def _quantity_arithmetic(sign: int) -> Function:
    def operate(left: Value, right: Value) -> Quantity:
        other: Any = right.amount if type(right) is Quantity else right if type(right) is int else no_such_overload()
        return Quantity(left.amount + sign * other) if type(left) is Quantity else no_such_overload()

    return operate


def _as_integer(value: Quantity) -> int:
    if value.amount.denominator != 1 or not INT_MIN <= value.amount <= INT_MAX:
        raise CelError("cannot convert value to integer")
    return int(value.amount)


def _is_zero(value: Value) -> bool:
    match value:
        case None:
            return True
        case Quantity():
            return value.amount == Fraction(0)
        case Semver() | Optional() | TypeValue():
            return False
        case _:
            return not value


def or_value(optional: Value, default: Value) -> Value:
    if not isinstance(optional, Optional):
        no_such_overload()
    return optional.value if optional.has else default


def either(first: Value, second: Value) -> Value:
    return first if isinstance(first, Optional) and first.has else second


def value_of(optional: Optional) -> Value:
    if not optional.has:
        raise CelError("optional.none() dereference")
    return optional.value


FUNCTIONS: dict[str, Function] = {
    "_==_": equal,
    "_!=_": lambda left, right: not surely_equal(left, right),
    "@in": contains,
    "_in_": contains,
    "_[_]": lookup,
    "_[?_]": find,
    "_?._": find,
    "_+_": add,
    "_-_": _arithmetic(lambda a, b: int(a) - int(b), lambda a, b: a - b),
    "_*_": _arithmetic(lambda a, b: int(a) * int(b), lambda a, b: a * b),
    "_/_": _arithmetic(_quotient, _float_quotient),
    "_%_": _arithmetic(_modulus, no_such_overload),
    "_<_": lambda left, right: compare(left, right) < 0,
    "_<=_": lambda left, right: compare(left, right) <= 0,
    "_>_": lambda left, right: compare(left, right) > 0,
    "_>=_": lambda left, right: compare(left, right) >= 0,
    "-_": negate,
    "!_": invert,
    "size": size,
    "int": to_int,
    "uint": to_uint,
    "double": to_double,
    "string": to_string,
    "bool": to_bool,
    "dyn": lambda value: value,
    "type": type_of,
    "matches": typed(str, str)(matches),
    # Kubernetes' own
    "quantity": typed(str)(to_quantity),
    "isQuantity": typed(str)(_parses(to_quantity)),
    "compareTo": _versions_or_quantities(lambda order: order),
    "isGreaterThan": _versions_or_quantities(lambda order: order > 0),
    "isLessThan": _versions_or_quantities(lambda order: order < 0),
    "asInteger": typed(Quantity)(_as_integer),
    "isInteger": typed(Quantity)(_parses(_as_integer)),
    "asApproximateFloat": typed(Quantity)(lambda value: float(value.amount)),
    "sign": typed(Quantity)(lambda value: (value.amount > 0) - (value.amount < 0)),
    "add": _quantity_arithmetic(1),
    "sub": _quantity_arithmetic(-1),
    "semver": typed(str, bool)(to_semver),
    "isSemver": typed(str, bool)(_parses(to_semver)),
    "major": typed(Semver)(lambda version: version.numbers[0]),
    "minor": typed(Semver)(lambda version: version.numbers[1]),
    "patch": typed(Semver)(lambda version: version.numbers[2]),
    # optionals
    "optional.of": lambda value: Optional(True, value),
    "optional.none": lambda: NONE,
    "optional.ofNonZeroValue": lambda value: NONE if _is_zero(value) else Optional(True, value),
    "hasValue": typed(Optional)(lambda optional: optional.has),
    "value": typed(Optional)(value_of),
    "orValue": or_value,
    "or": typed(Optional, Optional)(either),
    # strings
    "contains": typed(str, str)(lambda text, part: part in text),
    "startsWith": typed(str, str)(str.startswith),
    "endsWith": typed(str, str)(str.endswith),
    "charAt": typed(str, int)(strings.char_at),
    "lowerAscii": typed(str)(strings.lower_ascii),
    "upperAscii": typed(str)(strings.upper_ascii),
    "trim": typed(str)(strings.trim),
    "replace": typed(str, str, str, int)(strings.replace),
    "split": typed(str, str, int)(strings.split),
    "substring": typed(str, int, int)(strings.substring),
    "join": strings.join,
    # strings and lists
    "indexOf": lambda whole, *rest: (strings if type(whole) is str else lists).index_of(whole, *rest),
    "lastIndexOf": lambda whole, *rest: (strings if type(whole) is str else lists).last_index_of(whole, *rest),
    # lists
    "includes": lists.includes,
    "isSorted": lambda items: lists.is_sorted(items, compare),
    "sum": lambda items: lists.total(items, add),
    "min": lambda items: lists.extreme(items, compare, -1),
    "max": lambda items: lists.extreme(items, compare, 1),
    "slice": lists.part,
    "flatten": lists.flatten,
    "sort": lambda items: lists.ordered(items, compare),
    "distinct": lists.distinct,
    "reverse": lists.backwards,
    "sets.contains": lists.contains_all,
    "sets.intersects": lists.intersects,
    "sets.equivalent": lambda a, b: lists.contains_all(a, b) and lists.contains_all(b, a),
    "lists.range": typed(int)(lists.numbers),
}
