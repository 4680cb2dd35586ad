"""Acceptance cases C-01 to C-08, C-14 and C-15: dynamig's driver on emulated GPUs.

C-05 is test_unknown_profiles.py, C-07 test_every_set.py, C-09 test_strictness.py, C-10 and C-11 test_lifecycle.py, C-12
test_modes.py; C-13, the whole road of a pod, is tests/e2e/test_pod_gets_its_slice.py; that a driver without devices is
not ready, the end of C-14, is tests/integration/driver.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pynvml
import pytest
import yaml

from dynamig.dra import Device, Pool, read_pools, resource_slices
from dynamig.dra.cel import compile_selector
from dynamig.dra.quantity import parse
from dynamig.driver.catalog import build
from dynamig.driver.config import GpuPolicies
from dynamig.driver.numbers import NumberFile
from dynamig.errors import DynamigError, Unavailable
from dynamig.mig import GiProfile, GpuUuid, Partition
from dynamig.nvml import DeviceTree, NvmlGpus
from dynamig.protocol import names
from dynamig.protocol.gpus import LiveInstance, MigMode
from dynamig.testing.emulator import Emulator, NvmlReturn, load_geometry
from dynamig.testing.emulator.geometry import SHIPPED
from dynamig.testing.fakes import FakeGpus, FakeNodes
from tests.integration.emulator.clients import open_nvml
from tests.integration.emulator.conftest import Make
from tests.property.test_dra_counters import Counters
from tests.unit.driver.bench_node import BenchNode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a prepared claim has character devices")

MODELS = sorted(load_geometry().models)
MIB = 2**20
LEGAL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
"""A DNS label, as ResourceSlice demands of device names."""


@contextmanager
def driver_on(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[BenchNode]:
    """A driver with NVML and the device nodes of this node; API server, journal and CDI folder in memory."""
    monkeypatch.setenv("DYNAMIG_EMULATOR_DIR", str(emulator.directory))
    tree = DeviceTree(emulator.directory, emulator.directory / "proc")
    with NvmlGpus(emulator.directory / "sys") as gpus:
        yield BenchNode(cast(FakeGpus, gpus), cast(FakeNodes, tree))


uids = (f"uid-{number}" for number in itertools.count())


def pools(node: BenchNode) -> list[Pool]:
    return [offer.pool for offer in node.catalog().offers.values()]


def made(node: BenchNode, pool: Pool, device: Device) -> tuple[LiveInstance, ...]:
    """What lives on the GPU after a claim for the device was prepared."""
    node.prepare(node.allocated(next(uids), (pool.name, device.name)))
    return tuple(node.gpus.instances(pool.gpu.uuid))


def unprepared(node: BenchNode) -> None:
    for uid in list(node.journal.records()):
        node.service.endings.unprepare(uid)


def mig_devices(pool: Pool) -> list[Device]:
    return [device for device in pool.devices if device.partition is not None]


def profile_of(pool: Pool, device: Device) -> GiProfile:
    assert pool.gpu.geometry is not None
    assert device.partition is not None
    return pool.gpu.geometry.profile(device.partition.profile)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("model", MODELS)
def test_c01_every_published_device_can_be_made(make: Make, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    with driver_on(make(model, trace=False), monkeypatch) as node:
        [pool] = pools(node)
        for device in mig_devices(pool):
            [live] = made(node, pool, device)
            assert live.partition == device.partition
            [mig] = live.compute
            attributes = pynvml.nvmlDeviceGetAttributes(pynvml.nvmlDeviceGetHandleByUUID(str(mig.uuid)))
            assert attributes.multiprocessorCount == profile_of(pool, device).engines.multiprocessors
            unprepared(node)
            assert not node.live()


@pytest.mark.parametrize("model", MODELS)
def test_c02_the_largest_profile_is_the_whole_card(make: Make, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    with driver_on(make(model), monkeypatch) as node:
        [pool] = pools(node)
        largest = max(mig_devices(pool), key=lambda d: profile_of(pool, d).size)
        [live] = made(node, pool, largest)
        assert live.partition.placement.size == (4 if model.startswith("a30") else 8)
        counters = Counters(pool)
        used = counters.used((largest.partition,))
        assert not any(counters.allow(used, device.partition) for device in pool.devices)
        for other in pool.devices:
            with pytest.raises(DynamigError):
                made(node, pool, other)
        unprepared(node)
        smallest = min(mig_devices(pool), key=lambda d: profile_of(pool, d).size)
        [live] = made(node, pool, smallest)  # once it is gone, others fit
        assert live.partition == smallest.partition


def test_c03_4g_and_3g_in_both_orders(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with driver_on(make("h100-80gb-sxm5:2"), monkeypatch) as node:
        orders = ((("3g.40gb", 4), ("4g.40gb", 0)), (("4g.40gb", 0), ("3g.40gb", 4)))
        for gpu, order in enumerate(orders):
            for profile, start in order:
                node.prepare(node.allocated(next(uids), node.device(profile, start, gpu)))
        for gpu in (0, 1):
            assert {str(live.partition) for live in node.live(gpu)} == {"5@{0}:4", "9@{4}:4"}
            migs = [pynvml.nvmlDeviceGetHandleByUUID(str(live.compute[0].uuid)) for live in node.live(gpu)]
            assert sorted(pynvml.nvmlDeviceGetAttributes(mig).multiprocessorCount for mig in migs) == [60, 64]


def with_gb200(path: Path) -> Path:
    """A file of the shipped GB200, which is on record but for its placements: they are those of the B200 here."""
    shipped = yaml.safe_load(SHIPPED.read_text())["gpus"]
    b200, gb200 = (next(e for e in shipped if e["model"] == name) for name in ("B200 180GB", "GB200 186GB"))
    placed = {profile["gi_profile_id"]: profile["placements"] for profile in b200["profiles"]}
    known = [dict(p, placements=placed[p["gi_profile_id"]]) for p in gb200["profiles"] if p.get("sms")]
    entry = dict(gb200, device_memory_mib=8 * 23552, device_sms=148, profiles=known)
    path.write_text(yaml.safe_dump({"gpus": [entry]}))
    return path


ASKED = (
    "device.attributes['gpu.nvidia.com'].type == 'mig'"
    " && device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('{memory}')) >= 0"
    " && device.capacity['gpu.nvidia.com'].multiprocessors.compareTo(quantity('14')) >= 0"
)


def selected(pool: Pool, expression: str) -> Device:
    """The first of the published devices that the selector takes, as the scheduler allocates."""
    slices = resource_slices(pool, driver=names.DRIVER_NAME, node="n1", generation=1)
    [published], selector = read_pools(slices), compile_selector(expression)
    return pool.device(next(d.name for d in published.devices if selector.matches(names.DRIVER_NAME, d)))


@pytest.mark.parametrize(
    ("model", "memory", "profile"),
    [
        ("b200-180gb", "10Gi", "1g.23gb"),
        ("h100-nvl-94gb", "10Gi", "1g.12gb"),
        ("h200-141gb-sxm", "10Gi", "1g.18gb"),
        ("b200-180gb", "20Gi", "1g.23gb"),
        ("h100-nvl-94gb", "20Gi", "1g.24gb"),
        ("h100-96gb-on-gh200", "20Gi", "1g.24gb"),
        ("gb200-186gb", "20Gi", "1g.23gb"),
        ("gb200-186gb", "40Gi", "1g.47gb"),
    ],
)
def test_c04_a_slice_by_size_has_another_name_on_every_model(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, memory: str, profile: str
) -> None:
    geometry = with_gb200(tmp_path / "g.yaml") if model.startswith("gb200") else None
    with driver_on(make(model, geometry=geometry), monkeypatch) as node:
        [pool] = pools(node)
        device = selected(pool, ASKED.format(memory=memory))
        assert device.attributes["profile"] == profile
        assert len(made(node, pool, device)) == 1


Meaning = tuple[str, Partition | None]
"""GPU UUID and partition; None: the whole GPU."""


def published(node: BenchNode, numbers: Path) -> dict[str, Meaning]:
    """Device name to what it means, asked by a driver that has just started. Units are checked on the way."""
    readings = node.gpus.readings()
    catalog = build("n1", readings, NumberFile(numbers).of(readings), GpuPolicies())
    found = [(offer.pool.gpu.uuid, device) for offer in catalog.offers.values() for device in offer.pool.devices]
    for gpu, device in found:
        assert parse(device.capacity["memory"]) == mib_by_nvml(gpu, device.partition) * MIB
    assert len({device.name for _, device in found}) == len(found)
    return {device.name: (str(gpu), device.partition) for gpu, device in found}


def mib_by_nvml(gpu: GpuUuid, partition: Partition | None) -> int:
    handle = pynvml.nvmlDeviceGetHandleByUUID(str(gpu))
    if partition is None:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // MIB
    return int(pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(handle, partition.profile).memorySizeMB)


@pytest.mark.parametrize("model", MODELS)
def test_c06_units_and_names_that_stay(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str) -> None:
    emulator = make(f"{model}:2", renumber=True)

    def restarted() -> tuple[dict[str, Meaning], list[int]]:
        with driver_on(emulator, monkeypatch) as node:
            return published(node, tmp_path / "gpus.json"), [reading.minor for reading in node.gpus.readings()]

    before, minors = restarted()
    assert len(set(before.values())) == len(before)
    first = str(emulator.show().gpus[0].uuid)
    others = {name: meaning for name, meaning in before.items() if meaning[0] != first}
    assert 2 * len(others) == len(before)
    hidden = (emulator.directory / "dev/nvidia0").rename(emulator.directory / "dev/hidden")
    assert restarted() == (others, minors[1:])
    hidden.rename(emulator.directory / "dev/nvidia0")
    emulator.lose(0)
    assert restarted() == (others, minors[1:])
    emulator.lose(0, lost=False)
    for on in (False, True):
        for gpu in (1, 0):
            emulator.set_mig(gpu, on)
            emulator.reset(gpu)
    after, moved = restarted()
    assert after == before
    stayed = [minor == moved[i] for i, minor in enumerate(minors)]
    assert (
        stayed == [load_geometry().models[model].reset_to_switch] * 2
    )  # the emulator renumbers where no reset is needed


def test_c06_a_replaced_gpu_leaves_its_number_to_nobody(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meant: dict[str, str] = {}
    for _ in range(3):  # a new node is two new GPUs, with the minors of the old ones
        with driver_on(make("a30-24gb:2"), monkeypatch) as node:
            now = {name: gpu for name, (gpu, _) in published(node, tmp_path / "gpus.json").items()}
        assert not meant.keys() & now.keys()
        meant |= now


@pytest.mark.parametrize("model", MODELS)
def test_c08_profiles_are_spelled_as_nvidia_smi_spells_them(
    make: Make, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    with driver_on(make(model), monkeypatch) as node:
        [pool] = pools(node)
        recorded = {profile.name for profile in load_geometry().models[model].profiles}
        assert {device.attributes["profile"] for device in mig_devices(pool)} == recorded


ABSENT: dict[str, dict[str, object]] = {
    "nvmlDeviceGetMigMode": {"mig_mode": MigMode.ABSENT, "mig_mode_pending": MigMode.ABSENT, "geometry": None},
    "nvmlDeviceGetAddressingMode": {},  # never asked for
    "nvmlDeviceGetArchitecture": {"architecture": "Unknown", "mode_switch_needs_reset": True},
    "nvmlDeviceGetName": {"product_name": ""},
    "nvmlDeviceGetBrand": {"brand": "Unknown"},
    "nvmlDeviceGetCudaComputeCapability": {"cuda_compute_capability": ""},
    "nvmlDeviceGetMemoryInfo*": {"memory": 0},
    "nvmlDeviceGetPciInfo*": {"pci_bus_id": "", "pcie_root": None, "numa_node": None},
    "nvmlSystemGetDriverVersion": {"driver_version": ""},
    "nvmlSystemGetCudaDriverVersion*": {"cuda_driver_version": ""},
    "sysfs numa_node": {"numa_node": None},
    "sysfs PCI root": {"pcie_root": None, "numa_node": None},
}
"""What is not there, and what its items are in a reading then; nothing else of the reading changes."""


def lose(emulator: Emulator, what: str, code: NvmlReturn) -> None:
    device = emulator.directory / "sys/bus/pci/devices/0000:07:00.0"
    if what == "sysfs numa_node":
        (device / "numa_node").unlink()
    elif what == "sysfs PCI root":
        device.unlink()  # as in a virtual machine that has no such device
    else:
        emulator.fail(what, code, count=0)


CODES = (NvmlReturn.NOT_SUPPORTED, NvmlReturn.FUNCTION_NOT_FOUND)
"""Of a GPU that cannot, and of a driver from before the question; sysfs gives none."""


@pytest.mark.parametrize(("what", "code"), [(w, c) for w in ABSENT for c in CODES[: 2 if w.startswith("nvml") else 1]])
def test_c14_what_is_missing_is_absent_and_all_else_is_there(
    make: Make, monkeypatch: pytest.MonkeyPatch, what: str, code: NvmlReturn
) -> None:
    emulator = make()
    (emulator.directory / "sys/bus/pci/devices/0000:07:00.0/numa_node").write_text("1\n")
    with driver_on(emulator, monkeypatch) as node:
        [whole] = node.gpus.readings()
    lose(emulator, what, code)
    with driver_on(emulator, monkeypatch) as node:
        [reading] = node.gpus.readings()
        assert reading == replace(whole, **ABSENT[what])  # type: ignore[arg-type]
        assert all(getattr(whole, item) != absent for item, absent in ABSENT[what].items())
        [pool] = pools(node)
        kinds = Counter(device.attributes["type"] for device in pool.devices)
        assert kinds["mig"] == (25 if reading.geometry else 0)
        assert kinds["gpu"] == (0 if reading.mode_switch_needs_reset else 1)  # whole, it would have to leave MIG mode


@pytest.mark.parametrize(("driver_version", "is_old"), [("580.95.05", False), ("460.106.00", True)])
def test_c15_a_mig_uuid_is_opaque_and_an_error_is_no_verdict(
    make: Make, monkeypatch: pytest.MonkeyPatch, driver_version: str, is_old: bool
) -> None:
    """Before R470 a MIG device had the UUID of its GPU and two ids: made, given to CDI, found again, and ended."""
    emulator = make("a100-40gb", driver_version=driver_version)
    with driver_on(emulator, monkeypatch) as node:
        uid = next(uids)
        ref = node.allocated(uid, node.device("3g.20gb", 4))
        prepared = node.prepare(ref)
        [live] = node.live()
        uuid = live.compute[0].uuid
        old_form = f"MIG-{node.gpus.readings()[0].uuid}/{live.gi_id}/{live.compute[0].ci_id}"
        assert old_form.startswith("MIG-GPU-")
        assert (uuid == old_form) is is_old
        assert emulator.show().gpus[0].gpu_instances[0].compute_instances[0].mig_uuid == uuid
        gi_node = 3 + live.gi_id * 9
        for number in (gi_node, gi_node + 1 + live.compute[0].ci_id):
            assert f"/nvidia-cap{number}" in json.dumps(node.cdi.specs[uid])
        assert [held.live.mig_uuid for held in node.journal.records()[uid].devices if held.live] == [uuid]
        with open_nvml(emulator):
            for spelling in (str(uuid), old_form):
                assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(spelling)) == uuid
        emulator.fail("nvmlDeviceGetGpuInstances", NvmlReturn.UNKNOWN, count=0)
        with pytest.raises(Unavailable, match=r"NVML says .* \(999\)"):
            node.live()
        emulator.clear_faults()
        node.restart()
        assert node.prepare(ref) == prepared  # a driver that has just started finds it well
        assert node.live() == [live]
        unprepared(node)
        assert not node.live()
