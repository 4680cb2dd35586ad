"""All complete GPU models: every placement of every profile can be made on an empty GPU and is what was asked for."""

import pynvml
import pytest

from dynamig.testing.emulator import GpuModel, load_geometry
from tests.integration.emulator.clients import open_nvml
from tests.integration.emulator.conftest import Make

MODELS = load_geometry().models


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_profiles_and_placements_are_those_of_the_geometry(make: Make, model: GpuModel) -> None:
    with open_nvml(make(model.key)) as nvml:
        asked = {p.id: p for p in nvml.profiles()}
        assert sorted(asked) == sorted(p.id for p in model.profiles)
        for profile in model.profiles:
            info = asked[profile.id]
            assert info.name == f"MIG {profile.name}"
            assert (info.sliceCount, info.memorySizeMB) == (profile.compute_slices, profile.memory_mib)
            assert (info.multiprocessorCount, info.instanceCount) == (profile.multiprocessors, profile.max_instances)
            assert nvml.placements(profile.id) == [(s, profile.memory_slices) for s in profile.starts]
            assert nvml.free(profile.id) == profile.max_instances


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_every_placement_can_be_made_filled_and_read_back(make: Make, model: GpuModel) -> None:
    with open_nvml(make(model.key)) as nvml:
        for profile in model.profiles:
            for start in profile.starts:
                gi = nvml.create(profile.id, start, profile.memory_slices)
                ci = nvml.fill(gi)
                info = nvml.info(gi)
                assert (info.profileId, info.placement.start) == (profile.id, start)
                assert info.placement.size == profile.memory_slices
                [mig] = nvml.mig_devices()
                attributes = pynvml.nvmlDeviceGetAttributes(mig)
                assert attributes.multiprocessorCount == profile.multiprocessors
                assert attributes.memorySizeMB == profile.memory_mib
                assert pynvml.nvmlDeviceGetName(mig) == f"{model.product} MIG {profile.name}"
                assert pynvml.nvmlDeviceGetMemoryInfo(mig).total == profile.memory_mib << 20
                pynvml.nvmlComputeInstanceDestroy(ci)
                pynvml.nvmlGpuInstanceDestroy(gi)
        assert nvml.mig_devices() == []


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_as_many_of_each_profile_fit_as_it_says(make: Make, model: GpuModel) -> None:
    with open_nvml(make(model.key)) as nvml:
        for profile in model.profiles:
            made = [nvml.create_anywhere(profile.id) for _ in range(profile.max_instances)]
            assert nvml.free(profile.id) == 0
            with pytest.raises(pynvml.NVMLError_InsufficientResources):
                nvml.create_anywhere(profile.id)
            for gi in made:
                pynvml.nvmlGpuInstanceDestroy(gi)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_every_way_to_cut_an_instance_works_as_often_as_it_says(make: Make, model: GpuModel) -> None:
    with open_nvml(make(model.key)) as nvml:
        for profile in model.profiles:
            gi = nvml.create(profile.id, profile.starts[0], profile.memory_slices)
            kinds = nvml.ci_profiles(gi)
            assert sorted(k.id for k in kinds) == sorted(c.id for c in profile.compute_profiles)
            for kind in kinds:
                made = [nvml.fill(gi, kind.id) for _ in range(kind.instanceCount)]
                ids = [pynvml.nvmlComputeInstanceGetInfo(ci).id for ci in made]
                assert ids == list(range(kind.instanceCount))
                assert pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, kind.id) == 0
                for ci in made:
                    pynvml.nvmlComputeInstanceDestroy(ci)
            pynvml.nvmlGpuInstanceDestroy(gi)
