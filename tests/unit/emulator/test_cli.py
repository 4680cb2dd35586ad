"""`dynamig emulator`: arguments, the directory from the environment, JSON."""

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dynamig.cli.emulator import app
from dynamig.errors import Refused, Unavailable
from dynamig.testing.emulator import Emulator, layout
from dynamig.testing.emulator.faults import read_faults
from dynamig.testing.emulator.node import changing, remedy


@pytest.fixture
def node(tmp_path: Path) -> Path:
    Emulator(tmp_path / "node").init("h100-80gb-sxm5,a100-40gb")
    return tmp_path / "node"


def run(*arguments: object, **environment: str) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], env=environment, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def answer(*arguments: object, **environment: str) -> Any:
    return json.loads(run(*arguments, "--json", **environment))


def test_init_and_show(tmp_path: Path) -> None:
    made = answer("init", tmp_path / "n", "--gpus", "a30-24gb:2", "--mig", "off", "--driver-version", "550.90.07")
    assert [gpu["mig"] for gpu in made["gpus"]] == [False, False]
    assert answer("show", tmp_path / "n") == made
    assert "NVIDIA A30" in run("show", tmp_path / "n")


def test_the_directory_may_come_from_the_environment(node: Path) -> None:
    here = {"DYNAMIG_EMULATOR_DIR": str(node)}
    assert answer("show", **here)["directory"] == str(node)
    assert answer("fail", "nvmlInit_v2", "--code", "IN_USE", **here)["code"] == 19
    assert answer("delay", "nvmlInit_v2", "800ms", "--jitter", "100ms", **here)["delay_us"] == 800_000
    assert answer("lose", 1, **here) == {"gpu": 1, "lost": True}
    assert answer("xid", 0, 79, **here)["xid"] == 79
    assert answer("reset", 0, **here) == {"gpu": 0}


def test_an_argument_wins_over_the_environment(node: Path, tmp_path: Path) -> None:
    assert answer("show", node, DYNAMIG_EMULATOR_DIR=str(tmp_path))["directory"] == str(node)


def test_a_place_that_cannot_be_looked_at_is_no_node() -> None:
    done = CliRunner().invoke(app, ["xid", "a" * 300, "0"], env={"DYNAMIG_EMULATOR_DIR": ""})
    assert done.exit_code == 2
    assert "Missing argument 'XID'" in done.output


def test_a_missing_argument_is_said_without_a_trick() -> None:
    done = CliRunner().invoke(app, ["show"], env={"DYNAMIG_EMULATOR_DIR": ""})
    assert done.exit_code == 2
    done = CliRunner().invoke(app, ["xid", "zero", "one"], env={"DYNAMIG_EMULATOR_DIR": "/nowhere"})
    assert done.exit_code == 2


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("fail nvmlDeviceGetName", "Missing option '--code'"),
        ("feed /nonexist", "Invalid value for 'FILE'"),
        ("mig 0 maybe", "Invalid value for 'on|off'"),
        ("foreign 0 9 x", "Invalid value for 'START'"),
        ("delay nvmlInit_v2", "Missing argument 'DURATION'"),
        ("mig DIR 0 maybe", "Invalid value for 'on|off'"),
        ("fail DIR nvmlDeviceGetName", "Missing option '--code'"),
        ("foreign DIR 0 9 x", "Invalid value for 'START': 'x' is not a whole number"),
        ("foreign DIR 3g.40gb 0 4", "Invalid value for 'GPU': '3g.40gb' is not a whole number"),
    ],
)
def test_what_is_wrong_is_named_wherever_the_directory_comes_from(node: Path, words: str, named: str) -> None:
    arguments = [str(node) if word == "DIR" else word for word in words.split()]
    done = CliRunner().invoke(app, arguments, env={"DYNAMIG_EMULATOR_DIR": str(node), "COLUMNS": "200"})
    assert done.exit_code == 2
    assert named in done.output


