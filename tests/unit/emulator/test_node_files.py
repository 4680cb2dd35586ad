"""A node's directory as init leaves it, and as reboot and faults change it; no library needed."""

import fcntl
import os
import resource
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dynamig.errors import Conflict, Refused, Unavailable
from dynamig.testing.emulator import Emulator, NvmlReturn, layout, making, parse_duration
from dynamig.testing.emulator.faults import duration
from dynamig.testing.emulator.node import BOOT_ID, holders


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


@pytest.mark.parametrize("text", ["0ms", "1us", "999us", "800ms", "1.5s", "1000.001ms", "4294967.295ms", "4294s"])
def test_a_duration_is_shown_as_it_is_taken(text: str) -> None:
    assert duration(round(parse_duration(text) * 1e6)) == text


@pytest.mark.parametrize("text", ["800", "1 s", "-1s", "1h", ""])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(Refused, match="BAD_DURATION"):
        parse_duration(text)


# ---- files, locks and tables


def test_what_is_replaced_can_be_read_by_everybody_whatever_the_umask(emulator: Emulator) -> None:
    umask = os.umask(0o077)
    try:
        emulator.reboot()
    finally:
        os.umask(umask)
    for path in (emulator.directory / "state/node", emulator.directory / BOOT_ID):
        assert path.stat().st_mode & 0o777 == 0o644


def test_who_holds_a_file_has_a_shared_lock_and_no_other() -> None:
    """A writer's exclusive lock is no program on the GPU. In memory, whose files /proc/locks names as stat does."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert holders(Path(file.name)) == [os.getpid()]
        fcntl.flock(file, fcntl.LOCK_EX)
        assert holders(Path(file.name)) == []


def test_what_is_destroyed_while_somebody_waits_to_hold_it_is_not_held(emulator: Emulator) -> None:
    """The destroyer has the lock; who wants to hold is in its queue, and then has a file that is no more."""
    path, told = emulator.directory / "state/busy/gpu0", []

    def hold() -> None:
        try:
            with emulator.hold(0):
                told.append("held")
        except Refused as refused:
            told.append(refused.code)

    waiting = threading.Thread(target=hold)
    with path.open() as destroyer:
        fcntl.flock(destroyer, fcntl.LOCK_EX)
        waiting.start()
        while sum(_opens(path)) < 2:
            waiting.join(0.01)
        path.unlink()
        fcntl.flock(destroyer, fcntl.LOCK_UN)
        waiting.join()
    assert told == ["NO_SUCH_INSTANCE"]


def _opens(path: Path) -> list[bool]:
    """For each descriptor of this process, whether it is of the file."""
    numbers = Path("/proc/self/fd").iterdir()
    return [number.is_symlink() and os.path.realpath(number) == os.path.realpath(path) for number in numbers]


def test_the_capability_table_has_room_for_a_model_that_is_cut_finer_than_the_kernels(tmp_path: Path) -> None:
    document = yaml.safe_load((Path(__file__).parents[3] / "src/dynamig/testing/geometry.yaml").read_text())
    [entry] = [gpu for gpu in document["gpus"] if gpu["model"] == "A30 24GB"]
    [whole] = [profile for profile in entry["profiles"] if profile["compute_slices"] == 4]
    entry.update(total_compute_slices=12, profiles=[whole | {"compute_slices": 12, "compute_profiles": [
        {"nvml_profile": 0, "id": 0, "compute_slices": 1, "sms": 4, "max_instances": 12, "starts": list(range(12))},
        {"nvml_profile": 9, "id": 9, "compute_slices": 12, "sms": whole["sms"], "max_instances": 1, "starts": [0]},
    ]}])  # fmt: skip
    (tmp_path / "g.yaml").write_text(yaml.safe_dump({"gpus": [entry]}))
    Emulator(tmp_path / "node").init("a30-24gb", geometry=tmp_path / "g.yaml")
    minors = (tmp_path / "node/proc/driver/nvidia-caps/mig-minors").read_text()
    assert "gpu0/gi0/ci11/access" in minors
    assert "gpu0/gi0/ci12/access" not in minors


# ---- places where no node can be made, and files that may not be touched


@pytest.mark.parametrize(
    ("place", "said", "next_step"),
    [
        ("file", "File exists: ", "a file is where a directory has to be"),
        ("file/node", "Not a directory: ", "a file is where a directory has to be"),
        ("/proc/x", "No such file or directory: '/proc/x'", "no directory can be made there: choose another path"),
        ("x" * 300, "File name too long: ", "no directory can be made there: choose another path"),
    ],
)
def test_a_place_that_takes_no_directory_is_named_with_the_reason(
    tmp_path: Path, place: str, said: str, next_step: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="no node can be made in ") as told:
        Emulator(tmp_path / place).init("a30-24gb")
    assert said in told.value.what
    assert "Errno" not in told.value.what
    assert told.value.next_step.startswith(next_step)


def test_a_path_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"x\\xff1' is not UTF-8 \[BAD_PATH\]|BAD_PATH"):
        Emulator(tmp_path / os.fsdecode(b"x\xff1")).init("a30-24gb")
    assert list(tmp_path.iterdir()) == []


def as_nobody(work: Callable[[], object]) -> list[str]:
    """What and next step of the Unavailable that an ordinary user meets."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        try:
            work()
        except Unavailable as told:
            os.write(writing, f"{told.what}\n{told.next_step}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read().splitlines()
    os.waitpid(child, 0)
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes another user")
def test_whose_a_directory_is_and_what_to_do_about_it_is_said() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        closed, own = Path(root) / "closed", Path(root) / "own"
        closed.mkdir(mode=0o700)
        Path(root).chmod(0o755)
        what, next_step = as_nobody(lambda: Emulator(closed / "x").init("a30-24gb"))
        assert what.startswith(f"no node can be made in {closed}/x: Permission denied: ")
        assert next_step == f"act as the owner of {closed}, user 0, or choose a directory of yours"
        own.mkdir()
        os.chown(own, 65534, 65534)
        assert as_nobody(lambda: Emulator(own).init("a30-24gb")) == []
        (own / "state").chmod(0o500)
        what, next_step = as_nobody(lambda: Emulator(own).lose(0))
        assert "Permission denied: " in what
        assert next_step == f"it is yours: chmod u+rwX {own}/state"
        for part in ("sys", "proc"):  # what the user could not take away is root's to remove
            assert (own / part).is_dir()


def test_a_directory_with_other_things_is_not_told_to_become_a_node(tmp_path: Path) -> None:
    (tmp_path / "object.o").touch()
    with pytest.raises(Refused, match="is not an emulated node") as told:
        Emulator(tmp_path).show()
    assert told.value.next_step == "name a directory that `dynamig emulator init` made, or init a new one"
