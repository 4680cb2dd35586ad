"""A node's directory as init leaves it, and as reboot and faults change it; no library needed."""

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from dynamig.errors import Conflict, Refused, Unavailable
from dynamig.testing.emulator import Emulator, NvmlReturn, layout, making, parse_duration


@pytest.fixture
def emulator(tmp_path: Path) -> Emulator:
    made = Emulator(tmp_path / "node")
    made.init("h100-80gb-sxm5:2,a30-24gb")
    return made


def test_gpus_come_in_the_order_asked_for(emulator: Emulator) -> None:
    shown = emulator.show()
    assert [gpu.model for gpu in shown.gpus] == ["h100-80gb-sxm5", "h100-80gb-sxm5", "a30-24gb"]
    assert [gpu.minor for gpu in shown.gpus] == [0, 1, 2]
    assert sorted(gpu.bus_id for gpu in shown.gpus) == [gpu.bus_id for gpu in shown.gpus]
    assert len({gpu.uuid for gpu in shown.gpus}) == 3


def test_files_of_proc_and_dev_are_there(emulator: Emulator) -> None:
    proc, dev = emulator.directory / "proc", emulator.directory / "dev"
    assert "nvidia-caps" in (proc / "devices").read_text()
    assert any(line.startswith("nvidia ") for line in (proc / "modules").read_text().splitlines())
    assert "580.95.05" in (proc / "driver/nvidia/version").read_text()
    information = (proc / "driver/nvidia/gpus/0000:0f:00.0/information").read_text()
    assert f"GPU UUID: \t {emulator.show().gpus[1].uuid}\n" in information
    assert "Device Minor: \t 1\n" in information
    expected = {"nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}
    assert {path.name for path in dev.iterdir()} == expected | {"nvidia-caps"}
    assert (dev / "nvidia-caps/nvidia-cap1").stat().st_mode & 0o777 == 0o400


def test_a_node_is_not_made_twice(emulator: Emulator) -> None:
    with pytest.raises(Conflict, match="NODE_EXISTS"):
        emulator.init("a30-24gb")


def test_half_a_node_is_not_completed(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    with pytest.raises(Conflict, match="NODE_EXISTS"):
        Emulator(tmp_path).init("a30-24gb")


def test_a_node_is_not_mixed_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(Conflict, match="DIRECTORY_NOT_EMPTY"):
        Emulator(tmp_path).init("a30-24gb")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "thesis.tex").unlink()
    assert Emulator(tmp_path).init("a30-24gb").gpus


def test_events_and_faults_that_cannot_be_are_refused(emulator: Emulator) -> None:
    for code in (0, -1, 999999):
        with pytest.raises(Refused, match="BAD_XID"):
            emulator.xid(0, code)
    with pytest.raises(Refused, match="NO_SUCH_INSTANCE"):
        emulator.xid(0, 31, gi_id=77)
    with pytest.raises(Refused, match="NO_SUCH_INSTANCE"):
        emulator.xid(0, 31, ci_id=0)
    for count, nth in ((-1, 1), (1, 0)):
        with pytest.raises(Refused, match="BAD_FAULT"):
            emulator.hang("nvmlInit_v2", count=count, nth=nth)


def test_a_place_that_cannot_hold_a_node_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="NODE_UNWRITABLE"):
        Emulator(tmp_path / "file/node").init("a30-24gb")