def test_an_argument_that_was_forgotten_is_named_also_where_the_directory_was_given(node: Path) -> None:
    environment = {"DYNAMIG_EMULATOR_DIR": str(node), "COLUMNS": "200"}
    done = CliRunner().invoke(app, ["foreign", str(node), "0", "3g.40gb"], env=environment)
    assert done.exit_code == 2
    assert "Missing argument 'START'" in done.output


@pytest.mark.parametrize(
    ("words", "next_step"),
    [
        ("fail nvmlInit_v2 --code IN_USE --count -1", "0 to 4294967295"),
        ("delay nvmlInit_v2 5000s", "0 to 4294967295 microseconds, which are 71 minutes"),
    ],
)
def test_the_bounds_of_a_number_are_told_in_its_own_unit(node: Path, words: str, next_step: str) -> None:
    command, *rest = words.split()
    with pytest.raises(Refused, match="BAD_FAULT") as refused:
        run(command, node, *rest)
    assert refused.value.next_step == next_step


def test_faults_are_ordered_as_asked_and_cleared(node: Path) -> None:
    run("fail", node, "nvmlDeviceCreate*", "--code", "INSUFFICIENT_RESOURCES", "--nth", 3, "--count", 2, "--gpu", 1)
    run("delay", node, "nvmlGpuInstanceDestroy", "1.5s", "--jitter", "200ms")
    run("hang", node, "nvmlInit_v2")
    first, second, third = read_faults(node)
    assert (first.kind, first.call, first.code, first.nth, first.count, first.gpu) == (
        1,
        b"nvmlDeviceCreate*",
        23,
        3,
        2,
        1,
    )
    assert (second.kind, second.delay_us, second.jitter_us, second.count, second.gpu) == (2, 1_500_000, 200_000, 0, -1)
    assert (third.kind, third.count) == (3, 1)
    shown = run("show", node, COLUMNS="200")
    assert "fail nvmlDeviceCreate* INSUFFICIENT_RESOURCES: 2 calls from number 3 on, of GPU 1; 0 seen" in shown
    assert "delay nvmlGpuInstanceDestroy by 1.5s, up to 200ms more: all calls from number 1 on" in shown
    assert "spent" not in shown
    assert answer("show", node)["faults"][2] == {
        "kind": "hang", "call": "nvmlInit_v2", "code": 0, "nth": 1, "count": 1, "seen": 0, "gpu": None,
        "after": False, "delay_us": 0, "jitter_us": 0, "tail": False,
    }  # fmt: skip
    said = run("fail", node, "nvmlInit_v2", "--code", "IN_USE", "--gpu", 1, "--after", COLUMNS="200")
    assert said == "fail nvmlInit_v2 IN_USE: 1 call from number 1 on, of GPU 1, after the work\n"
    run("clear-faults", node)
    assert read_faults(node) == []


def test_reboot_shows_the_node_after_it(node: Path) -> None:
    assert [gpu["mig"] for gpu in answer("reboot", node)["gpus"]] == [False, True]


def test_reload_keeps_the_boot(node: Path) -> None:
    before = answer("show", node)
    after = answer("reload", node)
    assert after["boot_id"] == before["boot_id"]
    assert [gpu["mig"] for gpu in after["gpus"]] == [False, True]


