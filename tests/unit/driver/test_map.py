"""The device map on a node: whose word counts, and that nothing moves under what a map has decided."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from dynamig.driver.map_keeper import Trouble
from dynamig.errors import Unavailable
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.device_map import DeviceMap, Given, Source
from dynamig.protocol.gpus import LiveInstance
from dynamig.protocol.loans import Loan
from dynamig.protocol.seen import Found, Gone, Seen, Unknown
from tests.unit.driver.bench_node import h100, in_thread
from tests.unit.driver.test_loans import JOB, OTHER, SlurmNode, refused


@pytest.fixture
def node(tmp_path: Path) -> SlurmNode:
    return SlurmNode(tmp_path, 2)


def test_the_map_survives_what_would_change_it_while_something_lives(node: SlurmNode) -> None:
    swapped = (h100(0, minor=1), h100(1, minor=0))
    node.prepare(node.held("a", node.part()))
    node.restart(swapped)
    assert node.lender.device_map is not None
    assert node.lender.device_map.gpu(0) == node.gpu(0)
    wanted = f"device map 0: {node.gpu(1)}, 1: {node.gpu(0)} of Slurm node slurm-n1 is wanted"
    assert wanted in node.lender.map_trouble.what
    assert not node.lender.map_trouble.closed
    node.service.endings.unprepare("a")
    node.bench.journal.forget("a")
    node.restart(swapped)
    assert node.lender.device_map.gpu(0) == node.gpu(1)
    assert node.lender.map_trouble == Trouble()


def test_a_gpu_that_does_not_answer_moves_no_index(node: SlurmNode) -> None:
    node.restart((h100(1),))
    assert node.lender.device_map is not None
    assert node.lender.device_map.gpu(1) == node.gpu(1)
    assert node.lender.map_trouble == Trouble(f"{node.gpu(0)} does not answer")
    node.lend(JOB, 1)


LOST = {GpuUuid("NVML index 0"): "GPU_LOST"}
"""What NVML says at the first start of a driver whose GPU 0 has fallen off the bus."""


def unmapped(tmp_path: Path, entry: Seen[str]) -> SlurmNode:
    """A node whose first driver is to come, with what administrators say of it."""
    node = SlurmNode(tmp_path, 2)
    (tmp_path / "slurm-devices.json").unlink()
    node.entry = entry
    node.restart((h100(1),), unread=LOST)
    return node


def test_no_first_map_is_guessed_while_a_gpu_was_never_read(tmp_path: Path) -> None:
    """By minors, GPU 1 would be Slurm's index 0, whose device file is that of the lost one."""
    node = unmapped(tmp_path, Gone("no entry"))
    assert node.device_map() is None
    assert "NVML index 0 (GPU_LOST) does not answer, and never did" in node.lender.map_trouble.what
    assert node.lender.map_trouble.closed
    assert node.lender.slurm_node == "slurm-n1", "the bridge has to know which node it drains"
    with pytest.raises(Unavailable, match="NVML index 0"):
        node.lend(JOB, 0)
    assert node.remap(), "it answers"
    assert node.device_map() == DeviceMap({0: node.gpu(0), 1: node.gpu(1)}, Source.MINORS, "slurm-n1")
    assert node.lender.map_trouble == Trouble()


def test_a_map_that_administrators_give_needs_no_answer_of_others(tmp_path: Path) -> None:
    second = h100(1).uuid
    node = unmapped(tmp_path, says(gpus={0: second}))
    assert node.device_map() == DeviceMap({0: second}, Source.CONFIG_MAP, "slurm-n1")
    assert not node.lender.map_trouble.closed


def test_the_name_in_slurm_is_not_told_before_administrators_were_asked(tmp_path: Path) -> None:
    assert unmapped(tmp_path, Unknown("not in step")).lender.slurm_node == ""


def says(**settings: object) -> Found[str]:
    """The node's entry in the ConfigMap."""
    return Found(yaml.safe_dump(settings))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (says(gpus={0: "GPU-nobody"}), "GPU-nobody (index 0) is not on this node"),
        (Found("gpus: {0: GPU-1\n"), "not YAML"),
        (Found("gpus: {0: GPU-1, 0: GPU-2}"), "key 0 is given twice"),
        (says(gpus={"0": "GPU-1"}), "gpus.0"),
        (says(gpus={-1: "GPU-1"}), "gpus.-1"),
        (says(gpus={0: "nvidia0"}), "gpus.0"),
        (says(gpus={}), "gpus"),
        (says(slurmNode="a,b", gpu={0: "GPU-1"}), "slurmNode"),
        (Found(""), "neither slurmNode nor gpus"),
    ],
)
def test_a_wrong_map_closes_the_node_and_keeps_the_last_good_one(node: SlurmNode, entry: Found[str], why: str) -> None:
    node.lend(JOB, 0)
    node.entry = entry
    assert node.remap()
    assert why in node.lender.map_trouble.what
    assert names.GPU_MAP in node.lender.map_trouble.what or "device map" in node.lender.map_trouble.what
    assert why in str(refused("MAP_CLOSED", lambda: node.lend(OTHER, 1)))
    assert [loan.gpu for loan in node.lender.give_back(JOB)] == [node.gpu()], "what was lent by the last map ends"
    node.entry = Gone("taken away")
    assert node.remap()
    node.lend(OTHER, 1)


