"""As strict as the card: illegal starts, overlaps, a second +me, MIG off, foreign profiles (C-09)."""

import ctypes
import os
from collections.abc import Callable

import pynvml
import pytest

from dynamig.testing.emulator import Emulator, GpuModel, layout, load_geometry
from tests.integration.emulator.clients import (
    IN_USE,
    INVALID_ARGUMENT,
    NO_ROOM,
    NOT_FOUND,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
    Nvml,
    code_of,
    open_nvml,
    run_python,
)
from tests.integration.emulator.conftest import Make
from tests.integration.emulator.symbol_cases import process_name

MODELS = load_geometry().models
Client = tuple[Emulator, Nvml]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_illegal_starts_and_sizes_are_invalid_arguments(make: Make, model: GpuModel) -> None:
    with open_nvml(make(model.key)) as nvml:
        for profile in model.profiles:
            for start in set(range(model.memory_slices + 2)) - set(profile.starts):
                assert code_of(nvml.create, profile.id, start, profile.memory_slices) == INVALID_ARGUMENT
            assert code_of(nvml.create, profile.id, profile.starts[0], profile.memory_slices + 1) == INVALID_ARGUMENT
        assert code_of(nvml.create, 99, 0, 1) == INVALID_ARGUMENT


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_two_placements_coexist_exactly_if_they_share_no_slice_and_no_scarce_engine(
    make: Make, model: GpuModel
) -> None:
    places = [(p, s) for p in model.profiles for s in p.starts]
    with open_nvml(make(model.key)) as nvml:
        for first, at in places:
            gi = nvml.create(first.id, at, first.memory_slices)
            for second, start in places:
                apart = at + first.memory_slices <= start or start + second.memory_slices <= at
                one_ofa = first.ofa_engines + second.ofa_engines <= 1
                expected = 0 if apart and one_ofa else NO_ROOM
                code = code_of(nvml.create, second.id, start, second.memory_slices)
                assert code == expected, (first.name, at, second.name, start)
                if code == 0:
                    [other] = [g for g in live(second.id) if nvml.start(g) == start]
                    pynvml.nvmlGpuInstanceDestroy(other)
            pynvml.nvmlGpuInstanceDestroy(gi)


def live(profile_id: int, gpu: int = 0) -> list[object]:
    handle, count = pynvml.nvmlDeviceGetHandleByIndex(gpu), ctypes.c_uint()
    found = (pynvml.c_nvmlGpuInstance_t * 64)()
    pynvml.nvmlDeviceGetGpuInstances(handle, profile_id, found, ctypes.byref(count))
    return list(found[: count.value])


def test_with_mig_off_profiles_are_told_and_nothing_can_be_made(make: Make) -> None:
    with open_nvml(make(mig=False)) as nvml:
        assert len(nvml.profiles()) == 7
        assert nvml.placements(9) == [(0, 4), (4, 4)]
        assert code_of(nvml.create, 19, 0, 1) == NOT_SUPPORTED
        assert code_of(live, 19) == NOT_SUPPORTED
        assert code_of(pynvml.nvmlDeviceGetGpuInstanceById, nvml.gpu(), 7) == NOT_SUPPORTED
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(nvml.gpu()) == 0


@pytest.mark.parametrize(("version", "listed"), [("535.288.01", 0), ("550.90.07", 7)])
def test_old_drivers_hide_profiles_while_mig_is_off(make: Make, version: str, listed: int) -> None:
    with open_nvml(make(mig=False, driver_version=version)) as nvml:
        assert len(nvml.profiles()) == listed
    with open_nvml(make(mig=True, driver_version=version)) as nvml:
        assert len(nvml.profiles()) == 7


def test_a_vgpu_guest_cannot_change_its_geometry(make: Make) -> None:
    with open_nvml(make(virtualization="vgpu")) as nvml:
        assert pynvml.nvmlDeviceGetVirtualizationMode(nvml.gpu()) == 2
        assert code_of(nvml.create, 19, 0, 1) == NOT_SUPPORTED
        assert code_of(pynvml.nvmlDeviceSetMigMode, nvml.gpu(), 0) == NOT_SUPPORTED


