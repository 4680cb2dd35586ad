"""ResourceClaims and DeviceClasses as values: what is asked for, without the API's optional fields.

What this allocator does not do is refused here, naming the request. Fields are listed one by one, so that a field of
a later Kubernetes is refused too instead of being overlooked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from dynamig.dra.read import PublishedTaint
from dynamig.errors import Refused

MAX_RESULTS = 32
"""AllocationResultsMaxSize, k8s.io/api v0.37.2 resource/v1: devices of one claim."""


class DeviceId(NamedTuple):
    """What `status.allocation` calls a device by."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


class Mode(Enum):
    EXACT_COUNT = "ExactCount"
    ALL = "All"


@dataclass(frozen=True, slots=True)
class Toleration:
    """Empty `key` and `effect` mean any. Source: resourceclaim/devicetoleration.go."""

    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: PublishedTaint) -> bool:
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """`selectors`: CEL expressions that all must hold. `config`: as in the API, copied into allocations, no part of
    equality.
    """

    name: str
    selectors: tuple[str, ...]
    config: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to satisfy a request: all of an exact request, or one alternative of `firstAvailable`.

    `name`: `request`, or `request/alternative`. `count`: of no meaning for ALL. `tolerated`: the tolerations as in the
    API.
    """

    name: str
    device_class: str
    selectors: tuple[str, ...]
    mode: Mode
    count: int
    admin: bool
    tolerations: tuple[Toleration, ...]
    tolerated: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Request:
    """`choices`: one, or the alternatives in their order."""

    name: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """All devices agree in the attribute (`distinct` False), or all differ in it.

    `requests`: names of requests or alternatives that it is about; empty: all.
    """

    attribute: str
    distinct: bool
    requests: frozenset[str]

    def concerns(self, request: Request, choice: Choice) -> bool:
        return not self.requests or request.name in self.requests or choice.name in self.requests


@dataclass(frozen=True, slots=True)
class Claim:
    """`name`: `namespace/name`. `config`: as in the API, no part of equality."""

    name: str
    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...] = ()
    config: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)


def read_class(obj: Mapping[str, Any]) -> DeviceClass:
    """Raises: Refused BAD_CLASS, UNSUPPORTED_REQUEST (a selector that is not CEL)."""
    try:
        name, spec = str(obj["metadata"]["name"]), obj.get("spec") or {}
        return DeviceClass(name, _selectors(f"class {name}", spec), tuple(spec.get("config") or ()))
    except (KeyError, TypeError, AttributeError) as error:
        raise Refused("BAD_CLASS", f"a DeviceClass cannot be read: {error!r}") from error


def read_claim(obj: Mapping[str, Any]) -> Claim:
    """A ResourceClaim, the API server's defaults filled in.

    Raises: Refused BAD_CLAIM, UNSUPPORTED_REQUEST (capacity requests, derived attributes, unknown modes and fields).
    """
    try:
        metadata, devices = obj["metadata"], obj["spec"].get("devices") or {}
        name = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
        _known(f"claim {name}", devices, {"requests", "constraints", "config"})
        return Claim(
            name,
            tuple(_request(name, one) for one in devices.get("requests") or ()),
            tuple(_constraint(name, one) for one in devices.get("constraints") or ()),
            tuple(devices.get("config") or ()),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Refused("BAD_CLAIM", f"a ResourceClaim cannot be read: {error!r}") from error


def held_devices(claims: Iterable[Mapping[str, Any]]) -> frozenset[DeviceId]:
    """Devices that allocated claims hold. Results with admin access hold nothing."""
    return frozenset(
        DeviceId(result["driver"], result["pool"], result["device"])
        for claim in claims
        for result in _results(claim)
        if not result.get("adminAccess")
    )


def _results(claim: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results: Iterable[Mapping[str, Any]] = (allocation.get("devices") or {}).get("results") or ()
    return results


def _request(claim: str, obj: Mapping[str, Any]) -> Request:
    name = str(obj["name"])
    where = f"claim {claim}, request {name}"
    _known(where, obj, {"name", "exactly", "firstAvailable"})
    if exactly := obj.get("exactly"):
        return Request(name, (_choice(where, name, exactly),))
    alternatives = obj.get("firstAvailable") or ()
    if not alternatives:
        raise Refused("UNSUPPORTED_REQUEST", f"{where} has neither exactly nor firstAvailable")
    return Request(name, tuple(_choice(where, f"{name}/{one['name']}", one) for one in alternatives))


_FIELDS = {"name", "deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations"}


def _choice(where: str, name: str, obj: Mapping[str, Any]) -> Choice:
    _known(where, obj, _FIELDS)
    mode = obj.get("allocationMode") or Mode.EXACT_COUNT.value
    if mode not in {one.value for one in Mode}:
        raise Refused("UNSUPPORTED_REQUEST", f"{where} has the allocation mode {mode}, which dynamig does not know")
    tolerations = tuple(obj.get("tolerations") or ())
    return Choice(
        name,
        str(obj["deviceClassName"]),
        _selectors(where, obj),
        Mode(mode),
        int(obj.get("count") or 1),
        bool(obj.get("adminAccess")),
        tuple(_toleration(one) for one in tolerations),
        tolerations,
    )


def _toleration(obj: Mapping[str, Any]) -> Toleration:
    return Toleration(*(str(obj.get(field) or "") for field in ("key", "operator", "value", "effect")))


def _constraint(claim: str, obj: Mapping[str, Any]) -> Constraint:
    where = f"claim {claim}, a constraint"
    _known(where, obj, {"requests", "matchAttribute", "distinctAttribute"})
    match, distinct = obj.get("matchAttribute"), obj.get("distinctAttribute")
    if not match and not distinct:
        raise Refused("UNSUPPORTED_REQUEST", f"{where} has neither matchAttribute nor distinctAttribute")
    return Constraint(str(match or distinct), not match, frozenset(obj.get("requests") or ()))


def _selectors(where: str, obj: Mapping[str, Any]) -> tuple[str, ...]:
    selectors = obj.get("selectors") or ()
    for selector in selectors:
        _known(f"{where}, a selector", selector, {"cel"})
    return tuple(str(selector["cel"]["expression"]) for selector in selectors)


def _known(where: str, obj: Mapping[str, Any], fields: set[str]) -> None:
    if unknown := sorted(key for key, value in obj.items() if key not in fields and value not in (None, {}, [])):
        what = f"{where} uses {', '.join(unknown)}, which dynamig does not allocate by"
        raise Refused("UNSUPPORTED_REQUEST", what, "write it without, or let kube-scheduler allocate this claim")
