"""An allocation as the API stores it: `status.allocation` of a ResourceClaim, without the timestamp.

Source: k8s.io/dynamic-resource-allocation v0.37.2, the end of Allocate in allocator_incubating.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dynamig.dra.allocate.claims import Choice, Claim, DeviceClass
from dynamig.dra.allocate.decision import Allocation, Pick

Object = dict[str, Any]


def allocation_status(allocation: Allocation, number: int, claim: Claim, classes: Mapping[str, DeviceClass]) -> Object:
    """For claim `number` of the allocation, which is `claim`: results, the configuration that goes to the driver, and
    a selector for the node.
    """
    picks = allocation.picks[number]
    chosen = _chosen(claim, picks)
    devices: Object = {"results": [_result(pick, chosen) for pick in picks]}
    if config := [_for_all(claim, chosen, one) for one in _configs(claim, chosen, classes)]:
        devices["config"] = config
    status: Object = {"devices": devices}
    if picks:
        fields = [{"key": "metadata.name", "operator": "In", "values": [allocation.node]}]
        status["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return status


def _chosen(claim: Claim, picks: Sequence[Pick]) -> dict[str, Choice]:
    """Request -> the choice that was made for it."""
    used = {pick.request for pick in picks}
    return {request.name: choice for request in claim.requests for choice in request.choices if choice.name in used}


def _result(pick: Pick, chosen: Mapping[str, Choice]) -> Object:
    result: Object = {"request": pick.request, **pick.device._asdict()}
    if pick.admin:
        result["adminAccess"] = True
    if tolerations := chosen[pick.request.partition("/")[0]].tolerated:
        result["tolerations"] = [dict(one) for one in tolerations]
    return result


def _configs(claim: Claim, chosen: Mapping[str, Choice], classes: Mapping[str, DeviceClass]) -> Iterator[Object]:
    """Configuration of the classes, each once for all requests that use it, then of the claim."""
    by_class: dict[str, list[str]] = {}
    for choice in chosen.values():
        by_class.setdefault(choice.device_class, []).append(choice.name)
    for name, requests in by_class.items():
        for config in classes[name].config:
            yield {"source": "FromClass", "requests": requests, **config}
    for config in claim.config:
        wanted = list(config.get("requests") or ())
        if not wanted or any(name in wanted or choice.name in wanted for name, choice in chosen.items()):
            yield {"source": "FromClaim", **config, "requests": wanted}


def _for_all(claim: Claim, chosen: Mapping[str, Choice], config: Object) -> Object:
    """What concerns every request names none."""
    wanted = config.pop("requests")
    everybody = all(r.name in wanted or (r.name in chosen and chosen[r.name].name in wanted) for r in claim.requests)
    return config if everybody or not wanted else {**config, "requests": wanted}