@pytest.mark.parametrize("starts_anew", ["reboot", "reload_driver"])
def test_a_vgpu_guest_has_the_mig_mode_of_its_type_whatever_starts_anew(make: Make, starts_anew: str) -> None:
    emulator = make("h100-80gb-sxm5", virtualization="vgpu")
    getattr(emulator, starts_anew)()
    with open_nvml(emulator) as nvml:
        assert pynvml.nvmlDeviceGetMigMode(nvml.gpu()) == [1, 1]


def test_a_vgpu_guest_cannot_destroy_either(make: Make) -> None:
    emulator = make(virtualization="vgpu")
    gi = emulator.foreign(0, "1g.10gb", 0, compute_instance=False)  # as its host makes it
    with open_nvml(emulator) as nvml:
        handle = pynvml.nvmlDeviceGetGpuInstanceById(nvml.gpu(), gi)
        assert code_of(pynvml.nvmlGpuInstanceDestroy, handle) == NOT_SUPPORTED
    assert [i.gi_id for i in emulator.show().gpus[0].gpu_instances] == [gi]


def test_profile_ids_of_other_gpus_are_not_supported_here(nvml: Client) -> None:
    _, client = nvml
    assert code_of(client.free, 21) == NOT_SUPPORTED
    assert code_of(client.placements, 21) == NOT_SUPPORTED
    assert code_of(pynvml.nvmlDeviceGetGpuInstanceProfileInfoById, client.gpu(), 21) == NOT_SUPPORTED


def test_instances_that_are_not_there_are_not_found(nvml: Client) -> None:
    _, client = nvml
    assert code_of(pynvml.nvmlDeviceGetGpuInstanceById, client.gpu(), 7) == NOT_FOUND
    gi = client.create(9, 4, 4)
    assert code_of(pynvml.nvmlGpuInstanceGetComputeInstanceById, gi, 0) == NOT_FOUND
    assert code_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, client.gpu(), 0) == NOT_FOUND
    assert code_of(pynvml.nvmlDeviceGetHandleByUUID, "MIG-" + "0" * 8 + "-0000-5000-8000-" + "0" * 12) == NOT_FOUND
    assert live(19) == []


def test_handles_of_dead_instances_fail_and_do_not_mean_their_successors(nvml: Client) -> None:
    _, client = nvml
    gi = client.create(14, 0, 2)
    ci = client.fill(gi)
    [mig] = client.mig_devices()
    pynvml.nvmlComputeInstanceDestroy(ci)
    pynvml.nvmlGpuInstanceDestroy(gi)
    again = client.create(14, 0, 2)
    client.fill(again)
    assert client.info(again).id  # the id is given again at once, the handle is not
    assert code_of(client.info, gi) == INVALID_ARGUMENT
    assert code_of(pynvml.nvmlComputeInstanceGetInfo, ci) == INVALID_ARGUMENT
    assert code_of(pynvml.nvmlDeviceGetUUID, mig) == INVALID_ARGUMENT
    assert code_of(pynvml.nvmlGpuInstanceDestroy, gi) == INVALID_ARGUMENT


def test_handles_that_never_were_are_refused(nvml: Client) -> None:
    for value in (0x1000, 0xD900000000000000, 0xD9F0000000000000, 2**64 - 1):
        device = ctypes.cast(value, pynvml.c_nvmlDevice_t)
        assert code_of(pynvml.nvmlDeviceGetUUID, device) == INVALID_ARGUMENT
        gi = ctypes.cast(value, pynvml.c_nvmlGpuInstance_t)
        assert code_of(pynvml.nvmlGpuInstanceGetInfo, gi) == INVALID_ARGUMENT


