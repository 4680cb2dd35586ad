"""A GPU nobody has seen works if its file is right: any number of slices, sizes, starts, ids and constants."""

from pathlib import Path
from typing import Any

import pynvml
import yaml

from dynamig.testing.emulator import load_geometry
from tests.integration.emulator.clients import NO_ROOM, Nvml, code_of, open_nvml
from tests.integration.emulator.conftest import Make


def entry(name: str, slices: int, profiles: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": name,
        "device_memory_mib": slices * 4096,
        "device_sms": slices * 10,
        "architecture": "Feynman",
        "cuda_compute_capability": "14.2",
        "nvidia_smi_names": [f"NVIDIA {name}"],
        "pci_devices": [{"id": "0x3F0010DE"}],
        "mig_toggle_needs_reset": False,
        "total_compute_slices": slices,
        "total_memory_slices": slices,
        "profiles": profiles,
    }


def profile(name: str, number: int, size: int, starts: list[int], compute: int, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "gi_profile_id": number,
        "nvml_profile": {"value": more.pop("constant")},
        "compute_slices": compute,
        "memory_slices": size,
        "memory_mib": size * 4000,
        "sms": compute * 10,
        "copy_engines": 1,
        "decoders": 0,
        "encoders": 0,
        "jpeg": 0,
        "ofa": 0,
        "max_instances": len([s for s in starts if s % size == starts[0] % size]),
        "placements": {"starts": starts, "size": size},
        **more,
    }


def write(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump({"gpus": list(entries)}))
    return path


def fill_up(nvml: Nvml, number: int) -> list[Any]:
    made: list[Any] = []
    while True:
        try:
            gi = nvml.create_anywhere(number)
        except pynvml.NVMLError_InsufficientResources:
            return made
        nvml.fill(gi)
        made.append(gi)


def test_sixty_four_slices_one_instance_each(make: Make, tmp_path: Path) -> None:
    ones = profile("1g.4gb", 70, 1, list(range(64)), 1, constant=0)
    whole = profile("64g.256gb", 0, 64, [0], 64, constant=25)
    geometry = write(tmp_path / "g.yaml", entry("X64 (odd)", 64, [ones, whole]))
    emulator = make("x64:2", geometry=geometry)
    with open_nvml(emulator) as nvml:
        assert [p.id for p in nvml.profiles()] == [70, 0]  # beyond nvml.h's last constant, and found
        made = fill_up(nvml, 70)
        assert sorted(nvml.start(gi) for gi in made) == list(range(64))
        assert len(nvml.mig_devices()) == 64
        whole_gi = nvml.create_anywhere(0, gpu=1)
        nvml.fill(whole_gi)
        assert pynvml.nvmlDeviceGetAttributes(nvml.mig_devices(1)[0]).multiprocessorCount == 640
    minors = [p.name for p in (emulator.directory / "dev/nvidia-caps").iterdir()]
    assert len(minors) == len(set(minors)) == 2 + 128 + 2


def test_sizes_that_are_no_powers_of_two(make: Make, tmp_path: Path) -> None:
    """Units of 3, 6 and 12 as on RTX PRO 6000 (nvidia-smi mig -lgipp), and a crooked 5 beside them."""
    profiles = [
        profile("1g.24gb", 14, 3, [0, 3, 6, 9], 1, constant=0),
        profile("2g.48gb", 5, 6, [0, 6], 2, constant=1),
        profile("4g.96gb", 0, 12, [0], 4, constant=3),
        profile("1g.40gb", 33, 5, [1, 7], 1, constant=9, max_instances=2),
    ]
    with open_nvml(make("x12", geometry=write(tmp_path / "g.yaml", entry("X12", 12, profiles)))) as nvml:
        nvml.fill(nvml.create(33, 1, 5))
        assert {number: nvml.free(number) for number in (14, 5, 0, 33)} == {14: 2, 5: 1, 0: 0, 33: 1}
        assert [nvml.start(gi) for gi in fill_up(nvml, 14)] == [6, 9]


