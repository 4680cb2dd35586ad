"""ResourceSlices read back into pools and devices: ours, NVIDIA's driver's, anybody's.

Facts come from attributes, capacities and counters. A device's name is only its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any

from dynamig.dra import quantity
from dynamig.dra.model import AttributeValue
from dynamig.dra.names import memory_slice_of
from dynamig.dra.version import Version
from dynamig.errors import Refused

PublishedValue = AttributeValue | tuple[AttributeValue, ...]


@dataclass(frozen=True, slots=True)
class PublishedTaint:
    """A taint as published, of any effect: unknown ones count as None, says Kubernetes."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device as the API server holds it.

    `attributes` and `capacity` leave out the domain where it is the driver's own. `consumes`: counter set ->
    counter -> amount. `memory_slices`: those of its parent GPU that its counters take, ascending; empty if
    the driver publishes none.
    """

    name: str
    attributes: Mapping[str, PublishedValue]
    capacity: Mapping[str, Fraction]
    consumes: Mapping[str, Mapping[str, Fraction]]
    taints: tuple[PublishedTaint, ...]

    @property
    def type(self) -> str | None:
        """`gpu` or `mig` with NVIDIA's names."""
        return self._text("type")

    @property
    def profile(self) -> str | None:
        return self._text("profile")

    @property
    def gpu(self) -> str | None:
        """UUID of the physical GPU: the parent of a MIG device, the GPU itself otherwise."""
        return self._text("parentUUID") or self._text("uuid")

    @property
    def memory_slices(self) -> tuple[int, ...]:
        taken = {
            index
            for counters in self.consumes.values()
            for counter, amount in counters.items()
            if amount > 0 and (index := memory_slice_of(counter)) is not None
        }
        return tuple(sorted(taken))

    def _text(self, attribute: str) -> str | None:
        value = self.attributes.get(attribute)
        return str(value) if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class PublishedPool:
    """The newest generation of one pool. `node`: None if the pool is not one node's.

    `problem`: why the scheduler will not use it, in words; None if it is complete. Then `devices` is still
    what could be seen. `counters`: counter set -> counter -> amount.
    """

    driver: str
    node: str | None
    name: str
    generation: int
    counters: Mapping[str, Mapping[str, Fraction]]
    devices: tuple[PublishedDevice, ...]
    problem: str | None

    @property
    def complete(self) -> bool:
        return self.problem is None


def read_pools(slices: Iterable[Mapping[str, Any]]) -> tuple[PublishedPool, ...]:
    """Every pool of the given slices, by driver and pool name; devices in the order the scheduler tries them.

    Of several generations the newest counts, its slices in the order of their object names
    (k8s.io/dynamic-resource-allocation v0.37.2, pools_incubating.go).

    Raises: Refused BAD_SLICE, naming the object, for one that no API server would have taken.
    """
    ordered = sorted(slices, key=lambda one: (*_pool_of(one), _name(one)))
    return tuple(_pool(key, tuple(group)) for key, group in groupby(ordered, key=_pool_of))


def _pool(key: tuple[str, str], slices: tuple[Mapping[str, Any], ...]) -> PublishedPool:
    generation = max(_generation(one) for one in slices)
    newest = [one for one in slices if _generation(one) == generation]
    specs = [one["spec"] for one in newest]
    counters = {
        group["name"]: _amounts(group["counters"]) for spec in specs for group in spec.get("sharedCounters") or ()
    }
    devices = tuple(_device(key[0], raw, one) for one in newest for raw in one["spec"].get("devices") or ())
    return PublishedPool(
        driver=key[0],
        node=specs[0].get("nodeName"),
        name=key[1],
        generation=generation,
        counters=counters,
        devices=devices,
        problem=_problem(specs, counters, devices),
    )


def _problem(
    specs: list[Mapping[str, Any]],
    counters: Mapping[str, Mapping[str, Fraction]],
    devices: tuple[PublishedDevice, ...],
) -> str | None:
    """Why the scheduler would not take the pool. Source: buildPool in pools_incubating.go."""
    expected = {int(spec["pool"]["resourceSliceCount"]) for spec in specs}
    if expected != {len(specs)}:
        return f"{len(specs)} slices seen, {' or '.join(map(str, sorted(expected)))} announced"
    names = [device.name for device in devices]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        return f"published twice: {', '.join(twice)}"
    for device in devices:
        for group, consumed in device.consumes.items():
            if missing := sorted(set(consumed) - set(counters.get(group, {}))):
                return f"{device.name} consumes counters that {group} does not have: {', '.join(missing)}"
    return None


def _device(driver: str, raw: Mapping[str, Any], source: Mapping[str, Any]) -> PublishedDevice:
    try:
        return PublishedDevice(
            name=raw["name"],
            attributes={_local(driver, k): _value(v) for k, v in (raw.get("attributes") or {}).items()},
            capacity=_amounts({_local(driver, k): v for k, v in (raw.get("capacity") or {}).items()}),
            consumes={c["counterSet"]: _amounts(c["counters"]) for c in raw.get("consumesCounters") or ()},
            taints=tuple(PublishedTaint(t["key"], t.get("value") or "", t["effect"]) for t in raw.get("taints") or ()),
        )
    except (KeyError, TypeError, Refused) as error:
        raise _bad(source, f"device {raw.get('name')!r}: {error}") from error


def _value(raw: Mapping[str, Any]) -> PublishedValue:
    """The one field that is set: bool, int, string, version, or their plural with a list."""
    kind, value = next((kind, value) for kind, value in raw.items() if value is not None)
    one = Version if kind.startswith("version") else lambda plain: plain
    return tuple(one(item) for item in value) if kind.endswith("s") else one(value)


def _local(driver: str, name: str) -> str:
    return name.removeprefix(f"{driver}/")


def _amounts(raw: Mapping[str, Any]) -> dict[str, Fraction]:
    return {name: quantity.parse(entry["value"]) for name, entry in raw.items()}


def _pool_of(one: Mapping[str, Any]) -> tuple[str, str]:
    try:
        return one["spec"]["driver"], one["spec"]["pool"]["name"]
    except (KeyError, TypeError) as error:
        raise _bad(one, f"has no driver or pool ({error})") from error


def _generation(one: Mapping[str, Any]) -> int:
    return int(one["spec"]["pool"].get("generation", 0))


def _name(one: Mapping[str, Any]) -> str:
    return str((one.get("metadata") or {}).get("name", ""))


def _bad(one: Mapping[str, Any], why: str) -> Refused:
    return Refused("BAD_SLICE", f"ResourceSlice {_name(one) or 'without a name'} {why}")
