"""Partial failures and destroy order (C-10), remaining capacity (C-11), compute instances, ids and UUIDs."""

import re
import uuid

import pynvml
import pytest

from dynamig.testing.emulator import Emulator
from tests.integration.emulator.clients import IN_USE, INVALID_ARGUMENT, NO_ROOM, NOT_FOUND, Nvml, code_of, open_nvml
from tests.integration.emulator.conftest import Make

ONE, ONE_ME, TWO, THREE, FOUR, WHOLE = 19, 20, 14, 9, 5, 0
Client = tuple[Emulator, Nvml]


def test_the_order_of_creation_without_placement_decides_what_fits(make: Make) -> None:
    with open_nvml(make("a100-40gb:2")) as nvml:
        made = [nvml.create_anywhere(profile) for profile in (ONE, ONE, TWO)]
        assert code_of(nvml.create_anywhere, THREE) == NO_ROOM
        assert [nvml.start(gi) for gi in made] == [6, 4, 0]
        again = [nvml.create_anywhere(profile, gpu=1) for profile in (THREE, ONE, TWO, ONE)]
        assert len({nvml.start(gi) for gi in again}) == 4


def test_the_driver_places_small_instances_from_right_to_left(make: Make) -> None:
    for model in ("a100-40gb", "h100-80gb-sxm5"):
        with open_nvml(make(model)) as nvml:
            assert [nvml.start(nvml.create_anywhere(ONE)) for _ in range(7)] == [6, 4, 5, 0, 1, 2, 3]


def test_destroying_goes_from_the_inside_out(nvml: Client) -> None:
    _, client = nvml
    gi = client.create(THREE, 4, 4)
    ci = client.fill(gi)
    assert code_of(pynvml.nvmlGpuInstanceDestroy, gi) == IN_USE
    pynvml.nvmlComputeInstanceDestroy(ci)
    pynvml.nvmlGpuInstanceDestroy(gi)
    assert client.free(THREE) == 2


def test_on_an_a100_an_unknown_id_is_not_found_and_a_filled_instance_stays(make: Make) -> None:
    with open_nvml(make("a100-40gb")) as nvml:
        made = [nvml.create_anywhere(profile) for profile in (ONE, ONE, TWO)]
        assert code_of(nvml.create_anywhere, THREE) == NO_ROOM
        ids = {nvml.info(gi).id for gi in made}
        nvml.fill(made[2])
        assert code_of(pynvml.nvmlGpuInstanceDestroy, made[2]) == IN_USE
        unknown = [i for i in range(16) if i not in ids]
        codes = {code_of(pynvml.nvmlDeviceGetGpuInstanceById, nvml.gpu(), i) for i in (*unknown, 2**32 - 1)}
        assert codes == {NOT_FOUND}
        assert {nvml.info(pynvml.nvmlDeviceGetGpuInstanceById(nvml.gpu(), i)).id for i in ids} == ids


def test_what_is_still_free_is_not_total_minus_created(nvml: Client) -> None:
    _, client = nvml
    client.create(ONE, 0, 1)
    client.create(THREE, 4, 4)
    free = {profile: client.free(profile) for profile in (ONE, ONE_ME, 15, TWO, THREE, FOUR, WHOLE)}
    assert free == {ONE: 3, ONE_ME: 1, 15: 1, TWO: 1, THREE: 0, FOUR: 0, WHOLE: 0}


def test_media_extensions_exist_once_per_gpu(make: Make) -> None:
    with open_nvml(make("a30-24gb")) as nvml:
        nvml.create(21, 0, 1)
        assert nvml.free(21) == nvml.free(6) == 0
        assert code_of(nvml.create, 6, 2, 2) == NO_ROOM
        assert nvml.free(5) == 1


@pytest.mark.parametrize("seed", range(5))
def test_ids_tell_the_class_and_never_the_position(make: Make, seed: int) -> None:
    with open_nvml(make(seed=seed)) as nvml:
        ids = [nvml.info(nvml.create(ONE, start, 1)).id for start in range(7)]
        assert set(ids) <= set(range(7, 15))
        assert len(set(ids)) == 7
        assert ids != sorted(ids)


def test_ids_follow_from_the_seed_and_the_gpu(make: Make) -> None:
    def ids(seed: int, gpu: int = 0) -> tuple[int, ...]:
        with open_nvml(make("h100-80gb-sxm5:2", seed=seed)) as nvml:
            return tuple(nvml.info(nvml.create(ONE, start, 1, gpu)).id for start in range(7))

    assert ids(3) == ids(3)
    assert len({ids(seed) for seed in range(5)}) == 5
    assert ids(3, gpu=0) != ids(3, gpu=1)


