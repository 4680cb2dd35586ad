"""MIG mode, reset and reboot on Ampere and Hopper (C-12), renumbering, a node in a passthrough VM."""

from pathlib import Path

import pynvml
import pytest

from dynamig.errors import Refused, Unavailable
from tests.integration.emulator.clients import INVALID_ARGUMENT, NOT_SUPPORTED, code_of, open_nvml
from tests.integration.emulator.conftest import Make

IN_USE, RESET_REQUIRED = 19, 16


def test_reboot_ends_all_instances_and_the_mode_from_hopper_on(make: Make) -> None:
    emulator = make("a100-40gb,h100-80gb-sxm5")
    with open_nvml(emulator) as nvml:
        before = [nvml.uuid_of(nvml.fill(nvml.create(9, 4, 4, gpu))) for gpu in (0, 1)]
    boot = emulator.show().boot_id
    after = emulator.reboot()
    assert after.boot_id != boot
    assert (emulator.directory / "proc/sys/kernel/random/boot_id").read_text().strip() == after.boot_id
    assert [(gpu.mig, gpu.gpu_instances) for gpu in after.gpus] == [(True, ()), (False, ())]
    with open_nvml(emulator) as nvml:
        assert code_of(nvml.create, 9, 4, 4, 1) == NOT_SUPPORTED
        assert pynvml.nvmlDeviceSetMigMode(nvml.gpu(1), 1) == 0
        again = [nvml.uuid_of(nvml.fill(nvml.create(9, 4, 4, gpu))) for gpu in (0, 1)]
    assert set(again).isdisjoint(before)


def test_a_reload_of_the_driver_takes_the_mode_from_hopper_and_not_the_boot(make: Make) -> None:
    emulator = make("a100-40gb,h100-80gb-sxm5")
    with open_nvml(emulator) as nvml:
        for gpu in (0, 1):
            nvml.fill(nvml.create(9, 4, 4, gpu))
        pynvml.nvmlDeviceSetPersistenceMode(nvml.gpu(), 1)
    before = emulator.show()
    with emulator.hold(1), pytest.raises(Unavailable, match="held"):
        emulator.reload_driver()
    after = emulator.reload_driver()
    assert after.boot_id == before.boot_id
    assert [(gpu.mig, gpu.gpu_instances) for gpu in after.gpus] == [(True, ()), (False, ())]
    with open_nvml(emulator) as nvml:
        assert pynvml.nvmlDeviceGetPersistenceMode(nvml.gpu()) == 0


def test_a_client_that_stays_open_over_a_reload_has_its_gpu_and_none_of_its_instances(make: Make) -> None:
    emulator = make()
    with open_nvml(emulator) as nvml:
        gpu, gi = nvml.gpu(), nvml.create(9, 4, 4)
        ci = nvml.fill(gi)
        [mig] = nvml.mig_devices()
        emulator.reload_driver()
        for call, handle in (
            (pynvml.nvmlGpuInstanceGetInfo, gi),
            (pynvml.nvmlGpuInstanceDestroy, gi),
            (pynvml.nvmlComputeInstanceGetInfo, ci),
            (pynvml.nvmlDeviceGetUUID, mig),
        ):
            assert code_of(call, handle) == INVALID_ARGUMENT
        assert pynvml.nvmlDeviceGetMigMode(gpu) == [0, 0]
        assert pynvml.nvmlDeviceSetMigMode(gpu, 1) == 0
        nvml.fill(nvml.create(9, 4, 4))
        assert code_of(nvml.info, gi) == INVALID_ARGUMENT


def test_hopper_switches_at_once(make: Make) -> None:
    with open_nvml(make(mig=False)) as nvml:
        assert pynvml.nvmlDeviceSetMigMode(nvml.gpu(), 1) == 0
        assert pynvml.nvmlDeviceGetMigMode(nvml.gpu()) == [1, 1]
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(nvml.gpu()) == 7


def test_ampere_waits_for_a_reset_and_keeps_the_mode(make: Make) -> None:
    emulator = make("a100-40gb", mig=False)
    with open_nvml(emulator) as nvml:
        assert pynvml.nvmlDeviceSetMigMode(nvml.gpu(), 1) == RESET_REQUIRED
        assert pynvml.nvmlDeviceGetMigMode(nvml.gpu()) == [0, 1]
        assert code_of(nvml.create, 19, 0, 1) == NOT_SUPPORTED
        emulator.reset(0)
        assert pynvml.nvmlDeviceGetMigMode(nvml.gpu()) == [1, 1]
        nvml.create(19, 0, 1)
        assert emulator.reboot().gpus[0].mig