def test_an_unknown_architecture_is_told_as_such(make: Make, tmp_path: Path) -> None:
    geometry = write(tmp_path / "g.yaml", entry("X1", 1, [profile("1g.4gb", 1, 1, [0], 1, constant=0)]))
    with open_nvml(make("x1", geometry=geometry)) as nvml:
        assert pynvml.nvmlDeviceGetArchitecture(nvml.gpu()) == pynvml.NVML_DEVICE_ARCH_UNKNOWN
        assert pynvml.nvmlDeviceGetCudaComputeCapability(nvml.gpu()) == (14, 2)


def test_compute_instances_of_two_kinds_fill_one_gpu_instance(make: Make, tmp_path: Path) -> None:
    """More than the kernel's table has: what is said to fit fits."""
    cuts = [
        {"nvml_profile": 0, "id": 0, "compute_slices": 1, "sms": 10, "max_instances": 8, "starts": list(range(8))},
        {"nvml_profile": 1, "id": 1, "compute_slices": 1, "sms": 9, "max_instances": 8, "starts": list(range(8, 16))},
        {"nvml_profile": 5, "id": 5, "compute_slices": 16, "sms": 160, "max_instances": 1, "starts": [0]},
    ]
    whole = profile("16g.64gb", 0, 16, [0], 16, constant=5, compute_profiles=cuts)
    with open_nvml(make("x16", geometry=write(tmp_path / "g.yaml", entry("X16", 16, [whole])))) as nvml:
        gi = nvml.create_anywhere(0)
        for number in [0] * 8:
            nvml.fill(gi, number)
        assert pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, 1) == 8
        for number in [1] * 8:
            nvml.fill(gi, number)
        assert code_of(nvml.fill, gi, 1) == NO_ROOM


def test_somebody_else_fills_an_instance_where_its_compute_profile_may_start(make: Make, tmp_path: Path) -> None:
    cut = {"nvml_profile": 0, "id": 0, "compute_slices": 1, "sms": 20, "max_instances": 1, "starts": [1]}
    two = profile("2g.8gb", 0, 2, [0], 2, constant=1, compute_profiles=[cut])
    emulator = make("x2", geometry=write(tmp_path / "g.yaml", entry("X2", 2, [two])))
    emulator.foreign(0, "2g.8gb", 0)
    [gi] = emulator.show().gpus[0].gpu_instances
    assert [ci.start for ci in gi.compute_instances] == [1]


def test_a_stated_way_to_cut_an_instance_replaces_the_rule(make: Make, tmp_path: Path) -> None:
    stated = [
        {"nvml_profile": 5, "id": 11, "compute_slices": 8, "sms": 80, "max_instances": 1, "starts": [0]},
        {"nvml_profile": 3, "id": 12, "compute_slices": 3, "sms": 30, "max_instances": 2, "starts": [1, 5]},
    ]
    eight = profile("8g.32gb", 0, 8, [0], 8, constant=5, compute_profiles=stated)
    with open_nvml(make("x8", geometry=write(tmp_path / "g.yaml", entry("X8", 8, [eight])))) as nvml:
        gi = nvml.create_anywhere(0)
        starts = [pynvml.nvmlComputeInstanceGetInfo(nvml.fill(gi, 12)).placement.start for _ in range(2)]
        assert starts == [1, 5]


def test_no_more_compute_instances_than_the_profile_counts(make: Make, tmp_path: Path) -> None:
    stated = [
        {"nvml_profile": 0, "id": 0, "compute_slices": 1, "sms": 10, "max_instances": 1, "starts": [0, 1]},
        {"nvml_profile": 1, "id": 1, "compute_slices": 2, "sms": 20, "max_instances": 1, "starts": [0]},
    ]
    two = profile("2g.8gb", 0, 2, [0], 2, constant=1, compute_profiles=stated)
    with open_nvml(make("x2", geometry=write(tmp_path / "g.yaml", entry("X2", 2, [two])))) as nvml:
        gi = nvml.create_anywhere(0)
        left = pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity
        assert left(gi, 0) == 1
        nvml.fill(gi, 0)
        assert left(gi, 0) == 0
        assert code_of(nvml.fill, gi, 0) == NO_ROOM


def test_models_of_a_file_do_not_mix_with_the_shipped_ones(tmp_path: Path) -> None:
    catalog = load_geometry(write(tmp_path / "g.yaml", entry("X1", 1, [profile("1g.4gb", 1, 1, [0], 1, constant=0)])))
    assert list(catalog.models) == ["x1"]
