"""K4 and C-07 on the emulator: what it makes is what the model says fits and what the published counters allow.

Model (`dynamig.mig`) and emulator (C) share no code and no table; both start from a geometry file. Every reachable set
of instances of a GPU is made, and on each everything is asked that could be made next. Where there are more sets than
`MOST_SETS`, as many random walks' steps are taken instead.
"""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from dynamig.mig import (
    CiPartition,
    CiProfileId,
    Cuts,
    Geometry,
    GiProfile,
    Partition,
    Table,
    cuts,
    drivers_choice,
    possible_ids,
)
from dynamig.testing.emulator import load_geometry
from tests.integration.emulator.clients import NO_ROOM, Nvml, code_of, open_nvml
from tests.integration.emulator.conftest import Make
from tests.property.test_dra_counters import Counters, pool_of
from tests.property.test_mig_random import geometries
from tests.unit.mig.models import BY_HAND, recorded_by_key
from tests.unit.mig.models import profile as gi_profile

RECORDED = recorded_by_key()
pytestmark = pytest.mark.timeout(7200 if "DYNAMIG_EMULATOR_SETS" in os.environ else 600)
MOST_SETS = int(os.environ.get("DYNAMIG_EMULATOR_SETS", "10000"))
"""Sets per model that are looked at; `make soak` asks for a million."""


class LiveGpu:
    """GPU 0 of the node: its living instances by partition. Calls go past pynvml's exceptions: there are millions."""

    def __init__(self, nvml: Nvml) -> None:
        self._gpu = nvml.gpu()
        self._make = pynvml._nvmlGetFunctionPointer("nvmlDeviceCreateGpuInstanceWithPlacement")
        self._make_anywhere = pynvml._nvmlGetFunctionPointer("nvmlDeviceCreateGpuInstance")
        self._destroy = pynvml._nvmlGetFunctionPointer("nvmlGpuInstanceDestroy")
        self.made: dict[Partition, Any] = {}

    def create(self, wanted: Partition) -> int:
        """NVML's return code."""
        at = pynvml.c_nvmlGpuInstancePlacement_t(wanted.placement.start, wanted.placement.size)
        gi = pynvml.c_nvmlGpuInstance_t()
        code: int = self._make(self._gpu, wanted.profile, ctypes.byref(at), ctypes.byref(gi))
        if code == 0:
            self.made[wanted] = gi
        return code

    def destroy(self, gone: Partition) -> None:
        assert self._destroy(self.made.pop(gone)) == 0

    def become(self, layout: Sequence[Partition]) -> None:
        """The GPU holds exactly `layout`."""
        for gone in [one for one in self.made if one not in layout]:
            self.destroy(gone)
        for new in layout:
            if new not in self.made:
                assert self.create(new) == 0

    def free(self, profile: GiProfile) -> int:
        return int(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(self._gpu, profile.id))

    def placed_freely(self, profile: GiProfile) -> Any | None:
        """Placement and id that the driver chooses for one more instance, which is gone again; None if none fits."""
        gi = pynvml.c_nvmlGpuInstance_t()
        code = self._make_anywhere(self._gpu, profile.id, ctypes.byref(gi))
        if code == NO_ROOM:
            return None
        assert code == 0
        info = pynvml.nvmlGpuInstanceGetInfo(gi)
        assert self._destroy(gi) == 0
        return info


def layouts(table: Table) -> Iterator[Sequence[Partition]]:
    """Every valid set, or MOST_SETS steps of random walks where there are more."""
    known = []
    for layout in table.valid():
        known.append(layout)
        if len(known) > MOST_SETS:
            yield from _walk(table)
            return
    yield from known


def _walk(table: Table) -> Iterator[Sequence[Partition]]:
    dice, live = random.Random(len(table.options)), list[Partition]()
    for _ in range(MOST_SETS):
        possible = table.possible(live)
        if possible and (not live or dice.random() < 0.6):
            live.append(dice.choice(possible))
        else:
            live.remove(dice.choice(live))
        yield tuple(live)


