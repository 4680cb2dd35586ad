"""Random cluster states and claims, as the oracle takes them: ordinary ones, and every oddity we know of.

A case is a function of its number, so that one that fails can be looked at again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dynamig.dra import gpu_pool, resource_slices
from dynamig.mig import GpuUuid
from tests.unit.dra.gpus import facts
from tests.unit.mig.models import A30, H100

Object = dict[str, Any]
GPU_DRIVER, NET_DRIVER = "gpu.nvidia.com", "net.example.com"
SEED = 20261129


def case(number: int) -> Object:
    """One case: nodes, slices, what is held, and pods to allocate for."""
    return _Maker(random.Random(SEED * 1_000_003 + number), number).case()


VALUES: tuple[Object | None, ...] = (
    {"string": "a"},
    {"string": "1"},
    {"int": 1},
    {"bool": True},
    {"version": "1.0.0"},
    {"strings": ["a"]},
    {"ints": [1]},
    None,
)


def pairs_under_a_constraint() -> list[Object]:
    """Two devices with every pair of attribute values, asked for together, one request or two."""
    return [
        _pair(one, other, constraint, together)
        for one in VALUES
        for other in VALUES
        for constraint in ("matchAttribute", "distinctAttribute")
        for together in (True, False)
    ]


def _pair(one: Object | None, other: Object | None, constraint: str, together: bool) -> Object:
    devices = [{"name": f"d{i}", "attributes": {"x": value} if value else {}} for i, value in enumerate((one, other))]
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": GPU_DRIVER, "nodeName": "n", "pool": pool, "devices": devices}
    names = ("r",) if together else ("r", "s")
    requests = [{"name": name, "exactly": {"deviceClassName": "any", "count": 3 - len(names)}} for name in names]
    asked = {"requests": requests, "constraints": [{constraint: f"{GPU_DRIVER}/x"}]}
    return {
        "name": f"{one}, {other}, {constraint}, {len(names)} requests",
        "timeoutMs": 500,
        "nodes": [{"metadata": {"name": "n"}}],
        "deviceClasses": [{"metadata": {"name": "any"}, "spec": {}}],
        "resourceSlices": [{"metadata": {"name": "s"}, "spec": spec}],
        "allocatedClaims": [],
        "pods": [
            {"name": "pod", "claims": [{"metadata": {"name": "c", "namespace": "d"}, "spec": {"devices": asked}}]}
        ],
    }


class _Maker:
    def __init__(self, rng: random.Random, number: int) -> None:
        self.rng = rng
        self.number = number
        self.odd = rng.random() < 0.4
        """Only some cases are odd, so that most of them say something about ordinary clusters."""

    def case(self) -> Object:
        nodes = [f"n{i}" for i in range(self.rng.choice((1, 1, 2)))]
        slices = [one for node in nodes for one in self.node(node)]
        self.rng.shuffle(slices)
        return {
            "name": f"case-{self.number}",
            "timeoutMs": 500,
            "nodes": [{"metadata": {"name": node}} for node in nodes],
            "deviceClasses": self.classes(),
            "resourceSlices": slices,
            "allocatedClaims": self.held(slices),
            "pods": [{"name": "pod", "claims": self.claims()}],
        }

    # Slices

    def node(self, node: str) -> list[Object]:
        kinds: list[Callable[[str], list[Object]]] = [self.own_layout, self.nvidia_layout, self.made_up]
        slices = self.rng.choices(kinds, (4, 4, 3))[0](node)
        if self.rng.random() < 0.3:
            slices += self.network(node)
        for one in slices:
            for device in one["spec"].get("devices", ()):
                self.taint(device)
        return self.spoilt(slices) if self.odd and self.rng.random() < 0.4 else slices

    def own_layout(self, node: str) -> list[Object]:
        """As this driver publishes: one pool per GPU."""
        slices: list[Object] = []
        for n in range(self.rng.randint(1, 3)):
            pool = gpu_pool(node, self.gpu(node, n), profiles=None)
            slices += resource_slices(pool, driver=GPU_DRIVER, node=node, generation=self.rng.randint(1, 3))
        return slices

    def nvidia_layout(self, node: str) -> list[Object]:
        """As NVIDIA's driver publishes: one pool per node, counter sets first, devices by name."""
        pools = [gpu_pool(node, self.gpu(node, n)) for n in range(self.rng.randint(1, 3))]
        written = [resource_slices(pool, driver=GPU_DRIVER, node=node, generation=1) for pool in pools]
        counters = [one["spec"]["sharedCounters"][0] for slices in written for one in slices[:1]]
        contents: list[Object] = [{"sharedCounters": counters}]
        for slices in written:
            devices = [device for one in slices[1:] for device in one["spec"]["devices"]]
            contents.append({"devices": sorted(devices, key=lambda device: str(device["name"]))})
        return self.pool(node, GPU_DRIVER, node, contents)

    def gpu(self, node: str, n: int) -> Any:
        geometry = self.rng.choice((A30, A30, H100))
        uuid = GpuUuid(f"GPU-{node}-{n}")
        return replace(facts(geometry=geometry), number=n, uuid=uuid, pci_bus_id=f"0000:{n:02x}:00.0")

    def made_up(self, node: str) -> list[Object]:
        """Counters of no GPU: several sets in one pool, devices that take from two, fractions, zeros."""
        sets = [f"set-{i}" for i in range(self.rng.randint(1, 3))]
        names = ("a", "b", "memory")
        amount = ("0", "1", "2", "3", "500m", "1.5", "1Gi")
        counters = [
            {"name": one, "counters": {name: {"value": self.rng.choice(amount[1:])} for name in names}} for one in sets
        ]
        devices = []
        for i in range(self.rng.randint(2, 9)):
            device: Object = {"name": f"dev-{i}", "attributes": self.attributes(i), "capacity": self.capacity()}
            used = self.rng.sample(sets, self.rng.choice((0, 1, 1, min(2, len(sets)))))
            if used:
                device["consumesCounters"] = [
                    {
                        "counterSet": one,
                        "counters": {
                            name: {"value": self.rng.choice(amount)}
                            for name in self.rng.sample(names, self.rng.randint(1, 3))
                        },
                    }
                    for one in used
                ]
            devices.append(device)
        cut = self.rng.randint(0, len(devices))
        contents: list[Object] = [{"sharedCounters": counters}, {"devices": devices[:cut]}, {"devices": devices[cut:]}]
        return self.pool(node, GPU_DRIVER, f"{node}-odd", contents)

    def network(self, node: str) -> list[Object]:
        devices = [
            {"name": f"eth{i}", "attributes": {"speed": {"int": self.rng.choice((10, 100))}, "index": {"int": i}}}
            for i in range(self.rng.choice((1, 2, 3, 4, 40)))
        ]
        return self.pool(node, self.rng.choice((NET_DRIVER, "a.example.com")), f"{node}-net", [{"devices": devices}])

    def attributes(self, i: int) -> Object:
        found: Object = {
            "type": {"string": self.rng.choice(("mig", "gpu"))},
            "index": {"int": i % 3},
            "flag": {"bool": self.rng.random() < 0.5},
            "kind": self.rng.choice(({"string": "a"}, {"int": 1}, {"strings": ["a"]}, {"ints": [1]})),
            "driverVersion": {"version": self.rng.choice(("580.1.0", "570.0.0"))},
            "resource.kubernetes.io/pcieRoot": {"string": self.rng.choice(("r0", "r1"))},
        }
        if self.rng.random() < 0.7:
            found["profile"] = {"string": self.rng.choice(("1g.6gb", "2g.12gb", "1g.10gb"))}
        if self.rng.random() < 0.8:
            found["parentUUID"] = {"string": self.rng.choice(("GPU-x", "GPU-y"))}
        if self.odd and self.rng.random() < 0.3:
            found["parentUUID"] = self.rng.choice(
                ({"int": 1}, {"bool": True}, {"version": "1.0.0"}, {"strings": ["GPU-x"]}, {"ints": [1, 2]})
            )
        return found

    def capacity(self) -> Object:
        return {"memory": {"value": self.rng.choice(("5Gi", "10Gi", "20Gi"))}}

    def pool(self, node: str, driver: str, name: str, contents: list[Object]) -> list[Object]:
        head = {"name": name, "generation": 1, "resourceSliceCount": len(contents)}
        return [
            {
                "metadata": {"name": f"{i:02d}-{driver}-{name}"},
                "spec": {"driver": driver, "nodeName": node, "pool": dict(head), **content},
            }
            for i, content in enumerate(contents)
        ]

    def taint(self, device: Object) -> None:
        if self.rng.random() < 0.06:
            effect = self.rng.choice(("NoSchedule", "NoExecute", "None"))
            device["taints"] = [{"key": self.rng.choice(("example.com/k", "other")), "value": "v", "effect": effect}]

    def spoilt(self, slices: list[Object]) -> list[Object]:
        """A pool that is incomplete, out of date in part, or wrong."""
        chosen = self.rng.choice(slices)
        devices = [device for one in slices for device in one["spec"].get("devices", ())]
        match self.rng.randint(0, 4):
            case 0:
                slices.remove(chosen)
            case 1:
                chosen["spec"]["pool"]["generation"] += 1
            case 2:
                older = {**chosen, "metadata": {"name": chosen["metadata"]["name"] + "-old"}}
                older["spec"] = {**chosen["spec"], "pool": {**chosen["spec"]["pool"], "generation": 0}}
                slices.append(older)
            case 3 if len(devices) > 1:
                first, second = self.rng.sample(devices, 2)
                first["name"] = second["name"]
            case 4 if counting := [one for one in devices if one.get("consumesCounters")]:
                self.rng.choice(counting)["consumesCounters"][0]["counters"]["nosuch"] = {"value": "1"}
        return slices

    # Claims

    def held(self, slices: list[Object]) -> list[Object]:
        """Claims that hold devices: legal sets mostly, overlapping ones and devices that are gone in odd cases."""
        devices = [
            (one["spec"]["driver"], one["spec"]["pool"]["name"], device)
            for one in slices
            for device in one["spec"].get("devices", ())
        ]
        self.rng.shuffle(devices)
        share, taken = self.rng.choice((0, 0, 0.02, 0.1, 1)), set[tuple[str, str, str]]()
        held: list[Object] = []
        for driver, pool, device in devices[: int(share * len(devices))]:
            slices_of = {
                (pool, consumed["counterSet"], counter)
                for consumed in device.get("consumesCounters", ())
                for counter in consumed["counters"]
                if counter.startswith("memory-slice")
            }
            if slices_of & taken and not (self.odd and self.rng.random() < 0.03):
                continue
            taken |= slices_of
            held.append(self.allocated(len(held), driver, pool, device["name"]))
        if self.odd and self.rng.random() < 0.2:
            held.append(self.allocated(len(held), GPU_DRIVER, "n0", "gone"))
        return held

    def allocated(self, i: int, driver: str, pool: str, device: str) -> Object:
        result: Object = {"request": "r", "driver": driver, "pool": pool, "device": device}
        if self.rng.random() < 0.1:
            result["adminAccess"] = True
        return {
            "metadata": {"name": f"held-{i}", "namespace": "d"},
            "spec": {"devices": {}},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }

    def classes(self) -> list[Object]:
        def one(name: str, *expressions: str) -> Object:
            spec: Object = {"selectors": [{"cel": {"expression": e}} for e in expressions]} if expressions else {}
            if self.rng.random() < 0.3:
                spec["config"] = [self.config(f"class {name}") for _ in range(self.rng.randint(1, 2))]
            return {"metadata": {"name": name}, "spec": spec}

        own = f"device.driver == '{GPU_DRIVER}'"
        return [
            one("mig", f"{own} && device.attributes['{GPU_DRIVER}'].type == 'mig'"),
            one("gpu", own, f"device.attributes['{GPU_DRIVER}'].type == 'gpu'"),
            one("any-gpu", own),
            one("unchecked", f"device.attributes['{GPU_DRIVER}'].type == 'mig'"),
            one("any"),
            one("net", f"device.driver == '{NET_DRIVER}'"),
        ]

    def claims(self) -> list[Object]:
        return [self.claim(i) for i in range(self.rng.choice((1, 1, 1, 1, 2, 3)))]

    def claim(self, i: int) -> Object:
        requests = [self.request(j) for j in range(self.rng.choice((1, 1, 1, 2, 2, 3)))]
        devices: Object = {"requests": requests}
        if self.rng.random() < 0.35:
            devices["constraints"] = [self.constraint(requests) for _ in range(self.rng.choice((1, 1, 2)))]
        if self.rng.random() < 0.3:
            devices["config"] = [self.config(f"claim {k}") | self.concerning(requests) for k in range(2)]
        return {"metadata": {"name": f"c{i}", "namespace": "d"}, "spec": {"devices": devices}}

    def config(self, text: str) -> Object:
        return {"opaque": {"driver": GPU_DRIVER, "parameters": {"kind": "GpuConfig", "from": text}}}

    def concerning(self, requests: list[Object]) -> Object:
        """Half of the time the names of some requests or alternatives."""
        if self.rng.random() < 0.5:
            return {}
        names = [one["name"] for one in requests]
        names += [f"{one['name']}/{s['name']}" for one in requests for s in one.get("firstAvailable", ())]
        return {"requests": self.rng.sample(names, self.rng.randint(1, len(names)))}

    def request(self, j: int) -> Object:
        name = f"r{j}"
        if self.rng.random() < 0.15:
            count = self.rng.randint(1, 3)
            return {"name": name, "firstAvailable": [{"name": f"s{k}", **self.exactly(False)} for k in range(count)]}
        return {"name": name, "exactly": self.exactly(True)}

    def exactly(self, admin: bool) -> Object:
        asked: Object = {"deviceClassName": self.rng.choices(self.CLASSES, self.CLASS_WEIGHTS)[0]}
        if self.odd and self.rng.random() < 0.04:
            asked["deviceClassName"] = "nosuch"
        if self.rng.random() < 0.6:
            pool = self.EXPRESSIONS if not self.odd else self.EXPRESSIONS + self.ODD_EXPRESSIONS
            count = self.rng.choice((1, 1, 1, 2))
            asked["selectors"] = [{"cel": {"expression": e}} for e in self.rng.sample(pool, count)]
        match self.rng.random():
            case x if x < 0.06:
                asked["allocationMode"] = "All"
            case x if x < 0.3:
                asked["count"] = self.rng.choice((2, 2, 3, 4))
            case x if x < 0.33:
                asked["count"] = self.rng.choice((12, 18, 20, 33))
        if admin and self.rng.random() < 0.15:
            asked["adminAccess"] = True
        if self.rng.random() < 0.2:
            asked["tolerations"] = [self.rng.choice(self.TOLERATIONS)]
        return asked

    def constraint(self, requests: list[Object]) -> Object:
        name = self.rng.choices(self.ATTRIBUTES, (6, 2, 2, 1, 3, 1))[0]
        made: Object = {"matchAttribute" if self.rng.random() < 0.8 else "distinctAttribute": name}
        return made | self.concerning(requests)

    CLASSES = ("mig", "gpu", "any-gpu", "unchecked", "any", "net")
    CLASS_WEIGHTS = (10, 2, 3, 0.3, 1.5, 0.8)
    EXPRESSIONS = (
        f"device.attributes['{GPU_DRIVER}'].?profile.orValue('') in ['1g.6gb', '1g.10gb']",
        f"device.attributes['{GPU_DRIVER}'].?profile.orValue('') in ['2g.12gb', '2g.20gb']",
        f"device.attributes['{GPU_DRIVER}'].?profile.orValue('') == '1g.10gb'",
        f"device.attributes['{GPU_DRIVER}'].?profile.orValue('') in ['4g.24gb', '3g.40gb']",
        f"device.attributes['{GPU_DRIVER}'].?profile.orValue('').startsWith('1g')",
        f"device.capacity['{GPU_DRIVER}'].?memory.orValue(quantity('0')).compareTo(quantity('8Gi')) >= 0",
        f"has(device.attributes['{GPU_DRIVER}'].parentUUID)",
        f"cel.bind(a, device.attributes['{GPU_DRIVER}'], has(a.profile) && a.profile != '4g.40gb')",
        f"device.attributes['{GPU_DRIVER}'].?type.orValue('') == 'mig'",
    )
    ODD_EXPRESSIONS = (
        f"device.attributes['{GPU_DRIVER}'].profile == '1g.10gb'",
        f"device.attributes['{GPU_DRIVER}'].nosuch == 'x'",
        f"device.attributes['{GPU_DRIVER}'].driverVersion == '580.1.0'",
        f"device.attributes['{GPU_DRIVER}'].index == 1",
        "device.driver == 1",
    )
    TOLERATIONS = (
        {"operator": "Exists"},
        {"key": "example.com/k", "operator": "Equal", "value": "v"},
        {"key": "example.com/k", "operator": "Equal", "value": "w"},
        {"key": "other", "operator": "Exists", "effect": "NoSchedule"},
    )
    ATTRIBUTES = (
        f"{GPU_DRIVER}/parentUUID",
        f"{GPU_DRIVER}/profile",
        "resource.kubernetes.io/pcieRoot",
        f"{GPU_DRIVER}/index",
        f"{GPU_DRIVER}/kind",
        f"{NET_DRIVER}/index",
    )
