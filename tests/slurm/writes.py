"""Every kind of write of the bridge, told by its request. The tests order faults for each of them by its name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tests.slurm.faults import Fault, Match, Order
from tests.slurm.proxied_bridge import Proxies

CLAIM, CLAIM_STATUS = "/resourceclaims/[^/]+$", "/resourceclaims/[^/]+/status$"

SLURM: Mapping[str, Match] = MappingProxyType(
    {
        "submit": Match("POST", "/job/submit$"),
        "comment": Match("POST", r"/job/\d+$"),
        "cancel": Match("DELETE", "/job/"),
        "extra": Match("POST", "/node/(?!dynamig-asks)"),
    }
)
KUBERNETES: Mapping[str, Match] = MappingProxyType(
    {
        "note": Match("PATCH", CLAIM, r'"dynamig\.io/hold": ?"'),
        "allocate": Match("PATCH", CLAIM_STATUS, '"allocation": ?{'),
        "verify": Match("PATCH", CLAIM, r'"dynamig\.io/verified": ?"'),
        "ungate": Match("PATCH", "/pods/[^/]+$", '"schedulingGates"'),
        "tell": Match("PATCH", "/pods/[^/]+/status$"),
        "release": Match("PATCH", CLAIM, r'"dynamig\.io/release": ?"'),
        "let_go": Match("PATCH", CLAIM, r'"dynamig\.io/hold": ?null'),
        "end": Match("DELETE", "/pods/"),
    }
)


def order(between: Proxies, name: str, fault: Fault, *, nth: int = 1) -> Order:
    """The fault befalls the `nth` write of that kind."""
    if name in SLURM:
        return between.slurm.order(SLURM[name], fault, nth=nth)
    return between.api.order(KUBERNETES[name], fault, nth=nth)