def compare(nvml: Nvml, geometry: Geometry) -> int:
    """How many sets were compared."""
    gpu, table, counters = LiveGpu(nvml), Table(geometry), Counters(pool_of(geometry))
    compared = 0
    for layout in layouts(table):
        gpu.become(layout)
        _compare_what_is_possible(gpu, table, counters, layout)
        _compare_answers(gpu, table, layout)
        compared += 1
    return compared


def _compare_what_is_possible(gpu: LiveGpu, table: Table, counters: Counters, layout: Sequence[Partition]) -> None:
    used, possible = counters.used(tuple(layout)), set(table.possible(layout))
    for new in table.options:
        if new in gpu.made:
            continue
        code = gpu.create(new)
        assert code == (0 if new in possible else NO_ROOM), (layout, new)
        assert counters.allow(used, new) == (code == 0), (layout, new)
        if code == 0:
            gpu.destroy(new)


def _compare_answers(gpu: LiveGpu, table: Table, layout: Sequence[Partition]) -> None:
    for profile in table.geometry.profiles:
        assert gpu.free(profile) == table.remaining(layout, profile.id), (layout, profile.name)
        chosen, placed = drivers_choice(table, layout, profile.id), gpu.placed_freely(profile)
        assert (chosen is None) == (placed is None), (layout, profile.name)
        if chosen is not None and placed is not None:
            assert placed.placement.start == chosen.placement.start, (layout, profile.name)
            assert placed.id in possible_ids(table.geometry, profile.id)


@pytest.mark.parametrize("key", sorted(RECORDED))
def test_on_every_reachable_set_of_every_complete_model(make: Make, key: str) -> None:
    with open_nvml(make(key, trace=False)) as nvml:
        assert compare(nvml, RECORDED[key]) == (76 if key.startswith("a30") else 2319)


def test_all_complete_models_of_the_file_are_there() -> None:
    assert sorted(RECORDED) == sorted(load_geometry().models)


@pytest.mark.parametrize("name", ["RTX PRO 6000", "Odd"])
def test_on_gpus_written_by_hand(make: Make, tmp_path: Path, name: str) -> None:
    """Among them the media rules of RTX PRO (+gfx, +me, +me.all, -me), and one that is like no GPU there is."""
    emulator = make("made-up", geometry=written(tmp_path / "g.yaml", BY_HAND[name]), trace=False)
    with open_nvml(emulator) as nvml:
        assert compare(nvml, BY_HAND[name]) >= 50


def test_on_a_gpu_with_more_sets_than_can_be_looked_at(make: Make, tmp_path: Path) -> None:
    """Sixteen slices, each alone or in fours: 83,522 sets."""
    geometry = Geometry(
        (
            gi_profile("1g.4gb", 30, 0, 1, 4000, (8, 1, 1, 0, 1, 0), 16, tuple(range(16)), 1),
            gi_profile("4g.16gb", 31, 3, 4, 16000, (32, 4, 4, 0, 4, 0), 4, (0, 4, 8, 12), 4),
            gi_profile("16g.64gb", 32, 40, 16, 64000, (128, 16, 16, 0, 16, 1), 1, (0,), 16),
        )
    )
    emulator = make("made-up", geometry=written(tmp_path / "g.yaml", geometry), trace=False)
    with open_nvml(emulator) as nvml:
        assert compare(nvml, geometry) >= min(MOST_SETS, 17**4 + 1)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(geometry=geometries())
def test_on_made_up_gpus(make: Make, tmp_path_factory: pytest.TempPathFactory, geometry: Geometry) -> None:
    """Other slice counts, sizes, starts, counts and engines than any GPU has."""
    file = written(tmp_path_factory.mktemp("geometry") / "g.yaml", geometry)
    with open_nvml(make("made-up", geometry=file, trace=False)) as nvml:
        compare(nvml, geometry)