def test_a_pending_switch_can_be_taken_back(make: Make) -> None:
    with open_nvml(make("a100-40gb", mig=False)) as nvml:
        pynvml.nvmlDeviceSetMigMode(nvml.gpu(), 1)
        assert pynvml.nvmlDeviceSetMigMode(nvml.gpu(), 0) == 0
        assert pynvml.nvmlDeviceGetMigMode(nvml.gpu()) == [0, 0]


def test_a_held_gpu_leaves_the_switch_pending(make: Make) -> None:
    emulator = make(mig=False)
    with open_nvml(emulator) as nvml, emulator.hold(0):
        assert pynvml.nvmlDeviceSetMigMode(nvml.gpu(), 1) == IN_USE
        assert pynvml.nvmlDeviceGetMigMode(nvml.gpu()) == [0, 1]


def test_a_passthrough_vm_cannot_reset_its_gpu(make: Make) -> None:
    emulator = make(mig=False, virtualization="passthrough")
    with open_nvml(emulator) as nvml:
        assert pynvml.nvmlDeviceSetMigMode(nvml.gpu(), 1) == RESET_REQUIRED
        assert pynvml.nvmlDeviceGetMigMode(nvml.gpu()) == [0, 1]
        emulator.reboot()
        assert pynvml.nvmlDeviceGetMigMode(nvml.gpu()) == [1, 1]


@pytest.mark.parametrize("model", ["a100-40gb", "h100-80gb-sxm5"])
def test_a_reset_keeps_the_mode_and_what_is_made_again_has_new_uuids(make: Make, model: str) -> None:
    emulator = make(model)
    with open_nvml(emulator) as nvml:
        before = {nvml.uuid_of(nvml.fill(nvml.create(9, start, 4))) for start in (0, 4)}
        emulator.reset(0)
        assert pynvml.nvmlDeviceGetMigMode(nvml.gpu()) == [1, 1]
        assert nvml.mig_devices() == []
        again = {nvml.uuid_of(nvml.fill(nvml.create(9, start, 4))) for start in (0, 4)}
    assert len(before | again) == 4


def test_reset_refuses_while_a_program_runs(make: Make) -> None:
    emulator = make()
    with open_nvml(emulator) as nvml:
        gi = nvml.info(nvml.create(9, 4, 4)).id
    with emulator.hold(0, gi), pytest.raises(Unavailable, match="held"):
        emulator.reset(0)
    emulator.reset(0)
    assert emulator.show().gpus[0].gpu_instances == ()