def test_usage_is_fed_from_a_file_or_from_standard_input(node: Path, tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    usage.write_text("# busy, then idle\n0 gpu0@4 used=9000 gpu=80\n60 gpu0@4 gpu=0\n")
    assert answer("feed", node, usage) == {"records": 2}
    assert answer("feed", usage, DYNAMIG_EMULATOR_DIR=str(node)) == {"records": 2}
    done = CliRunner().invoke(app, ["feed", str(node), "-"], input="0 gpu1 milliwatt=300000\n")
    assert "1 record of usage" in done.stdout
    assert "nothing is used" in run("feed", node, "/dev/null")
    for line, next_step in {
        "0 gpu0 used=lots": "such as: 0 gpu0@4 used=9000 gpu=80",
        "0 gpu0 used=9999999999": "at most 4294967295 MiB",
        "0 gpu0 gpu=101": "at most 100 percent",
        "0 gpu0 celsius=9999999999": "at most 4294967295 celsius",
    }.items():
        usage.write_text(line + "\n")
        with pytest.raises(Refused, match="BAD_USAGE") as refused:
            run("feed", node, usage)
        assert refused.value.next_step == next_step


def test_latencies_are_delays_with_a_tail(node: Path) -> None:
    assert answer("latency", node, "hopper") == {"preset": "hopper"}
    run("delay", node, "nvmlInit_v2", "1ms")
    before = len(read_faults(node))
    assert answer("latency", node, "hopper") == {"preset": "hopper"}  # in the place of the first, not on top of it
    assert len(read_faults(node)) == before
    ordered = {fault.call: fault for fault in read_faults(node)}
    create = ordered[b"nvmlDeviceCreateGpuInstance*"]
    assert (create.kind, create.flags, create.count) == (layout.FAULT_DELAY, layout.FAULT_TAIL, 0)
    assert create.delay_us > create.jitter_us > 0
    with pytest.raises(Refused, match="UNKNOWN_PRESET"):
        run("latency", node, "volta")


def test_models_lists_complete_and_incomplete(node: Path) -> None:
    listed = answer("models")
    assert "1g.10gb+me" in listed["models"]["h100-80gb-sxm5"]
    assert "device_memory_mib" in listed["incomplete"]["a800-40gb"]
    assert "h100-80gb-sxm5" in run("models")


def test_a_model_is_shown_with_all_that_a_client_has_to_know(tmp_path: Path) -> None:
    known = answer("models", "h100-80gb-sxm5")
    [profile] = [p for p in known["profiles"] if p["name"] == "3g.40gb"]
    assert (profile["id"], profile["memory_mib"], profile["max_instances"]) == (9, 40448, 2)
    assert (profile["starts"], profile["memory_slices"]) == ([0, 4], 4)
    assert [c["id"] for c in profile["compute_profiles"]] == [0, 1, 2]
    text = run("models", "h100-80gb-sxm5")
    assert "MIG capable; a switch of MIG mode is at once" in text
    [line] = [line for line in text.splitlines() if "3g.40gb" in line]
    assert line.split()[:7] == ["3g.40gb", "9", "40448", "60", "2", "4", "0,4"]
    assert "pending until a reset" in run("models", "a100-40gb")
    with pytest.raises(Refused, match="no GPU model 'h100'"):
        run("models", "h100")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show", "Missing argument 'DIR'. Give the node's directory first, or set $DYNAMIG_EMULATOR_DIR."),
        ("reset 0", "'GPU'. '0' was taken as DIR: give the node's directory first, or set $DYNAMIG_EMULATOR_DIR."),
        ("reset DIR", "Missing argument 'GPU'."),
    ],
)
def test_a_missing_directory_is_said_to_be_one_that_a_variable_may_name(node: Path, words: str, said: str) -> None:
    arguments = [str(node) if word == "DIR" else word for word in words.split()]
    done = CliRunner().invoke(app, arguments, env={"DYNAMIG_EMULATOR_DIR": "", "COLUMNS": "300"})
    assert done.exit_code == 2
    assert said in done.output
    assert ("$DYNAMIG_EMULATOR_DIR" in done.output) is ("DIR." in said)


def test_who_holds_and_what_was_fed_is_shown(node: Path) -> None:
    assert "usage was fed" not in run("show", node)
    Emulator(node).feed(["0 gpu0 gpu=1", "5 gpu0 gpu=0"])
    assert answer("show", node)["usage_records"] == 2
    assert "usage was fed: 2 records" in run("show", node)
    Emulator(node).feed([])
    assert answer("show", node)["usage_records"] == 0