def written(path: Path, geometry: Geometry) -> Path:
    """The geometry as a file in the format of geometry.yaml, under the key `made-up`."""
    slices = max(p.compute_slices * p.max_instances for p in geometry.profiles)
    entry = {
        "model": "Made up",
        "architecture": "Hopper",
        "device_memory_mib": 200000,
        "device_sms": 1000,
        "nvidia_smi_names": ["NVIDIA Made Up"],
        "pci_devices": [{"id": "0x3F0010DE"}],
        "mig_toggle_needs_reset": False,
        "total_compute_slices": slices,
        "total_memory_slices": geometry.memory_slices,
        "profiles": [written_profile(profile) for profile in geometry.profiles],
    }
    path.write_text(yaml.safe_dump({"gpus": [entry]}, allow_unicode=True))
    return path


def written_profile(profile: GiProfile) -> dict[str, Any]:
    engines = profile.engines
    return {
        "name": profile.name,
        "gi_profile_id": int(profile.id),
        "nvml_profile": {"value": int(profile.nvml)},
        "compute_slices": profile.compute_slices,
        "memory_slices": profile.size,
        "memory_mib": int(profile.memory),
        "sms": engines.multiprocessors,
        "copy_engines": engines.copy_engines,
        "decoders": engines.decoders,
        "encoders": engines.encoders,
        "jpeg": engines.jpeg_engines,
        "ofa": engines.ofa_engines,
        "max_instances": profile.max_instances,
        "placements": {"starts": [p.start for p in profile.placements], "size": profile.size},
    }


# ---- inside a GPU instance


@pytest.mark.parametrize("key", sorted(RECORDED))
def test_every_cut_of_every_gpu_instance(make: Make, key: str) -> None:
    geometry = RECORDED[key]
    with open_nvml(make(key, trace=False)) as nvml:
        for profile in geometry.profiles:
            at = profile.placements[0]
            gi = nvml.create(profile.id, at.start, at.size)
            _compare_cuts(nvml, gi, cuts(geometry, profile.id))
            pynvml.nvmlGpuInstanceDestroy(gi)


def _compare_cuts(nvml: Nvml, gi: Any, model: Cuts) -> None:
    listed = {p.id: (p.sliceCount, p.multiprocessorCount, p.instanceCount) for p in nvml.ci_profiles(gi)}
    assert listed == {p.id: (p.compute_slices, p.multiprocessors, p.max_instances) for p in model.profiles}
    for profile in model.profiles:
        places = [(p.placement.start, p.placement.size) for p in profile.partitions()]
        assert _ci_placements(gi, profile.id) == places
    _grow(gi, model, ())


def _ci_placements(gi: Any, profile: CiProfileId) -> list[tuple[int, int]]:
    count = ctypes.c_uint()
    ask = pynvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements
    ask(gi, profile, None, ctypes.byref(count))
    found = (pynvml.c_nvmlComputeInstancePlacement_t * count.value)()
    ask(gi, profile, found, ctypes.byref(count))
    return [(p.start, p.size) for p in found]


def _grow(gi: Any, model: Cuts, live: tuple[CiPartition, ...]) -> None:
    """Every set of compute instances that grows from `live` by larger ones is made, compared and taken away."""
    for profile in model.profiles:
        left = pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, profile.id)
        assert left == model.remaining(live, profile.id), (live, profile)
        for new in profile.partitions():
            made: list[Any] = []
            code = code_of(lambda new=new, made=made: made.append(_cut(gi, new)))
            assert code == (0 if model.fits(live, new) else NO_ROOM), (live, new)
            if made and (not live or new > live[-1]):
                _grow(gi, model, (*live, new))
            for ci in made:
                pynvml.nvmlComputeInstanceDestroy(ci)


def _cut(gi: Any, wanted: CiPartition) -> Any:
    at = pynvml.c_nvmlComputeInstancePlacement_t(wanted.placement.start, wanted.placement.size)
    return pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(gi, wanted.profile, ctypes.byref(at))