def test_gpu_and_mig_handles_are_told_apart(nvml: Client) -> None:
    _, client = nvml
    client.fill(client.create(9, 4, 4))
    [mig], gpu = client.mig_devices(), client.gpu()
    assert pynvml.nvmlDeviceIsMigDeviceHandle(mig).value == 1
    assert pynvml.nvmlDeviceIsMigDeviceHandle(gpu).value == 0
    assert code_of(pynvml.nvmlDeviceGetAttributes, gpu) == NOT_SUPPORTED
    assert code_of(pynvml.nvmlDeviceGetGpuInstanceId, gpu) == INVALID_ARGUMENT
    assert code_of(pynvml.nvmlDeviceGetMinorNumber, mig) == NOT_SUPPORTED
    assert code_of(pynvml.nvmlDeviceGetMigMode, mig) == INVALID_ARGUMENT
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
    assert pynvml.nvmlDeviceGetUUID(parent) == pynvml.nvmlDeviceGetUUID(gpu)


def test_a_mig_device_is_found_by_both_spellings_of_its_uuid(nvml: Client) -> None:
    _, client = nvml
    ci = client.fill(client.create(9, 4, 4))
    info = pynvml.nvmlComputeInstanceGetInfo(ci)
    gpu, gi = pynvml.nvmlDeviceGetUUID(client.gpu()), pynvml.nvmlGpuInstanceGetInfo(info.gpuInstance).id
    now = client.uuid_of(ci)
    for spelling in (now, now.upper(), f"MIG-{gpu}/{gi}/{info.id}", f"MIG-{gpu.removeprefix('GPU-')}/{gi}/{info.id}"):
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(spelling)) == now


def test_mig_indices_have_no_holes(nvml: Client) -> None:
    _, client = nvml
    made = [client.fill(client.create(19, start, 1)) for start in range(5)]
    assert [pynvml.nvmlDeviceGetIndex(m) for m in client.mig_devices()] == list(range(5))
    pynvml.nvmlComputeInstanceDestroy(made[2])
    assert [pynvml.nvmlDeviceGetIndex(m) for m in client.mig_devices()] == list(range(4))


def test_structures_of_other_versions_are_refused_and_never_written_to(nvml: Client) -> None:
    _, client = nvml
    ask = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetGpuInstanceProfileInfoV")
    for version in (0, 152, 0x01000098, 0x04000098):
        info = (ctypes.c_uint8 * 256)(*[0xAA] * 256)
        ctypes.cast(info, ctypes.POINTER(ctypes.c_uint32))[0] = version
        assert ask(client.gpu(), 0, info) == VERSION_MISMATCH
        assert bytes(info)[4:] == b"\xaa" * 252


@pytest.mark.parametrize(
    ("version", "size", "slices", "count", "mib", "name"),
    [(0x02000098, 152, 12, 16, 48, 56), (0x03000098, 152, 8, 12, 40, 48)],
)
def test_versions_2_and_3_have_their_own_offsets_and_end_where_they_end(
    nvml: Client, version: int, size: int, slices: int, count: int, mib: int, name: int
) -> None:
    _, client = nvml
    info = (ctypes.c_uint8 * 256)(*[0xAA] * 256)
    ctypes.cast(info, ctypes.POINTER(ctypes.c_uint32))[0] = version
    ask = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetGpuInstanceProfileInfoV")
    assert ask(client.gpu(), 2, info) == 0
    raw = bytes(info)
    assert (raw[0:4], raw[4], raw[slices], raw[count]) == (version.to_bytes(4, "little"), 9, 3, 2)
    assert int.from_bytes(raw[mib : mib + 8], "little") == 40448
    assert raw[name:].split(b"\0")[0] == b"MIG 3g.40gb"
    assert raw[size:] == b"\xaa" * (256 - size)


def test_texts_never_leave_their_buffer(nvml: Client) -> None:
    _, client = nvml
    for function in ("nvmlDeviceGetName", "nvmlDeviceGetUUID"):
        ask = pynvml._nvmlGetFunctionPointer(function)
        whole = ctypes.create_string_buffer(b"\xaa" * 128, 128)
        assert ask(client.gpu(), whole, 96) == 0
        length = len(whole.value)
        for room in (0, 1, length):
            small = ctypes.create_string_buffer(b"\xaa" * 128, 128)
            assert ask(client.gpu(), small, room) == 7
            assert small.raw == b"\xaa" * 128
        assert ask(client.gpu(), whole, length + 1) == 0