def test_a_map_that_changes_while_its_gpus_are_looked_at_decides_no_loan(
    node: SlurmNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index means another GPU when the loan is to be written: the prolog asks again, and gets that one."""
    look = node.bench.gpus.instances

    def meanwhile(gpu: GpuUuid) -> Sequence[LiveInstance]:
        node.entry = says(gpus={0: str(node.gpu(1)), 1: str(node.gpu(0))})
        node.remap()
        return look(gpu)

    monkeypatch.setattr(node.bench.gpus, "instances", meanwhile)
    refused("STARTING", lambda: node.lend(JOB, 0))
    assert node.lent() == {}
    node.lend(JOB, 0)
    assert node.lent() == {1: JOB.job_id}


def test_the_map_does_not_change_while_a_loan_is_written(node: SlurmNode, monkeypatch: pytest.MonkeyPatch) -> None:
    write, waited = node.loans.write, list[bool]()

    def slowly(loan: Loan) -> None:
        remap = in_thread(node.remap)
        remap.join(0.3)
        waited.append(remap.is_alive())
        write(loan)

    monkeypatch.setattr(node.loans, "write", slowly)
    node.lend(JOB, 0)
    assert waited == [True]


@pytest.mark.parametrize("unreadable", ["loan", "record"])
def test_what_cannot_be_read_may_have_been_decided_by_the_map(node: SlurmNode, unreadable: str) -> None:
    """The map that it went by stays until a person has seen to it."""
    if unreadable == "loan":
        (node.folder / "loans" / f"{node.gpu(0)}.json").write_bytes(b"{")
    else:
        node.bench.journal.damaged["a"] = "claims/a.json"
    node.restart()
    node.entry = says(gpus={0: str(node.gpu(1)), 1: str(node.gpu(0))})
    node.remap()
    assert node.lender.device_map is not None
    assert node.lender.device_map.gpu(0) == node.gpu(0)
    assert node.lender.map_trouble.closed


def test_the_config_map_counts_before_the_file_and_that_before_minors(node: SlurmNode) -> None:
    a, b = node.gpu(0), node.gpu(1)
    node.file = Given("slurm-n1", {0: b, 1: a}, Source.GIVEN)
    node.restart()
    assert node.device_map() == DeviceMap({0: b, 1: a}, Source.GIVEN, "slurm-n1")
    node.entry = says(slurmNode="gpu7")
    node.remap()
    assert node.device_map() == DeviceMap({0: b, 1: a}, Source.GIVEN, "gpu7"), "each setting for itself"
    node.entry = says(gpus={0: a, 5: node.bench.gpus.reading(b).pci_bus_id})
    node.remap()
    assert node.device_map() == DeviceMap({0: a, 5: b}, Source.CONFIG_MAP, "slurm-n1")


def test_a_new_map_closes_the_node_until_what_the_last_one_decided_is_over(node: SlurmNode) -> None:
    node.lend(JOB, 0)
    before = node.device_map()
    node.entry = says(slurmNode="gpu7", gpus={0: node.gpu(1), 1: node.gpu(0)})
    node.remap()
    assert node.device_map() == before
    refused("MAP_CLOSED", lambda: node.lend(OTHER, 1))
    assert node.remap() is False, "nothing new: nobody has to be told again"
    node.slurm.says(JOB, "COMPLETED")
    assert node.lender.ask(), "slurmctld is asked under the old name"
    node.remap()
    node.slurm.node_name = "gpu7"
    node.lend(OTHER, 0)
    assert node.lent() == {1: 8}
    node.slurm.says(OTHER, "COMPLETED")
    assert node.lender.ask(), "and now under the new one"


def test_without_the_api_server_the_last_map_serves(node: SlurmNode) -> None:
    node.entry = says(gpus={0: node.gpu(1)})
    node.remap()
    node.entry = Unknown("not in step with the API server")
    node.restart()
    assert node.device_map() == DeviceMap({0: node.gpu(1)}, Source.CONFIG_MAP, "slurm-n1")
    node.lend(JOB, 0)


def test_a_map_is_not_guessed_before_the_api_server_was_asked_for_one(tmp_path: Path, node: SlurmNode) -> None:
    node.folder = tmp_path / "new"
    node.entry = Unknown("not in step with the API server")
    node.restart()
    assert names.GPU_MAP in str(refused("STARTING", node.lend))
    node.entry = Gone("no such ConfigMap")
    node.remap()
    node.lend()


def test_a_map_kept_without_a_name_has_the_name_of_the_file(node: SlurmNode) -> None:
    path = node.folder / "slurm-devices.json"
    body = json.loads(path.read_text())
    del body["slurmNode"]
    path.write_text(json.dumps(body))
    node.lend(JOB, 0)
    node.restart()
    assert node.lender.map_trouble == Trouble()


def test_a_lost_map_is_not_made_again_under_loans(node: SlurmNode) -> None:
    node.lend(JOB, 0)
    (node.folder / "slurm-devices.json").write_text("{")
    node.restart()
    refused("STARTING", lambda: node.lend(OTHER, 1))
    node.lender.give_back(JOB)
    node.lender.remap(node.bench.gpus.readings())
    node.lend(OTHER, 1)
