"""The lab's folder is recognised, and no other is ever removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamig.errors import Refused
from lab import folder, teardown
from lab.processes import Identity, Record
from lab.spec import CONTROL, LabSpec, Layout, NodeSpec

SPEC = LabSpec((NodeSpec("n1", "a30-24gb:1"),), 20_000)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "lab")


def test_no_folder_an_empty_one_and_kept_logs_are_no_lab(layout: Layout) -> None:
    assert folder.read_spec(layout) is None
    layout.logs.mkdir(parents=True)
    assert folder.read_spec(layout) is None


def test_a_folder_with_other_things_is_refused(layout: Layout) -> None:
    layout.root.mkdir()
    (layout.root / "thesis.txt").write_text("ten years of work")
    with pytest.raises(Refused, match=r"thesis\.txt"):
        folder.read_spec(layout)


def test_a_claimed_folder_is_a_lab(layout: Layout) -> None:
    folder.claim(layout, SPEC)
    assert folder.read_spec(layout) == SPEC


def test_remove_takes_everything(layout: Layout) -> None:
    folder.claim(layout, SPEC)
    (layout.node("n1") / "kubelet").mkdir(parents=True)
    (layout.root / "link").symlink_to("/etc")
    folder.remove(layout, keep_logs=False)
    assert not layout.root.exists()
    assert Path("/etc").exists()


def test_remove_keeps_the_logs_if_asked(layout: Layout) -> None:
    folder.claim(layout, SPEC)
    layout.logs.mkdir()
    layout.log("etcd").write_text("line")
    folder.remove(layout, keep_logs=True)
    assert [path.relative_to(layout.root) for path in layout.root.rglob("*")] == [Path("log"), Path("log/etcd.log")]
    assert folder.read_spec(layout) is None


def test_mounts_below_the_folder_are_seen() -> None:
    info = (
        "24 1 254:0 / / rw - ext4 /dev/vda rw\n"
        "30 24 0:30 / /srv/lab/nodes rw - tmpfs t rw\n"
        "31 24 0:31 / /srv/laboratory rw - tmpfs t rw\n"
    )
    assert folder.mounted_below(info, Path("/srv/lab")) == ["/srv/lab/nodes"]


def record(name: str, machine: str | None, is_machine: bool = False) -> Record:
    return Record(name, Identity(1, 1, "boot"), "digest", 0.0, machine, is_machine)


def test_down_stops_drivers_then_nodes_then_the_control_plane_and_nothing_inside() -> None:
    records = [
        record("containerd-n1", "n1"),
        record("driver-n1", None),
        record("etcd", CONTROL),
        record("machine-control", CONTROL, is_machine=True),
        record("machine-n1", "n1", is_machine=True),
        record("machine-n2", "n2", is_machine=True),
    ]
    names = [[r.name for r in group] for group in teardown.order(records)]
    assert names == [["driver-n1"], ["machine-n1", "machine-n2"], ["machine-control"]]


def test_down_of_a_half_made_lab_skips_what_never_was() -> None:
    assert teardown.order([]) == ()
    only = [record("machine-n1", "n1", is_machine=True)]
    assert teardown.order(only) == (tuple(only),)