@pytest.mark.parametrize("room", [1, 5, 4096])
def test_the_name_of_a_process_is_cropped_to_its_buffer(nvml: Client, room: int) -> None:
    name = ctypes.create_string_buffer(b"\xaa" * 5000, 5000)
    ask = pynvml._nvmlGetFunctionPointer("nvmlSystemGetProcessName")
    assert ask(os.getpid(), name, room) == 0
    assert name.value == process_name(os.getpid()).encode()[: room - 1]
    assert name.raw[room:] == b"\xaa" * (5000 - room)
    assert ask(os.getpid(), name, 0) == INVALID_ARGUMENT


def test_numbers_just_beyond_the_last_are_invalid_arguments(nvml: Client) -> None:
    """Each call with its last number, and with the one after that."""
    _, client = nvml
    gpu, gi = client.gpu(), client.create(9, 4, 4)
    out = (ctypes.c_ulonglong * 64)()
    for name, before, last, code, after in (
        ("nvmlDeviceGetMigDeviceHandleByIndex", (gpu,), 6, NOT_FOUND, (out,)),
        ("nvmlGpuInstanceGetComputeInstanceProfileInfo", (gi, 0), 0, 0, (out,)),
        ("nvmlDeviceGetTotalEccErrors", (gpu, 0), pynvml.NVML_ECC_COUNTER_TYPE_COUNT - 1, 0, (out,)),
        ("nvmlDeviceGetTotalEccErrors", (gpu,), pynvml.NVML_MEMORY_ERROR_TYPE_COUNT - 1, 0, (0, out)),
        ("nvmlDeviceGetCpuAffinityWithinScope", (gpu, 16, out), pynvml.NVML_AFFINITY_SCOPE_SOCKET, 0, ()),
    ):
        ask = pynvml._nvmlGetFunctionPointer(name)
        assert (ask(*before, last, *after), ask(*before, last + 1, *after)) == (code, INVALID_ARGUMENT), name


def test_instances_keep_the_mode_and_a_refusal_leaves_the_status_unwritten(nvml: Client) -> None:
    _, client = nvml
    client.create(19, 0, 1)
    status = ctypes.c_uint(0xAAAA)
    ask = pynvml._nvmlGetFunctionPointer("nvmlDeviceSetMigMode")
    assert ask(client.gpu(), 0, ctypes.byref(status)) == IN_USE
    assert status.value == 0xAAAA
    assert pynvml.nvmlDeviceGetMigMode(client.gpu()) == [1, 1]


def test_arguments_that_are_not_there_are_invalid(nvml: Client) -> None:
    _, client = nvml
    gpu, gi = client.gpu(), client.create(9, 4, 4)
    for name, arguments in {
        "nvmlDeviceGetCount_v2": (None,),
        "nvmlDeviceGetHandleByIndex_v2": (0, None),
        "nvmlDeviceGetUUID": (gpu, None, 80),
        "nvmlDeviceGetMigMode": (gpu, None, None),
        "nvmlDeviceGetGpuInstanceProfileInfoV": (gpu, 0, None),
        "nvmlDeviceCreateGpuInstanceWithPlacement": (gpu, 19, None, None),
        "nvmlDeviceGetMemoryInfo": (gpu, None),
        "nvmlGpuInstanceGetInfo": (gi, None),
        "nvmlGpuInstanceCreateComputeInstance": (gi, 2, None),
        "nvmlEventSetCreate": (None,),
        "nvmlDeviceGetComputeRunningProcesses_v3": (gpu, None, None),
    }.items():
        assert pynvml._nvmlGetFunctionPointer(name)(*arguments) == INVALID_ARGUMENT, name


