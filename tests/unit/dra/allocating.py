"""Nodes and claims for tests of the allocator, as short as a test wants them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from dynamig.dra import gpu_pool, resource_slices
from dynamig.dra.allocate import (
    Choice,
    Claim,
    Constraint,
    DeviceClass,
    DeviceId,
    Mode,
    NodeDevices,
    Occupancy,
    Request,
    Toleration,
    offers_by_node,
)
from dynamig.mig import Geometry, GpuUuid
from tests.unit.dra.gpus import facts
from tests.unit.mig.models import H100

DRIVER = "gpu.nvidia.com"
A = f"device.attributes['{DRIVER}']"
SAME_GPU = Constraint(f"{DRIVER}/parentUUID", False, frozenset())

CLASSES = {
    "mig": DeviceClass("mig", (f"device.driver == '{DRIVER}' && {A}.type == 'mig'",)),
    "gpu": DeviceClass("gpu", (f"device.driver == '{DRIVER}' && {A}.type == 'gpu'",)),
    "any": DeviceClass("any", ()),
}


def slices(node: str = "n1", gpus: int = 1, geometry: Geometry = H100, **options: Any) -> list[dict[str, Any]]:
    """One pool per GPU, as the driver publishes."""
    written: list[dict[str, Any]] = []
    for n in range(gpus):
        pool = gpu_pool(node, replace(facts(geometry=geometry), number=n, uuid=GpuUuid(f"GPU-{node}-{n}")), **options)
        written += resource_slices(pool, driver=DRIVER, node=node, generation=1)
    return written


def node(
    gpus: int = 1, held: Collection[DeviceId] = (), name: str = "n1", geometry: Geometry = H100, **options: Any
) -> Occupancy:
    offers = offers_by_node(slices(name, gpus, geometry, **options))
    return NodeDevices(name, offers[name]).occupied(held)


def mig(profile: str, start: int, gpu: int = 0, name: str = "n1") -> DeviceId:
    """The device of an H100 profile at a memory slice."""
    (number,) = [p.id for p in H100.profiles if p.name == profile]
    short = profile.replace(".", "").replace("+", "-")
    return DeviceId(DRIVER, f"{name}/gpu-{gpu}", f"gpu-{gpu}-mig-{short}-{number}-{start}")


def choice(
    name: str,
    profile: str | None = None,
    count: int = 1,
    *,
    device_class: str = "mig",
    selectors: tuple[str, ...] = (),
    mode: Mode = Mode.EXACT_COUNT,
    admin: bool = False,
    tolerations: tuple[Toleration, ...] = (),
) -> Choice:
    if profile:
        selectors = (f"{A}.profile == '{profile}'", *selectors)
    return Choice(name, device_class, selectors, mode, count, admin, tolerations)


def exactly(name: str, profile: str | None = None, count: int = 1, **how: Any) -> Request:
    return Request(name, (choice(name, profile, count, **how),))


def claim(*requests: Request, constraints: tuple[Constraint, ...] = (), name: str = "d/c") -> Claim:
    return Claim(name, requests, constraints)


def wants(*profiles: str, same_gpu: bool = False) -> Claim:
    """One request per profile."""
    requests = [exactly(f"r{i}", profile) for i, profile in enumerate(profiles)]
    return claim(*requests, constraints=(SAME_GPU,) if same_gpu else ())
