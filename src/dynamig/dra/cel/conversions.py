"""Conversions between the kinds of CEL, as cel-go v0.29.2 makes them (common/types)."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from dynamig.dra.cel.values import (
    INT_MAX,
    INT_MIN,
    CelError,
    Optional,
    Quantity,
    Semver,
    TypeValue,
    Uint,
    Value,
    checked_int,
    checked_uint,
    is_map,
    is_number,
    no_such_overload,
)


def to_int(value: Value) -> int:
    match value:
        case bool():
            no_such_overload()
        case Uint() | int():
            return checked_int(int(value))
        case float():
            if not math.isfinite(value) or not INT_MIN < value < INT_MAX:
                raise CelError("integer overflow")
            return int(value)
        case str():
            if not re.fullmatch(r"[+-]?\d+", value, re.ASCII):
                raise CelError(f"{value!r} is not an integer")
            return checked_int(int(value))
    return no_such_overload()


def to_uint(value: Value) -> Uint:
    if type(value) is str and not re.fullmatch(r"\d+", value, re.ASCII):
        raise CelError(f"{value!r} is not an unsigned integer")
    if type(value) is float and not math.isfinite(value):
        raise CelError("unsigned integer overflow")
    return checked_uint(int(value)) if type(value) in (int, Uint, float, str) else no_such_overload()


def to_double(value: Value) -> float:
    if type(value) is str:
        try:
            return float(value)
        except ValueError:
            raise CelError(f"{value!r} is not a number") from None
    return float(value) if is_number(value) else no_such_overload()


def to_string(value: Value) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            return str(int(value))
        case float():
            return _format_double(value)
    return no_such_overload()


def _format_double(value: float) -> str:
    """As Go's %g writes it: shortest digits, an exponent from 1e21 on and below 1e-4."""
    if not math.isfinite(value):
        return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")
    if value == 0 or 1e-4 <= abs(value) < 1e21:
        return format(Decimal(repr(value)), "f").removesuffix(".0")
    mantissa, exponent = repr(value).split("e")
    return f"{mantissa}e{exponent}"


def to_bool(value: Value) -> bool:
    if type(value) is bool:
        return value
    if type(value) is not str:
        no_such_overload()
    if value in ("1", "t", "T", "TRUE", "true", "True"):
        return True
    if value in ("0", "f", "F", "FALSE", "false", "False"):
        return False
    raise CelError(f"{value!r} is not a bool")


_TYPE_NAMES = {
    type(None): "null_type",
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    tuple: "list",
    Quantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
    Optional: "optional_type",
    TypeValue: "type",
}


def type_of(value: Value) -> TypeValue:
    return TypeValue("map" if is_map(value) else _TYPE_NAMES[type(value)])
