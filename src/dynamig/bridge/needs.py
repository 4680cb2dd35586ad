"""What a pod asks of a node beside devices, as its Slurm job has to pay for it. Pure.

Source: k8s.io/component-helpers/resource PodRequests (1.37): containers and sidecars together, or the largest init
container with the sidecars before it, whichever is more; requests of the pod itself win; overhead comes on top.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dynamig.dra import quantity

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Needs:
    """Whole processors and MiB, rounded up. The least that Slurm accepts for a job is one of each."""

    cpus: int
    memory: int


LEAST = Needs(1, 1)


def needs_of(spec: Mapping[str, Any]) -> Needs:
    """Raises: Refused BAD_QUANTITY, which the API server does not let happen."""
    cpus, memory = _request(spec, "cpu"), _request(spec, "memory") / MIB
    return Needs(max(LEAST.cpus, math.ceil(cpus)), max(LEAST.memory, math.ceil(memory)))


def _request(spec: Mapping[str, Any], resource: str) -> Fraction:
    of_pod = (spec.get("resources") or {}).get("requests") or {}
    asked = quantity.parse(of_pod[resource]) if resource in of_pod else _of_containers(spec, resource)
    return asked + quantity.parse((spec.get("overhead") or {}).get(resource, 0))


def _of_containers(spec: Mapping[str, Any], resource: str) -> Fraction:
    sidecars, most = Fraction(0), Fraction(0)
    for init in spec.get("initContainers") or ():
        asked = _sum([init], resource)
        if init.get("restartPolicy") == "Always":
            sidecars += asked
            most = max(most, sidecars)
        else:
            most = max(most, sidecars + asked)
    return max(most, sidecars + _sum(spec.get("containers") or (), resource))


def _sum(containers: Iterable[Mapping[str, Any]], resource: str) -> Fraction:
    """The API server has written a limit without a request as both."""
    amounts = (((c.get("resources") or {}).get("requests") or {}).get(resource, 0) for c in containers)
    return sum((quantity.parse(a) for a in amounts), Fraction(0))
