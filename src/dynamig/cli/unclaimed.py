"""Pods that wait for a device and have no claim: it is not there, or they ask for an extended resource, for which
kube-scheduler makes a claim only when it has found a place. Pure, from API objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynamig.cli.asked import Asked
from dynamig.cli.holdings import Holding, Name
from dynamig.cli.waiting import is_over, reason, row
from dynamig.protocol import names

Object = Mapping[str, Any]


def unclaimed(
    pods: Iterable[Object],
    claims: Iterable[Object],
    templates: Sequence[Object] | None,
    asked: Asked,
    *,
    slurm: bool = False,
) -> list[Holding]:
    """A row for each pod that has no node and lacks the claim through which it would get a device.

    `claims`: all of the pods' namespaces. `templates`: ResourceClaimTemplates; None if they may not be read.
    `slurm`: whether devices are Slurm's to give, as their taint says.
    """
    known = _Known(frozenset(map(_name, claims)), None if templates is None else {_name(t): t for t in templates})
    found = [_without_claim(pod, known, asked, slurm) for pod in pods if _waits(pod)]
    return [h for h in found if h is not None]


def _waits(pod: Object) -> bool:
    placed = (pod.get("spec") or {}).get("nodeName")
    return not (placed or is_over(pod) or pod["metadata"].get("deletionTimestamp"))


@dataclass(frozen=True, slots=True)
class _Known:
    """Claims that exist, and ResourceClaimTemplates; these are None if they may not be read."""

    claims: frozenset[Name]
    templates: Mapping[Name, Object] | None


def _without_claim(pod: Object, known: _Known, asked: Asked, slurm: bool) -> Holding | None:
    lack = next(_lacking(pod, known, asked), None)
    if lack is None:
        return None
    namespace, name = _name(pod)
    why = lack.why if lack.sure else reason(pod, slurm=slurm) or lack.why
    return row(namespace, lack.claim, (name,), why)


@dataclass(frozen=True, slots=True)
class _Lack:
    """`claim`: its name, if it is known. `sure`: that `why` is the reason and not only the usual cause."""

    claim: str
    why: str
    sure: bool


def _lacking(pod: Object, known: _Known, asked: Asked) -> Iterator[_Lack]:
    """What the pod needs first: it waits for claims before anybody looks at its resources."""
    namespace = pod["metadata"]["namespace"]
    made = {c["name"] for c in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
    for one in (pod.get("spec") or {}).get("resourceClaims") or ():
        named, template = one.get("resourceClaimName"), one.get("resourceClaimTemplateName")
        if named and (namespace, named) not in known.claims and asked.driver == names.DRIVER_NAME:
            yield _Lack(named, f"there is no ResourceClaim {named} in its namespace", sure=True)
        if template and one["name"] not in made:
            yield from _unmade(namespace, template, known.templates, asked)
    for resource in asked.resources(pod):
        backed = asked.backed(resource)
        yield _Lack("", "" if backed else f"no DeviceClass makes a claim of the resource {resource}", sure=not backed)


def _unmade(namespace: str, template: str, templates: Mapping[Name, Object] | None, asked: Asked) -> Iterator[_Lack]:
    """A claim that was not made from its template. What it would ask for is not known without the template: it counts
    for the usual driver."""
    usual = asked.driver == names.DRIVER_NAME
    found = None if templates is None else templates.get((namespace, template))
    if found is not None:
        if asked.claims((found.get("spec") or {}).get("spec")):
            yield _Lack("", "its claim is not made yet", sure=False)
    elif templates is not None and usual:
        yield _Lack("", f"there is no ResourceClaimTemplate {template} in its namespace", sure=True)
    elif usual:
        yield _Lack("", f"its claim is not made: is there a ResourceClaimTemplate {template}?", sure=False)


def _name(obj: Object) -> Name:
    return (obj["metadata"]["namespace"], obj["metadata"]["name"])
