"""Journal, device numbers and CDI files on a real disk."""

from __future__ import annotations

import dataclasses
import errno
import json
import threading
from pathlib import Path

import pytest

from dynamig.cdi import SpecFiles
from dynamig.driver.journal import FileJournal
from dynamig.driver.numbers import NumberFile, assign
from dynamig.errors import Refused, Unavailable
from dynamig.mig import CiId, GiId, GiProfileId, GpuUuid, MigUuid, Partition, Placement
from dynamig.protocol.claims import ClaimRef
from dynamig.protocol.lifecycle import State
from dynamig.protocol.records import ClaimRecord, DeviceRecord, LiveIds, from_json, to_json
from dynamig.testing.checks import check_damaged_journal, check_journal
from dynamig.testing.fakes import MemoryJournal
from tests.unit.driver.bench_node import h100

GOLDEN = Path(__file__).parents[2] / "golden"

RECORD = ClaimRecord(
    ref=ClaimRef("ns", "claim", "uid-1"),
    state=State.PREPARED,
    devices=(
        DeviceRecord(
            request="mig",
            pool="n1/gpu-0",
            device="gpu-0-mig-3g40gb-9-4",
            gpu=GpuUuid("GPU-1"),
            partition=Partition(GiProfileId(9), Placement(4, 4)),
            profile_name="3g.40gb",
            live=LiveIds(GiId(2), CiId(0), MigUuid("MIG-1")),
        ),
        DeviceRecord("gpu", "n1/gpu-1", "gpu-1", GpuUuid("GPU-2"), None),
    ),
    boot_id="boot",
    since=12.5,
)


def test_a_record_reads_back_as_written_and_keeps_what_it_does_not_know(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "claims")
    journal.write(dataclasses.replace(RECORD, unknown={"later": {"x": 1}}))
    again = FileJournal(tmp_path / "claims")
    record = again.records()["uid-1"]
    assert record == dataclasses.replace(RECORD, unknown={"later": {"x": 1}})
    again.write(dataclasses.replace(record, state=State.RETIRING))
    assert json.loads((tmp_path / "claims/uid-1.json").read_text())["later"] == {"x": 1}
    again.forget("uid-1")
    assert FileJournal(tmp_path / "claims").records() == {}


def test_files_and_memory_keep_the_same_promises(tmp_path: Path) -> None:
    check_journal(FileJournal(tmp_path / "claims"), RECORD)
    check_journal(MemoryJournal(), RECORD)
    check_damaged_journal(MemoryJournal(damaged={"uid-1": "uid-1.json"}), RECORD)


def test_the_record_of_version_1_is_read_for_ever() -> None:
    assert from_json(json.loads((GOLDEN / "journal-v1.json").read_text())) == RECORD
    assert to_json(RECORD) == json.loads((GOLDEN / "journal-v1.json").read_text())


def test_a_newer_record_is_refused_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims/uid-1.json").write_text(json.dumps({**to_json(RECORD), "v": 99}))
    with pytest.raises(Unavailable, match="99"):
        FileJournal(tmp_path / "claims")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"v": 1}', '{"v": "x"}', "\x00\x01"])
def test_a_damaged_record_is_kept_named_and_costs_only_itself(tmp_path: Path, content: str) -> None:
    journal = FileJournal(tmp_path / "claims")
    journal.write(RECORD)
    damaged = tmp_path / "claims/uid-2.json"
    damaged.write_text(content)
    again = FileJournal(tmp_path / "claims")
    assert list(again.records()) == ["uid-1"]
    assert again.unreadable() == {"uid-2": str(damaged)}
    with pytest.raises(Refused, match="uid-2"):
        again.write(dataclasses.replace(RECORD, ref=ClaimRef("ns", "claim", "uid-2")))
    assert damaged.read_text() == content


@pytest.mark.parametrize("content", ["", "{", '{"v": 1}'])
def test_a_restored_record_replaces_the_damaged_one_which_is_kept_beside_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "claims").mkdir()
    damaged = tmp_path / "claims/uid-1.json"
    damaged.write_text(content)
    check_damaged_journal(FileJournal(tmp_path / "claims"), RECORD)
    assert (tmp_path / "claims/uid-1.json.damaged").read_text() == content
    again = FileJournal(tmp_path / "claims")
    assert (again.records(), again.unreadable()) == ({"uid-1": RECORD}, {})


def test_a_claim_whose_record_is_damaged_twice_keeps_both(tmp_path: Path) -> None:
    for content in ("first", "second"):
        path = tmp_path / "claims/uid-1.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        assert FileJournal(path.parent).restore(RECORD) is not None
    kept = {p.name: p.read_text() for p in path.parent.glob("*.damaged*")}
    assert kept == {"uid-1.json.damaged": "first", "uid-1.json.damaged-2": "second"}