def test_what_monitors_ask_is_answered_for_gpus_and_where_it_must_be_for_mig_devices(make: Make) -> None:
    with open_nvml(make("h100-80gb-sxm5:2")) as nvml:
        nvml.fill(nvml.create(9, 4, 4))
        [mig], gpu = nvml.mig_devices(), nvml.gpu()
        assert pynvml.nvmlDeviceGetBAR1MemoryInfo(mig).bar1Total > 0  # nvitop ends with a KeyError otherwise
        assert pynvml.nvmlDeviceGetMemoryInfo(mig, version=pynvml.nvmlMemory_v2).total == 40448 << 20
        assert code_of(pynvml.nvmlDeviceGetTemperature, mig, 0) == NOT_SUPPORTED
        assert code_of(pynvml.nvmlDeviceGetUtilizationRates, gpu) == NOT_SUPPORTED
        assert pynvml.nvmlDeviceGetTemperature(gpu, 0) == 30
        assert any(pynvml.nvmlDeviceGetCpuAffinity(gpu, 16))  # slurmd ends on an empty mask
        assert pynvml.nvmlDeviceGetSupportedGraphicsClocks(gpu, 2619) == [1980, 345]
        assert pynvml.nvmlDeviceGetTopologyCommonAncestor(gpu, nvml.gpu(1)) == pynvml.NVML_TOPOLOGY_NODE
        assert code_of(pynvml.nvmlDeviceGetNvLinkState, gpu, 0) == NOT_SUPPORTED
        [field] = pynvml.nvmlDeviceGetFieldValues(mig, [pynvml.NVML_FI_DEV_POWER_INSTANT])
        assert field.nvmlReturn == NOT_SUPPORTED


def test_persistence_is_kept_until_reboot(make: Make) -> None:
    emulator = make()
    with open_nvml(emulator) as nvml:
        pynvml.nvmlDeviceSetPersistenceMode(nvml.gpu(), 1)
        assert pynvml.nvmlDeviceGetPersistenceMode(nvml.gpu()) == 1
        emulator.reboot()
        assert pynvml.nvmlDeviceGetPersistenceMode(nvml.gpu()) == 0


def test_a_gpu_is_found_by_every_spelling_of_its_address(nvml: Client) -> None:
    _, client = nvml
    uuid = pynvml.nvmlDeviceGetUUID(client.gpu())
    pci = pynvml.nvmlDeviceGetPciInfo(client.gpu())
    assert (pci.busId, pci.busIdLegacy) == ("00000000:07:00.0", "0000:07:00.0")
    assert pci.pciDeviceId == 0x233010DE
    for address in ("00000000:07:00.0", "0000:07:00.0", "0000:07:00"):
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByPciBusId(address)) == uuid
    for address in ("0000:08:00.0", "0001:07:00.0", "0000:07:01.0", "0000:07:00.1"):
        assert code_of(pynvml.nvmlDeviceGetHandleByPciBusId, address) == NOT_FOUND, address
    assert code_of(pynvml.nvmlDeviceGetHandleByPciBusId, "seven") == NOT_FOUND


def test_versions_are_what_clients_parse_and_say_what_this_is(nvml: Client) -> None:
    assert pynvml.nvmlSystemGetDriverVersion() == "580.95.05"
    assert pynvml.nvmlSystemGetNVMLVersion() == "13.580.95.05-emulator"
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 13000


WRONG_MODELS: dict[str, Callable[[layout.Model], None]] = {
    "profile without a slice": lambda m: setattr(m.profiles[0], "memory_slices", 0),
    "profile of too many slices": lambda m: setattr(m.profiles[0], "memory_slices", 65),
    "too many ways to cut it": lambda m: setattr(m.profiles[0], "ci_profile_count", layout.MAX_CI_PROFILES + 1),
    "too many profiles": lambda m: setattr(m, "profile_count", layout.MAX_GI_PROFILES + 1),
    "too many memory slices": lambda m: setattr(m, "memory_slices", 65),
    "too many compute slices": lambda m: setattr(m, "compute_slices", 65),
}


