"""What must hold on an emulated node, each run in a process of its own by `test_driver_on_emulator`."""

from __future__ import annotations

import pytest

from dynamig.errors import DynamigError, Unavailable
from dynamig.protocol.lifecycle import State
from dynamig.testing.emulator import NvmlReturn
from tests.integration.driver.node import EmulatedNode


def a_mode_switch_that_renumbers_the_gpu_gives_the_container_the_right_node(node: EmulatedNode) -> None:
    uuid = node.gpus.readings()[0].uuid
    before = node.gpus.reading(uuid).minor
    node.prepare("whole", ("n1/gpu-0", "gpu-0"))
    after = node.gpus.reading(uuid).minor
    assert after != before, "the emulator was to renumber"
    assert f"/dev/nvidia{after}" in node.nodes_of("whole")
    assert f"/dev/nvidia{before}" not in node.nodes_of("whole")
    node.service.unprepare("whole")
    node.prepare("part", node.device("1g.10gb", 0))
    again = node.gpus.reading(uuid).minor
    assert f"/dev/nvidia{again}" in node.nodes_of("part")


def capability_nodes_are_those_of_the_instance(node: EmulatedNode) -> None:
    for start in range(7):
        node.prepare(f"c{start}", node.device("1g.10gb", start))
    seen = {i.placement.start: i for i in node.gpus.instances(node.gpus.readings()[0].uuid)}
    assert len(seen) == 7
    assert sorted(i.gi_id for i in seen.values()) != [i.gi_id for _, i in sorted(seen.items())], "ids are scrambled"
    for start, instance in seen.items():
        minor = 3 + instance.gi_id * 9  # the one formula this emulator's driver version uses, for GPU minor 0
        caps = [p for p in node.nodes_of(f"c{start}") if "nvidia-caps" in p]
        assert caps == [f"/dev/nvidia-caps/nvidia-cap{minor}", f"/dev/nvidia-caps/nvidia-cap{minor + 1}"]


def a_compute_instance_that_fails_leaves_nothing(node: EmulatedNode) -> None:
    uuid = node.gpus.readings()[0].uuid
    node.emulator.fail("nvmlGpuInstanceCreateComputeInstance", NvmlReturn.INSUFFICIENT_RESOURCES)
    with pytest.raises(DynamigError, match="compute instance"):
        node.prepare("a", node.device("3g.40gb", 0))
    assert node.gpus.instances(uuid) == ()
    node.prepare("a", node.device("3g.40gb", 0))
    assert [str(i.placement) for i in node.gpus.instances(uuid)] == ["{0}:4"]


def destroy_that_is_in_use_stays_retiring_until_it_succeeds(node: EmulatedNode) -> None:
    node.prepare("a", node.device("1g.10gb", 0))
    node.emulator.fail("nvmlGpuInstanceDestroy", NvmlReturn.IN_USE, count=2)
    for _ in range(2):
        with pytest.raises(Unavailable):
            node.service.unprepare("a")
        assert node.journal.records()["a"].state is State.RETIRING
    node.service.unprepare("a")
    assert node.gpus.instances(node.gpus.readings()[0].uuid) == ()


def a_call_that_hangs_costs_its_gpu_only(node: EmulatedNode) -> None:
    node.gpus._deadline = 1.0
    node.emulator.hang("nvmlDeviceCreateGpuInstanceWithPlacement", gpu=0)
    with pytest.raises(Unavailable, match="no answer"):
        node.prepare("stuck", node.device("1g.10gb", 0, gpu=0))
    node.prepare("fine", node.device("1g.10gb", 0, gpu=1))
    with pytest.raises(Unavailable, match="hangs"):
        node.prepare("also-stuck", node.device("1g.10gb", 1, gpu=0))
    node.emulator.clear_faults()


def device_nodes_that_come_late_are_waited_for_by_the_kubelet(node: EmulatedNode) -> None:
    control = node.directory / "dev/nvidia-uvm"
    away = control.with_name("away")
    control.rename(away)
    with pytest.raises(Unavailable, match="nvidia-uvm") as caught:
        node.prepare("a", node.device("1g.10gb", 0))
    assert caught.value.code == "DEVICE_NODE_MISSING"
    assert node.gpus.instances(node.gpus.readings()[0].uuid) == ()
    away.rename(control)
    node.prepare("a", node.device("1g.10gb", 0))
    assert "/dev/nvidia-uvm" in node.nodes_of("a")