def test_dying_while_a_record_is_restored_loses_neither_the_damaged_one_nor_the_way_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "claims/uid-1.json"
    path.parent.mkdir()
    path.write_text("{")
    with monkeypatch.context() as dying:
        dying.setattr("dynamig.driver.journal.write_durably", _dies)
        with pytest.raises(KeyboardInterrupt):
            FileJournal(path.parent).restore(RECORD)
    again = FileJournal(path.parent)
    assert again.unreadable() == {"uid-1": str(path)}
    assert path.read_text() == "{"
    assert again.restore(RECORD) == f"{path}.damaged"
    assert sorted(p.name for p in path.parent.iterdir()) == ["uid-1.json", "uid-1.json.damaged"]


def _dies(*args: object) -> None:
    raise KeyboardInterrupt


def test_a_damaged_record_that_somebody_removed_meanwhile_is_restored_too(tmp_path: Path) -> None:
    path = tmp_path / "claims/uid-1.json"
    path.parent.mkdir()
    path.write_text("{")
    journal = FileJournal(path.parent)
    path.unlink()
    assert journal.restore(RECORD) is None
    assert journal.records() == FileJournal(path.parent).records() == {"uid-1": RECORD}


def test_a_damaged_record_that_cannot_be_kept_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "claims/uid-1.json"
    path.parent.mkdir()
    path.write_text("{")
    journal = FileJournal(path.parent)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.link", full)
    with pytest.raises(Unavailable) as caught:
        journal.restore(RECORD)
    assert caught.value.code == "JOURNAL_UNWRITABLE"
    assert path.read_text() == "{"
    assert journal.unreadable() == {"uid-1": str(path)}


def test_a_record_under_another_claims_name_is_no_record(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "claims")
    journal.write(RECORD)
    (tmp_path / "claims/copy.json").write_text((tmp_path / "claims/uid-1.json").read_text())
    again = FileJournal(tmp_path / "claims")
    assert list(again.unreadable()) == ["copy"]
    again.forget("uid-1")
    assert FileJournal(tmp_path / "claims").records() == {}


def test_a_record_is_whole_at_every_instant(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "claims")
    journal.write(RECORD)
    path = tmp_path / "claims/uid-1.json"
    done = threading.Event()
    bad: list[str] = []

    def read() -> None:
        while not done.is_set():
            try:
                from_json(json.loads(path.read_text()))
            except (ValueError, KeyError) as error:
                bad.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(200):
        journal.write(dataclasses.replace(RECORD, since=float(n)))
    done.set()
    reader.join()
    assert bad == []
    assert sorted(p.name for p in path.parent.iterdir()) == ["uid-1.json"]


def test_a_disk_that_takes_nothing_is_said_and_changes_nothing(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "claims")
    journal.write(RECORD)
    (tmp_path / "claims").rename(tmp_path / "away")
    with pytest.raises(Unavailable) as caught:
        journal.write(dataclasses.replace(RECORD, state=State.RETIRING))
    assert caught.value.code == "JOURNAL_UNWRITABLE"
    assert journal.records()["uid-1"].state is State.PREPARED


def test_numbers_follow_the_minor_at_first_sight_and_never_change(tmp_path: Path) -> None:
    numbers = NumberFile(tmp_path / "gpus.json")
    first = numbers.of([h100(0), h100(1)])
    swapped = [dataclasses.replace(h100(0), minor=1), dataclasses.replace(h100(1), minor=0)]
    assert NumberFile(tmp_path / "gpus.json").of(swapped) == first
    newcomer = dataclasses.replace(h100(2), minor=0)
    assert NumberFile(tmp_path / "gpus.json").of([newcomer])[newcomer.uuid] == 2


def test_a_gpu_that_comes_later_takes_the_lowest_free_number() -> None:
    known = {GpuUuid("a"): 0, GpuUuid("b"): 2}
    late = dataclasses.replace(h100(7), minor=2)
    assert assign(known, [late])[late.uuid] == 1


def test_damaged_numbers_are_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text("{}")
    with pytest.raises(Refused, match=r"gpus\.json"):
        NumberFile(tmp_path / "gpus.json")


def test_cdi_files_leave_other_vendors_alone(tmp_path: Path) -> None:
    other = tmp_path / "nvidia.yaml"
    other.write_text("kind: nvidia.com/gpu")
    files = SpecFiles(tmp_path, "k8s.gpu.nvidia.com/claim")
    files.write("uid-1", {"kind": "k8s.gpu.nvidia.com/claim"})
    assert files.claims() == ["uid-1"]
    assert files.read("uid-1") == {"kind": "k8s.gpu.nvidia.com/claim"}
    assert (tmp_path / "k8s.gpu.nvidia.com-claim_uid-1.json").stat().st_mode & 0o777 == 0o644
    files.remove("uid-1")
    files.remove("uid-1")
    assert files.read("uid-1") is None
    assert [p.name for p in tmp_path.iterdir()] == ["nvidia.yaml"]