@pytest.mark.parametrize("what", WRONG_MODELS)
def test_a_model_that_no_gpu_can_have_is_no_node_to_start_on(make: Make, what: str) -> None:
    emulator = make()
    path = emulator.directory / "state/models"
    data = bytearray(path.read_bytes())
    WRONG_MODELS[what](layout.Model.from_buffer(data, ctypes.sizeof(layout.ModelsHead)))
    path.write_bytes(data)
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded), open_nvml(emulator):
        pass


ON_DAMAGED_FILES = """
import ctypes, os, random, sys, pynvml
from pathlib import Path
state, dice, counted = Path(sys.argv[1]), random.Random(20260101), [int(at) for at in sys.argv[2:]]
whole = {name: (state / name).read_bytes() for name in ("node", "models")}

def damaged(content, places):
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(content) // 4) * 4 if dice.random() < 0.5 else dice.choice(places)
        word = dice.choice([dice.getrandbits(32), 0, 64, 65, 2**31, 2**32 - 1])
        content = content[:at] + word.to_bytes(4, "little") + content[at + 4:]
    return content[: dice.randrange(len(content))] if dice.random() < 0.1 else content

def put(name, content):
    (state / "damaged").write_bytes(content)
    (state / "damaged").replace(state / name)

def tried(call, *arguments):
    try:
        return call(*arguments)
    except (pynvml.NVMLError, UnicodeDecodeError):  # a text that is none is the file's fault
        return None

for number in range(600):
    name = ("node", "models")[number % 2]
    put(name, damaged(whole[name], counted if name == "node" else range(0, 256, 4)))
    if tried(pynvml.nvmlInit) is None and tried(pynvml.nvmlDeviceGetCount) is None:
        put(name, whole[name])
        continue
    for index in range(tried(pynvml.nvmlDeviceGetCount) or 0):
        if (gpu := tried(pynvml.nvmlDeviceGetHandleByIndex, index)) is None:
            continue
        for read in (pynvml.nvmlDeviceGetUUID, pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetMemoryInfo,
                     pynvml.nvmlDeviceGetPciInfo, pynvml.nvmlDeviceGetTotalEnergyConsumption):
            tried(read, gpu)
        for constant in range(20):
            tried(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, constant)
        for profile in (0, 9, 19):
            tried(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity, gpu, profile)
            if (gi := tried(pynvml.nvmlDeviceCreateGpuInstance, gpu, profile)) is not None:
                tried(pynvml.nvmlGpuInstanceCreateComputeInstance, gi, 0)
        for gi_id in range(15):
            if (gi := tried(pynvml.nvmlDeviceGetGpuInstanceById, gpu, gi_id)) is not None:
                tried(pynvml.nvmlGpuInstanceGetInfo, gi)
        for place in range(8):
            if (mig := tried(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, place)) is not None:
                tried(pynvml.nvmlDeviceGetAttributes, mig)
                tried(pynvml.nvmlDeviceGetName, mig)
    tried(pynvml.nvmlShutdown)
    put(name, whole[name])
    put("node", whole["node"])
print("still here")
"""


def test_damaged_files_are_an_error_to_a_client_and_never_its_end(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:2", trace=False)
    with open_nvml(emulator) as nvml:
        nvml.fill(nvml.create(9, 4, 4))
        nvml.fill(nvml.create(19, 0, 1, gpu=1))
    gpus = [ctypes.sizeof(layout.NodeHead) + gpu * ctypes.sizeof(layout.Gpu) for gpu in (0, 1)]
    fields = (layout.Gpu.model, layout.Gpu.gi_count, layout.Gpu.ci_count, layout.Gpu.gis, layout.Gpu.cis)
    counted = [gpu + field.offset + word for gpu in gpus for field in fields for word in (0, 4, 8)]
    said = run_python(emulator, ON_DAMAGED_FILES, str(emulator.directory / "state"), *map(str, counted))
    assert said == "still here\n"