def test_a_node_that_cannot_be_finished_is_not_begun(tmp_path: Path) -> None:
    """Files of more than 4 KiB cannot be written, as mig-minors is; an empty directory of one's own stays."""
    (tmp_path / "empty").mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name in ("new", "empty"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            with pytest.raises(Unavailable, match="NODE_UNWRITABLE"):
                Emulator(tmp_path / name).init("a30-24gb")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert list((tmp_path / "empty").iterdir()) == []
    assert Emulator(tmp_path / "empty").init("a30-24gb").gpus


def test_who_comes_second_leaves_the_node_of_the_first_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that have both found an empty directory: the second fails, and takes nothing away."""
    second, make_node = Emulator(tmp_path / "node"), making.make_node

    def overtaken(directory: Path, plan: making.Plan) -> None:
        make_node(directory, plan)
        make_node(directory, plan)

    monkeypatch.setattr(making, "make_node", overtaken)
    with pytest.raises(Unavailable, match="File exists"):
        second.init("a30-24gb")
    assert second.show().gpus


def test_a_list_of_models_has_the_same_bound_as_a_text(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="33 GPUs are more"):
        Emulator(tmp_path / "node").init(["a30-24gb"] * 33)
    assert not (tmp_path / "node").exists()


def test_without_a_trace_there_is_nothing_to_clear_or_follow(tmp_path: Path) -> None:
    emulator = Emulator(tmp_path / "node")
    emulator.init("a30-24gb", trace=False)
    assert emulator.trace() == []
    with pytest.raises(Refused, match="NO_TRACE"):
        emulator.clear_trace()
    with pytest.raises(Refused, match="NO_TRACE"):
        next(emulator.follow())


def test_no_directory_and_another_version_are_told_apart(emulator: Emulator, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"there is no .*NOT_A_NODE"):
        Emulator(tmp_path / "missing").show()
    state = emulator.directory / "state/node"
    head = layout.NodeHead.from_buffer_copy(state.read_bytes())
    head.layout_version += 1
    state.write_bytes(bytes(head))
    with pytest.raises(Refused, match=r"was made by another version: .*NOT_A_NODE") as refused:
        emulator.show()
    assert refused.value.next_step == "remove it and init it anew"


def test_what_is_not_a_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="NOT_A_NODE"):
        Emulator(tmp_path).show()
    (tmp_path / "state").mkdir()
    (tmp_path / "state/node").write_bytes(b"something else" * 100)
    with pytest.raises(Refused, match="NOT_A_NODE"):
        Emulator(tmp_path).show()


@pytest.mark.parametrize("name", ["node", "models"])
@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b[:100], lambda b: b"", lambda b: b + b"x",
                                    lambda b: b[:8] + b"c" + b[9:]])  # fmt: skip
def test_a_truncated_or_strange_file_is_refused(
    emulator: Emulator, name: str, change: Callable[[bytes], bytes]
) -> None:
    path = emulator.directory / "state" / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(Refused, match="NOT_A_NODE"):
        emulator.show()


@pytest.mark.parametrize(
    ("gpus", "version", "code"),
    [
        ("h100-80gb-sxm5:two", "580.95.05", "BAD_GPUS"),
        ("", "580.95.05", "BAD_GPUS"),
        ("a30-24gb:33", "580.95.05", "BAD_GPUS"),
        ("a30-24gb", "580.95.05.1", "BAD_VERSION"),
        ("a30-24gb", "emulated", "BAD_VERSION"),
    ],
)
def test_bad_wishes_leave_nothing_behind(tmp_path: Path, gpus: str, version: str, code: str) -> None:
    with pytest.raises(Refused, match=code):
        Emulator(tmp_path / "node").init(gpus, driver_version=version)
    assert not (tmp_path / "node").exists()


def test_reboot_gives_a_new_boot_id_and_switches_hopper_off(emulator: Emulator) -> None:
    before, after = emulator.show(), emulator.reboot()
    assert before.boot_id != after.boot_id
    assert [gpu.mig for gpu in before.gpus] == [True, True, True]
    assert [gpu.mig for gpu in after.gpus] == [False, False, True]
    assert [gpu.uuid for gpu in before.gpus] == [gpu.uuid for gpu in after.gpus]


def test_losing_a_gpu_is_a_change(emulator: Emulator) -> None:
    emulator.lose(1)
    shown = emulator.show()
    assert [gpu.lost for gpu in shown.gpus] == [False, True, False]
    assert shown.revision == 1
    with pytest.raises(Refused, match="no GPU 3"):
        emulator.lose(3)


@pytest.mark.parametrize("text", ["IN_USE", "in_use", "NVML_ERROR_IN_USE", "19"])
def test_return_codes_have_names_and_numbers(text: str) -> None:
    assert NvmlReturn.parse(text) is NvmlReturn.IN_USE


@pytest.mark.parametrize("text", ["NONE", "31", "-1", ""])
def test_other_codes_are_refused(text: str) -> None:
    with pytest.raises(Refused, match="UNKNOWN_CODE"):
        NvmlReturn.parse(text)


@pytest.mark.parametrize(("text", "seconds"), [("800ms", 0.8), ("1.5s", 1.5), ("250us", 0.00025)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["800", "1 s", "-1s", "1h", ""])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(Refused, match="BAD_DURATION"):
        parse_duration(text)
