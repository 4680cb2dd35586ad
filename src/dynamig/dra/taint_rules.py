"""DeviceTaintRules: taints that an administrator puts on devices whoever publishes them. Pure.

kube-scheduler sees them as if they were published (k8s.io/dynamic-resource-allocation v0.37.2, resourceslice/tracker).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dynamig.dra.read import PublishedDevice, PublishedPool, PublishedTaint

Rule = Mapping[str, Any]


def rules_for(pool: PublishedPool, rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Those that may taint something of the pool, by name. A rule without a selector taints nothing."""
    found = (r for r in rules if (s := r["spec"].get("deviceSelector")) is not None and _is_of(s, pool))
    return tuple(sorted(found, key=lambda r: str(r["metadata"]["name"])))


def tainted(pool: PublishedPool, rules: Sequence[Rule]) -> PublishedPool:
    """The pool as kube-scheduler sees it. `rules`: its own, of `rules_for`."""
    return replace(pool, devices=tuple(_tainted(device, rules) for device in pool.devices)) if rules else pool


def _is_of(selector: Mapping[str, Any], pool: PublishedPool) -> bool:
    return selector.get("driver") in (None, pool.driver) and selector.get("pool") in (None, pool.name)


def _tainted(device: PublishedDevice, rules: Sequence[Rule]) -> PublishedDevice:
    specs = [r["spec"] for r in rules if r["spec"]["deviceSelector"].get("device") in (None, device.name)]
    added = (PublishedTaint(t["key"], t.get("value") or "", t["effect"]) for t in (s["taint"] for s in specs))
    return replace(device, taints=(*device.taints, *added)) if specs else device
