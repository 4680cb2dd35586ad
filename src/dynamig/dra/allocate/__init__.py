"""The structured allocator: which devices of which node a set of claims gets (decision 0009).

    offers = offers_by_node(slices)
    node = NodeDevices("n1", offers["n1"]).occupied(held_devices(claims))
    match allocate(node, [read_claim(claim)], {c.name: c for c in map(read_class, classes)}):
        case Allocation(picks=picks): ...
        case Refusal(what=what): ...

`NodeDevices` is computed once per version of a node's slices, `Occupancy` follows what is held, `allocate` is a
function of values. Nothing in here does I/O.
"""

from dynamig.dra.allocate.allocator import STEP_LIMIT, allocate, best_node
from dynamig.dra.allocate.claims import (
    Choice,
    Claim,
    Constraint,
    DeviceClass,
    DeviceId,
    Mode,
    Request,
    Toleration,
    held_devices,
    read_claim,
    read_class,
)
from dynamig.dra.allocate.decision import Allocation, Pick, Refusal
from dynamig.dra.allocate.node import NodeDevices, Occupancy
from dynamig.dra.allocate.offers import Offer, State, offers_by_node
from dynamig.dra.allocate.policy import Demand, Policy, Score
from dynamig.dra.allocate.status import allocation_status

__all__ = [
    "STEP_LIMIT",
    "Allocation",
    "Choice",
    "Claim",
    "Constraint",
    "Demand",
    "DeviceClass",
    "DeviceId",
    "Mode",
    "NodeDevices",
    "Occupancy",
    "Offer",
    "Pick",
    "Policy",
    "Refusal",
    "Request",
    "Score",
    "State",
    "Toleration",
    "allocate",
    "allocation_status",
    "best_node",
    "held_devices",
    "offers_by_node",
    "read_claim",
    "read_class",
]
