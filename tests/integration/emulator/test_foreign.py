"""Foreign instances come and go, with their files, and MIG mode is switched from the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dynamig.errors import Refused, Unavailable
from dynamig.testing.emulator import Emulator
from tests.integration.emulator.clients import open_nvml


@pytest.fixture
def node(tmp_path: Path, library: Path) -> Emulator:
    emulator = Emulator(tmp_path / "n", library=library)
    emulator.init("h100-80gb-sxm5,a100-40gb", mig=False)
    emulator.set_mig(0, True)
    return emulator


def files(node: Emulator) -> set[str]:
    """Everything that follows instances."""
    root = node.directory
    found = (
        p for part in ("proc", "dev", "state/busy") for p in (root / part).rglob("*") if "mig-minors" not in p.name
    )
    return {str(p.relative_to(root)) for p in found}


def test_what_is_removed_leaves_no_file_and_no_other_instance_goes(node: Emulator) -> None:
    empty = files(node)
    first, second = node.foreign(0, "1g.10gb", 0), node.foreign(0, "3g.40gb", 4)
    assert node.remove_foreign(0, first) == (first,)
    assert [gi.gi_id for gi in node.show().gpus[0].gpu_instances] == [second]
    assert len(node.show().gpus[0].gpu_instances[0].compute_instances) == 1
    assert node.remove_foreign(0) == (second,)
    assert files(node) == empty
    assert node.remove_foreign(0) == ()


def test_an_instance_that_is_used_or_not_foreign_stays(node: Emulator) -> None:
    gi = node.foreign(0, "1g.10gb", 0)
    for where in ((gi,), (gi, 0)):
        with node.hold(0, *where), pytest.raises(Unavailable, match=f"held by process {os.getpid()} .IN_USE"):
            node.remove_foreign(0)
    with pytest.raises(Refused, match="no foreign GPU instance 99"):
        node.remove_foreign(0, 99)
    assert [i.gi_id for i in node.show().gpus[0].gpu_instances] == [gi]


def test_an_instance_of_a_client_is_not_foreign_and_what_ends_it_is_said(node: Emulator) -> None:
    with open_nvml(node) as nvml:
        nvml.create(19, 0, 1)
    [left] = node.show().gpus[0].gpu_instances
    with pytest.raises(Refused, match="a client made it") as told:
        node.remove_foreign(0, left.gi_id)
    assert f"dynamig emulator reset {node.directory} 0" in told.value.next_step
    assert node.show().gpus[0].gpu_instances == (left,)


def test_its_place_can_be_taken_again(node: Emulator) -> None:
    node.foreign(0, "7g.80gb", 0)
    node.remove_foreign(0)
    node.foreign(0, "3g.40gb", 0)
    node.foreign(0, "3g.40gb", 4)


def test_a_place_that_is_taken_names_what_was_asked_and_who_is_there(node: Emulator) -> None:
    node.foreign(0, "1g.10gb", 0)
    there = node.foreign(0, "3g.40gb", 4)
    with pytest.raises(Refused, match=r"3g\.40gb at 4: INSUFFICIENT_RESOURCES") as told:
        node.foreign(0, "3g.40gb", 4)
    assert told.value.next_step.startswith(f"in the way: GPU instance {there} (3g.40gb@4); ")
    node.foreign(0, "1g.10gb+me", 1)
    with pytest.raises(Refused, match="NVML_INSUFFICIENT_RESOURCES") as told:
        node.foreign(0, "1g.10gb+me", 2)
    assert "engines" in told.value.next_step


def test_mig_mode_is_switched_at_once_or_pending_as_the_model_has_it(node: Emulator) -> None:
    node.set_mig(1, True)
    hopper, ampere = node.show().gpus
    assert (hopper.mig, hopper.mig_pending, ampere.mig, ampere.mig_pending) == (True, True, False, True)
    node.reset(1)
    assert node.show().gpus[1].mig
    gi = node.foreign(0, "1g.10gb", 0)
    with pytest.raises(Refused, match="NVML_IN_USE") as told:
        node.set_mig(0, False)
    assert told.value.next_step.startswith(f"in the way: GPU instance {gi} (1g.10gb@0); ")


def test_a_call_that_the_library_does_not_have_cannot_fail(node: Emulator) -> None:
    with pytest.raises(Refused, match="UNKNOWN_CALL") as told:
        node.fail("nvmlDeviceCreateGpuInstanec", 19)
    assert "nvmlDeviceCreateGpuInstance" in told.value.next_step
