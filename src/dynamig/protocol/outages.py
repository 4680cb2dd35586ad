"""Outages of GPUs: when one fell silent, and how long it is watched once it answers again (case C-71). Pure.

A GPU that comes and goes is one outage, from its first silence until it has answered for a while without a break: so
nobody who goes by outages opens and closes a node each few seconds. Kept by the node's driver, read by the bridge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from dynamig.mig import GpuUuid
from dynamig.protocol.times import from_rfc3339, to_rfc3339


@dataclass(frozen=True, slots=True)
class Outage:
    """`heard`: what was heard last instead of a reading; `since`: when the GPU first fell silent; `until`: when the
    outage is over if the GPU goes on answering, None while it does not answer. Whole seconds of the epoch."""

    heard: str
    since: int
    until: int | None = None

    @property
    def silent(self) -> bool:
        return self.until is None


Outages = Mapping[GpuUuid, Outage]

ALL_ANSWER: Mapping[GpuUuid, str] = MappingProxyType({})
"""What is heard of silent GPUs where there are none."""


def next_outages(before: Outages, silent: Mapping[GpuUuid, str], now: int, watch: int) -> dict[GpuUuid, Outage]:
    """The outages at `now`. `silent`: GPUs that do not answer, with what was heard; all others of `before` do answer,
    and are watched for `watch` seconds. A clock that was set back prolongs no watch."""
    found = {gpu: _goes_on(before.get(gpu), heard, now) for gpu, heard in silent.items()}
    for gpu, outage in before.items():
        until = min(now + watch if outage.until is None else outage.until, now + watch)
        if gpu not in silent and until > now:
            found[gpu] = replace(outage, until=until)
    return found


def _goes_on(outage: Outage | None, heard: str, now: int) -> Outage:
    return Outage(heard, now if outage is None else outage.since)


def after_boot(outages: Outages) -> dict[GpuUuid, Outage]:
    """What is left of outages before a boot: a GPU that a boot did not bring back is a new outage, and news to whoever
    had made up his mind about the old one; one that is watched goes on being watched."""
    return {gpu: outage for gpu, outage in outages.items() if not outage.silent}


def outages_to_json(outages: Outages) -> dict[str, Any]:
    return {gpu: _to_json(outage) for gpu, outage in sorted(outages.items())}


def _to_json(outage: Outage) -> dict[str, str]:
    until = {} if outage.until is None else {"until": to_rfc3339(outage.until)}
    return {"heard": outage.heard, "since": to_rfc3339(outage.since), **until}


def outages_from_json(body: Mapping[str, Any]) -> dict[GpuUuid, Outage]:
    """Raises KeyError, TypeError, ValueError or AttributeError for what are no outages."""
    return {GpuUuid(str(gpu)): _from_json(outage) for gpu, outage in body.items()}


def _from_json(body: Mapping[str, Any]) -> Outage:
    until = body.get("until")
    return Outage(
        str(body["heard"]), int(from_rfc3339(body["since"])), None if until is None else int(from_rfc3339(until))
    )
