"""Declarations for CEL's own parser and type checker: what an expression may say about a device.

Parsing, macros, precedence and type errors come from cel-cpp (package cel-expr-python), which is given declarations
only; `evaluate` does the rest. Source of the declarations: k8s.io/dynamic-resource-allocation v0.37.2 cel/compile.go,
k8s.io/apiserver v0.37.2 pkg/cel/environment/base.go and pkg/cel/library.

`device.driver`, `device.attributes` and so on are declared as variables with qualified names. That gives them exact
types (a message cannot hold a map of quantities), and makes any other field of `device` an undeclared name, as in
Kubernetes.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional

T: Final = cel.Type
QUANTITY: Final = T.AbstractType("kubernetes.Quantity")
SEMVER: Final = T.AbstractType("kubernetes.Semver")
STRINGS: Final = T.List(T.STRING)
INTS: Final = T.List(T.INT)
COMPARABLE: Final = (T.INT, T.UINT, T.DOUBLE, T.BOOL, T.STRING, T.BYTES)

VARIABLES: Final = {
    "device.driver": T.STRING,
    "device.allowMultipleAllocations": T.BOOL,
    "device.attributes": T.Map(T.STRING, T.Map(T.STRING, T.DYN)),
    "device.capacity": T.Map(T.STRING, T.Map(T.STRING, QUANTITY)),
}

Signature = tuple[cel.Type, ...]
"""Result first, then parameters."""

MEMBERS: Final[dict[str, list[Signature]]] = {
    # Quantity and Semver
    "compareTo": [(T.INT, QUANTITY, QUANTITY), (T.INT, SEMVER, SEMVER)],
    "isGreaterThan": [(T.BOOL, QUANTITY, QUANTITY), (T.BOOL, SEMVER, SEMVER)],
    "isLessThan": [(T.BOOL, QUANTITY, QUANTITY), (T.BOOL, SEMVER, SEMVER)],
    "asInteger": [(T.INT, QUANTITY)],
    "isInteger": [(T.BOOL, QUANTITY)],
    "asApproximateFloat": [(T.DOUBLE, QUANTITY)],
    "add": [(QUANTITY, QUANTITY, QUANTITY), (QUANTITY, QUANTITY, T.INT)],
    "sub": [(QUANTITY, QUANTITY, QUANTITY), (QUANTITY, QUANTITY, T.INT)],
    "major": [(T.INT, SEMVER)],
    "minor": [(T.INT, SEMVER)],
    "patch": [(T.INT, SEMVER)],
    # strings (ext.Strings version 2)
    "charAt": [(T.STRING, T.STRING, T.INT)],
    "lowerAscii": [(T.STRING, T.STRING)],
    "upperAscii": [(T.STRING, T.STRING)],
    "trim": [(T.STRING, T.STRING)],
    "replace": [(T.STRING, T.STRING, T.STRING, T.STRING), (T.STRING, T.STRING, T.STRING, T.STRING, T.INT)],
    "split": [(STRINGS, T.STRING, T.STRING), (STRINGS, T.STRING, T.STRING, T.INT)],
    "substring": [(T.STRING, T.STRING, T.INT), (T.STRING, T.STRING, T.INT, T.INT)],
    "join": [(T.STRING, STRINGS), (T.STRING, STRINGS, T.STRING)],
    # strings and lists
    "indexOf": [(T.INT, T.STRING, T.STRING), (T.INT, T.STRING, T.STRING, T.INT), (T.INT, T.LIST, T.DYN)],
    "lastIndexOf": [(T.INT, T.STRING, T.STRING), (T.INT, T.STRING, T.STRING, T.INT), (T.INT, T.LIST, T.DYN)],
    # lists
    "includes": [(T.BOOL, T.DYN, T.DYN)],
    "isSorted": [(T.BOOL, T.List(item)) for item in COMPARABLE],
    "sum": [(item, T.List(item)) for item in (T.INT, T.UINT, T.DOUBLE)],
    "min": [(item, T.List(item)) for item in COMPARABLE],
    "max": [(item, T.List(item)) for item in COMPARABLE],
    "slice": [(T.LIST, T.LIST, T.INT, T.INT)],
    "flatten": [(T.LIST, T.LIST), (T.LIST, T.LIST, T.INT)],
    "sort": [(T.List(item), T.List(item)) for item in COMPARABLE],
    "distinct": [(T.LIST, T.LIST)],
    "reverse": [(T.LIST, T.LIST)],
}

GLOBALS: Final[dict[str, list[Signature]]] = {
    "quantity": [(QUANTITY, T.STRING)],
    "isQuantity": [(T.BOOL, T.STRING)],
    "sign": [(T.INT, QUANTITY)],
    "semver": [(SEMVER, T.STRING), (SEMVER, T.STRING, T.BOOL)],
    "isSemver": [(T.BOOL, T.STRING), (T.BOOL, T.STRING, T.BOOL)],
    "sets.contains": [(T.BOOL, T.LIST, T.LIST)],
    "sets.equivalent": [(T.BOOL, T.LIST, T.LIST)],
    "sets.intersects": [(T.BOOL, T.LIST, T.LIST)],
    "lists.range": [(INTS, T.INT)],
}


@cache
def environment() -> cel.Env:
    """The declarations as an environment. It holds nothing that changes, so one serves every caller."""
    functions = [_declaration(name, signatures, True) for name, signatures in MEMBERS.items()]
    functions += [_declaration(name, signatures, False) for name, signatures in GLOBALS.items()]
    extensions = [ext_bindings.ExtBindings(), ext_optional.ExtOptional()]
    return cel.NewEnv(None, variables=VARIABLES, functions=functions, extensions=extensions)


def _declaration(name: str, signatures: list[Signature], member: bool) -> cel.FunctionDecl:
    overloads = [
        cel.Overload(f"{name}_{i}", result, list(parameters), is_member=member)
        for i, (result, *parameters) in enumerate(signatures)
    ]
    return cel.FunctionDecl(name, overloads)