def test_the_trace_is_printed_one_call_a_line(node: Path) -> None:
    line = '{"t":1.5,"pid":7,"call":"nvmlInit_v2","args":{"flags":1},"result":19,"us":12}\n'
    (node / "trace").write_text(line + line.replace("nvmlInit_v2", "nvmlShutdown").replace("19", "0"))
    lines = run("trace", node).splitlines()
    assert len(lines) == 2
    assert "nvmlInit_v2(flags=1) IN_USE 12 us" in lines[0]
    assert [call["call"] for call in answer("trace", node, "--failed")] == ["nvmlInit_v2"]
    assert answer("counters", node) == {"nvmlInit_v2": 1, "nvmlShutdown": 1}
    run("trace", node, "--clear")
    assert answer("trace", node) == []


@pytest.mark.parametrize("cut", [1, 3, 20, 76])
def test_a_line_that_a_full_disk_has_torn_hides_no_other(
    node: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    line = '{"t":1.5,"pid":7,"call":"nvmlInit_v2","args":{"flags":1},"result":19,"us":12}\n'
    (node / "trace").write_text(line + line[:cut] + line + line + line[:cut])
    assert answer("counters", node) == {"nvmlInit_v2": 3}
    assert len(answer("trace", node)) == 3
    said = [record.getMessage().split(": ", 1)[1] for record in caplog.records]
    assert said == ["line 2 is torn, as a full disk leaves it: a call is missing",
                    "line 4 is torn, as a full disk leaves it: a call is missing"] * 2  # fmt: skip


def test_hold_needs_an_instance_or_the_gpu(node: Path) -> None:
    assert answer("hold", node, 0, "gpu", "--for", "0")["gi"] == "gpu"
    with pytest.raises(Refused, match="NO_SUCH_INSTANCE"):
        run("hold", node, 0, "three")
    with pytest.raises(Refused, match="NO_SUCH_INSTANCE"):
        run("hold", node, 0, 3)


@pytest.mark.parametrize(
    "command",
    [
        ["show"],
        ["trace"],
        ["trace", "--clear"],
        ["counters"],
        ["fail", "nvmlInit_v2", "--code", "IN_USE"],
        ["clear-faults"],
        ["hold", "0", "gpu"],
        ["foreign", "0", "1g.10gb", "0"],
        ["remove-foreign", "0"],
        ["mig", "0", "on"],
        ["xid", "0", "79"],
        ["lose", "0"],
        ["reset", "0"],
        ["reboot"],
        ["reload"],
        ["feed", "/dev/null"],
        ["latency", "hopper"],
    ],
    ids=lambda words: " ".join(words),
)
def test_what_is_no_node_is_refused_by_every_command(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("words")
    for place in (tmp_path / "file", tmp_path / "missing", tmp_path):
        with pytest.raises(Refused, match="NOT_A_NODE"):
            run(command[0], place, *command[1:])


def test_a_node_without_gpus_cannot_be_asked_for(tmp_path: Path) -> None:
    for gpus in ("a30-24gb:0", "a30-24gb:00", "a30-24gb:1,h100-80gb-sxm5:0"):
        with pytest.raises(Refused, match="BAD_GPUS"):
            run("init", tmp_path / "n", "--gpus", gpus)


@pytest.mark.parametrize("count", ["33", "1000000000", "9" * 20, "9" * 5000])
def test_more_gpus_than_the_table_has_are_refused_however_many(tmp_path: Path, count: str) -> None:
    for gpus in (f"a30-24gb:{count}", f"a30-24gb:2,a30-24gb:{count}"):
        with pytest.raises(Refused, match="BAD_GPUS") as refused:
            run("init", tmp_path / "n", "--gpus", gpus)
        assert refused.value.next_step == "at most 32"


def test_a_model_that_does_not_exist_is_said_to_be_that(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no GPU model 'my-gpu'") as refused:
        run("init", tmp_path / "n", "--gpus", "my-gpu")
    assert refused.value.next_step.startswith("a model of your own needs --geometry FILE; complete models: ")


@pytest.mark.parametrize("meant", ["h100", "H100-80GB"])
def test_a_model_that_begins_so_is_named_first(tmp_path: Path, meant: str) -> None:
    with pytest.raises(Refused, match=f"no GPU model '{meant}'") as refused:
        run("init", tmp_path / "n", "--gpus", meant)
    first, _, others = refused.value.next_step.partition("? complete models: ")
    assert "h100-80gb-sxm5" in first.split(", ")
    assert "a30-24gb" not in first
    assert "a30-24gb" in others


def test_what_is_wrong_with_the_files_decides_what_to_do(node: Path) -> None:
    events = node / "state/events"
    events.unlink()
    events.symlink_to("/dev/full")
    with pytest.raises(Unavailable, match="No space left") as full:
        run("xid", node, 0, 79)
    assert full.value.next_step == "make room on its file system"
    for number, words in {
        errno.EROFS: "mounted read-only", errno.EDQUOT: "make room", errno.EIO: "on another file system",
        errno.EEXIST: "a file is where", errno.ENAMETOOLONG: "choose another path",
    }.items():  # fmt: skip
        assert words in remedy(OSError(number, ""))


def test_help_does_not_call_required_what_the_environment_may_give() -> None:
    text = CliRunner().invoke(app, ["hold", "--help"], env={"COLUMNS": "200"}).stdout
    (directory,) = [line for line in text.splitlines() if "The node's directory" in line]
    (gpu,) = [line for line in text.splitlines() if "Number of the GPU" in line]
    assert "required" not in directory
    assert "required" in gpu
    assert CliRunner().invoke(app, ["show"], env={"DYNAMIG_EMULATOR_DIR": ""}).exit_code == 2


def test_a_lost_gpu_cannot_be_reset(node: Path) -> None:
    run("lose", node, 1)
    with pytest.raises(Unavailable, match="GPU_IS_LOST") as told:
        run("reset", node, 1)
    assert told.value.next_step == f"dynamig emulator lose {node} 1 --back, or reboot"
    assert run("lose", node, 1) == "GPU 1 is lost\n"
    assert run("lose", node, 1, "--back") == "GPU 1 is back\n"
    assert run("lose", node, 1, "--back") == "GPU 1 was not lost\n"
    assert answer("reset", node, 1) == {"gpu": 1}


def test_foreign_says_that_mig_is_off_and_how_to_switch_it_on(node: Path) -> None:
    Emulator(node).reboot()
    with pytest.raises(Refused, match="MIG_OFF") as told:
        run("foreign", node, 0, "3g.40gb", 4)
    assert told.value.next_step == f"dynamig emulator mig {node} 0 on"


def test_foreign_says_that_a_pending_mig_mode_wants_a_reset(tmp_path: Path) -> None:
    run("init", tmp_path / "n", "--gpus", "a30-24gb:1", "--mig", "off")
    with changing(tmp_path / "n") as state:
        state.gpus[0].mig_pending = 1
    with pytest.raises(Refused, match="MIG mode of GPU 0 is off until a reset") as told:
        run("foreign", tmp_path / "n", 0, "1g.6gb", 0)
    assert told.value.next_step == f"dynamig emulator reset {tmp_path / 'n'} 0"


@pytest.mark.parametrize(
    ("words", "thing"),
    [
        ("hold 0 ²", "'²' is not a GPU instance id"),
        ("hold 0 gpu --for -1", "--for -1"),
        ("hold 0 gpu --for nan", "--for nan"),
        ("hold 0 gpu --for inf", "--for inf"),
        ("delay nvmlInit_v2 5000s", "delay_us 5000000000"),
        ("fail nvmlInit_v2 --code IN_USE --count -1", "count -1"),
        ("delay nvmlInit_v2 1ms --jitter 5000s", "jitter_us 5000000000"),
        ("fail nvmlInit_v2 --code IN_USE --nth 4294967297", "nth 4294967297"),
        ("fail nvmlInit_v2 --code IN_USE --count 4294967296", "count 4294967296"),
        ("fail nvmlInit_v2 --code 5000", "'5000'"),
        ("foreign 0 1g.10gb 4294967296", "GPU 0: 1g.10gb cannot start at slice 4294967296"),
        ("foreign 0 1g.10gb 7", "GPU 0: 1g.10gb cannot start at slice 7"),
        ("xid 0 79 --gi 4294967295", "GPU instance 4294967295"),
        ("lose 2", "no GPU 2"),
        ("xid 0 0", "0 is no XID"),
        (f"hold 0 {'1' * 5000}", "is not a GPU instance id"),
        (f"delay nvmlInit_v2 {'9' * 400}s", "is not a duration"),
    ],
)
def test_a_number_that_is_none_or_does_not_fit_is_refused_and_named(node: Path, words: str, thing: str) -> None:
    command, *rest = words.split()
    before = [path.read_bytes() for path in sorted((node / "state").iterdir()) if path.is_file()]
    with pytest.raises(Refused, match=re.escape(thing)) as refused:
        run(command, node, *rest)
    assert refused.value.next_step
    assert [path.read_bytes() for path in sorted((node / "state").iterdir()) if path.is_file()] == before


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--driver-version", "580"),
        ("--driver-version", "580." + "9" * 32),
        ("--seed", "-5"),
        ("--seed", str(2**64)),
    ],
)
def test_what_a_node_cannot_be_made_of_is_refused_before_anything_is_made(
    tmp_path: Path, option: str, value: str
) -> None:
    with pytest.raises(Refused, match=value):
        run("init", tmp_path / "n", "--gpus", "a30-24gb", option, value)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_no_client_takes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="PATH_TOO_LONG"):
        run("init", tmp_path.joinpath(*["x" * 200] * 4), "--gpus", "a30-24gb")
    assert list(tmp_path.iterdir()) == []


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def of_another_version(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:8] + b"\x07" + path.read_bytes()[9:])