def test_a_reset_takes_the_files_of_its_gpu_and_no_others(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:2")
    with open_nvml(emulator) as nvml:
        for gpu in (0, 1):
            nvml.fill(nvml.create(9, 4, 4, gpu))
        emulator.reset(0)
        caps = emulator.directory / "proc/driver/nvidia/capabilities"
        assert [len(list((caps / f"gpu{gpu}/mig").iterdir())) for gpu in (0, 1)] == [0, 1]
        assert len(list((emulator.directory / "dev/nvidia-caps").iterdir())) == 4
        assert [len(nvml.mig_devices(gpu)) for gpu in (0, 1)] == [0, 1]
        nvml.fill(nvml.create(9, 4, 4, 0))


def test_a_reset_that_died_half_way_is_put_right_by_the_next_writer(make: Make) -> None:
    emulator = make()
    with open_nvml(emulator) as nvml:
        gi = nvml.info(nvml.create(9, 4, 4)).id
        access = emulator.directory / f"proc/driver/nvidia/capabilities/gpu0/mig/gi{gi}/access"
        before = access.read_text()
        access.unlink()
        (emulator.directory / f"dev/nvidia-caps/nvidia-cap{3 + gi * 9}").unlink()
        (emulator.directory / "state/tree.dirty").touch()
        nvml.create(19, 0, 1)
    assert access.read_text() == before
    assert not (emulator.directory / "state/tree.dirty").exists()


def test_a_switch_may_renumber_the_gpu(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:2", mig=False, renumber=True)
    with open_nvml(emulator) as nvml:
        pynvml.nvmlDeviceSetMigMode(nvml.gpu(), 1)
        assert [pynvml.nvmlDeviceGetMinorNumber(nvml.gpu(g)) for g in (0, 1)] == [2, 1]
        nvml.fill(nvml.create(9, 4, 4))
        pynvml.nvmlDeviceSetMigMode(nvml.gpu(1), 1)
        assert [pynvml.nvmlDeviceGetMinorNumber(nvml.gpu(g)) for g in (0, 1)] == [2, 0]
        assert len(nvml.mig_devices()) == 1
    root = emulator.directory
    assert sorted(p.name for p in (root / "dev").glob("nvidia[0-9]")) == ["nvidia0", "nvidia2"]
    assert {p.name for p in (root / "proc/driver/nvidia/capabilities").iterdir()} == {"gpu0", "gpu2", "mig"}
    minors = [f.read_text().split("Device Minor: \t ")[1][0] for f in sorted(root.glob("proc/driver/nvidia/gpus/*/*"))]
    assert minors == ["2", "0"]


def undo_renumbering(root: Path, steps_done: int) -> None:
    """Of the four steps from minor 1 to 2 (tree.c), only the first ones were done when the writer was killed."""
    caps = root / "proc/driver/nvidia/capabilities"
    information = root / "proc/driver/nvidia/gpus/0000:0f:00.0/information"
    information.write_text(information.read_text().replace("Device Minor: \t 2", "Device Minor: \t 1"))
    if steps_done < 3:
        (caps / "gpu2").rename(caps / "gpu1")
    if steps_done < 2:
        (root / "dev/nvidia1").touch()
    if steps_done < 1:
        (root / "dev/nvidia2").unlink()
    (root / "state/tree.dirty").touch()


@pytest.mark.parametrize("steps_done", range(4))
def test_a_renumbering_that_died_half_way_is_put_right(make: Make, steps_done: int) -> None:
    emulator = make("h100-80gb-sxm5:2", mig=False, renumber=True)
    root = emulator.directory
    with open_nvml(emulator) as nvml:
        pynvml.nvmlDeviceSetMigMode(nvml.gpu(1), 1)  # minors 0 and 2
        undo_renumbering(root, steps_done)
        pynvml.nvmlDeviceSetMigMode(nvml.gpu(0), 0)  # any writer; this one changes nothing
        assert [pynvml.nvmlDeviceGetMinorNumber(nvml.gpu(g)) for g in (0, 1)] == [0, 2]
    assert sorted(p.name for p in (root / "dev").glob("nvidia[0-9]")) == ["nvidia0", "nvidia2"]
    assert {p.name for p in (root / "proc/driver/nvidia/capabilities").iterdir()} == {"gpu0", "gpu2", "mig"}
    minors = [f.read_text().split("Device Minor: \t ")[1][0] for f in sorted(root.glob("proc/driver/nvidia/gpus/*/*"))]
    assert minors == ["0", "2"]


def test_no_renumbering_leaves_the_drivers_table(make: Make) -> None:
    with pytest.raises(Refused, match="32 GPUs have all minors of the driver's table") as refused:
        make("h100-80gb-sxm5:32", renumber=True, mig=False)
    assert refused.value.next_step.startswith("at most 31")
    with open_nvml(make("h100-80gb-sxm5:31", renumber=True, mig=False)) as nvml:
        for gpu in range(31):
            assert pynvml.nvmlDeviceSetMigMode(nvml.gpu(gpu), 1) == 0
        minors = [pynvml.nvmlDeviceGetMinorNumber(nvml.gpu(gpu)) for gpu in range(31)]
    assert sorted(minors) == [*range(30), 31]


def test_a_lost_gpu_answers_so_and_can_come_back(make: Make) -> None:
    emulator = make("h100-80gb-sxm5:2")
    with open_nvml(emulator) as nvml:
        lost, other = nvml.gpu(0), nvml.gpu(1)
        emulator.lose(0)
        assert code_of(pynvml.nvmlDeviceGetUUID, lost) == code_of(nvml.gpu, 0) == 15
        assert pynvml.nvmlDeviceGetCount() == 2
        assert code_of(pynvml.nvmlDeviceGetUUID, other) == 0
        emulator.lose(0, lost=False)
        assert code_of(pynvml.nvmlDeviceGetUUID, lost) == 0