def test_halves_quarters_and_the_whole_have_ids_of_their_class(nvml: Client) -> None:
    _, client = nvml
    whole = client.create(WHOLE, 0, 8)
    assert client.info(whole).id == 0
    pynvml.nvmlGpuInstanceDestroy(whole)
    assert {client.info(client.create(THREE, s, 4)).id for s in (0, 4)} == {1, 2}


def test_a_freed_id_is_given_again_at_once(nvml: Client) -> None:
    _, client = nvml
    made = [client.create(ONE, start, 1) for start in range(3)]
    first = client.info(made[0]).id
    pynvml.nvmlGpuInstanceDestroy(made[0])
    assert client.info(client.create(ONE, 6, 1)).id == first


def test_uuids_look_like_the_drivers_and_are_new_each_time(nvml: Client) -> None:
    _, client = nvml
    seen = set()
    for _ in range(20):
        gi = client.create(THREE, 4, 4)
        ci = client.fill(gi)
        text = client.uuid_of(ci)
        assert re.fullmatch(r"MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text)
        assert uuid.UUID(text.removeprefix("MIG-")).version == 5
        seen.add(text)
        pynvml.nvmlComputeInstanceDestroy(ci)
        pynvml.nvmlGpuInstanceDestroy(gi)
    assert len(seen) == 20


def test_two_nodes_never_share_the_uuid_of_a_mig_device(make: Make) -> None:
    """Also with one seed, and the same instance made first: the GPU's own UUID is in it."""

    def first() -> str:
        with open_nvml(make(seed=3)) as nvml:
            return nvml.uuid_of(nvml.fill(nvml.create(THREE, 4, 4)))

    assert first() != first()


def test_two_nodes_never_share_a_gpu_uuid(make: Make) -> None:
    uuids = [gpu.uuid for _ in range(3) for gpu in make("h100-80gb-sxm5:2").show().gpus]
    assert len(set(uuids)) == 6


def test_compute_instances_share_a_gpu_instance(nvml: Client) -> None:
    _, client = nvml
    gi = client.create(WHOLE, 0, 8)
    kinds = {k.sliceCount: (k.id, k.instanceCount, k.multiprocessorCount) for k in client.ci_profiles(gi)}
    assert kinds == {1: (0, 7, 16), 2: (1, 3, 32), 3: (2, 2, 48), 4: (3, 1, 64), 7: (4, 1, 132)}
    client.fill(gi, 3)
    client.fill(gi, 1)
    names = [pynvml.nvmlDeviceGetName(mig) for mig in client.mig_devices()]
    assert names == ["NVIDIA H100 80GB HBM3 MIG 4c.7g.80gb", "NVIDIA H100 80GB HBM3 MIG 2c.7g.80gb"]
    assert pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, 0) == 1
    assert code_of(client.fill, gi, 1) == NO_ROOM


def test_double_memory_needs_its_own_compute_profile_to_be_filled(nvml: Client) -> None:
    _, client = nvml
    gi = client.create(15, 0, 2)
    assert {k.id: k.multiprocessorCount for k in client.ci_profiles(gi)} == {0: 16, 7: 26}
    two = client.create(TWO, 2, 2)
    kinds = {k.id: (k.instanceCount, k.multiprocessorCount) for k in client.ci_profiles(two)}
    assert kinds == {0: (2, 16), 1: (1, 32), 7: (1, 26)}


@pytest.mark.parametrize("names_mig", [False, True])
def test_the_device_of_a_compute_instance_is_what_the_node_was_made_to_say(make: Make, names_mig: bool) -> None:
    with open_nvml(make(ci_info_names_mig=names_mig)) as nvml:
        device = pynvml.nvmlComputeInstanceGetInfo(nvml.fill(nvml.create(THREE, 4, 4))).device
        assert pynvml.nvmlDeviceGetUUID(device).startswith("MIG-" if names_mig else "GPU-")
        assert pynvml.nvmlDeviceIsMigDeviceHandle(device).value == names_mig


def test_compute_placements_are_obeyed(nvml: Client) -> None:
    _, client = nvml
    gi = client.create(THREE, 0, 4)
    at = pynvml.c_nvmlComputeInstancePlacement_t(2, 1)
    import ctypes

    ci = pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(gi, 0, ctypes.byref(at))
    info = pynvml.nvmlComputeInstanceGetInfo(ci)
    assert (info.id, info.placement.start, info.placement.size) == (0, 2, 1)
    assert code_of(pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement, gi, 0, ctypes.byref(at)) == NO_ROOM
    for start, size in ((1, 2), (1, 0), (3, 1)):
        wrong = ctypes.byref(pynvml.c_nvmlComputeInstancePlacement_t(start, size))
        refused = code_of(pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement, gi, 0, wrong)
        assert refused == INVALID_ARGUMENT, (start, size)