def overwritten(path: Path) -> None:
    path.write_bytes(b"\xff" * len(path.read_bytes() or b"?" * 1000))


@pytest.mark.parametrize(
    ("file", "damage", "command", "said"),
    [
        ("state/node", cut, "show", r"is damaged: state/node has \d+ bytes, of \d+"),
        ("state/models", cut, "show", r"is damaged: state/models has \d+ bytes"),
        ("state/node", overwritten, "mig 0 on", "is damaged: state/node"),
        ("state/models", overwritten, "feed /dev/null", "is damaged: state/models"),
        ("state/node", of_another_version, "reset 0", "another version: state/node has layout 7"),
        ("state/models", of_another_version, "feed /dev/null", "another version: state/models has layout 7"),
        ("state/faults", Path.unlink, "show", "is damaged: .*state/faults"),
        ("state/lock", Path.unlink, "reset 0", "is damaged: .*state/lock"),
        ("state/events", Path.unlink, "xid 0 79", "is damaged: .*state/events"),
        ("state/busy/gpu0", Path.unlink, "hold 0 gpu", "is damaged: .*busy/gpu0"),
        ("proc", shutil.rmtree, "reboot", "is damaged: .*boot_id"),
        ("state/faults", overwritten, "show", r"faults: record 1 is not a fault .*clear-faults"),
    ],
)
def test_a_damaged_node_is_told_from_none_at_all_and_from_an_older_one(
    node: Path, file: str, damage: Callable[[Path], None], command: str, said: str
) -> None:
    damage(node / file)
    with pytest.raises(Refused, match=said) as refused:
        run(command.split()[0], node, *command.split()[1:])
    assert refused.value.next_step


def test_a_feed_that_is_no_text_is_refused_by_its_line(node: Path, tmp_path: Path) -> None:
    (tmp_path / "usage").write_bytes(b"0 gpu0 gpu=1\n\xff\xfe\n")
    with pytest.raises(Refused, match="line 2"):
        run("feed", node, tmp_path / "usage")
