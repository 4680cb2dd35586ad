"""Prolog and epilog as slurmd runs them: every row of docs/reference/slurm-prolog.md, by a real socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamig.protocol import names
from dynamig.protocol.loans import Borrower
from tests.integration.driver.lending import FakeSlurmCommands, LendingNode

SCRIPTS = Path(__file__).parents[3] / "deploy/slurm"
TASK_PROLOG = SCRIPTS / "task_prolog"
PROLOG, EPILOG = SCRIPTS / "prolog.d/50-dynamig", SCRIPTS / "epilog.d/50-dynamig"
COMMAND = Path(sys.executable).with_name("dynamig")
OTHER = Borrower(8, "s8", 0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LendingNode]:
    node = LendingNode(tmp_path)
    node.serve()
    yield node
    node.close()


def start(script: Path, node: LendingNode, slurm: FakeSlurmCommands, **more: str) -> subprocess.Popen[str]:
    """The script with the environment that slurmd gives it, plus where things are in this test."""
    environment = {
        "PATH": f"{slurm.bin}{os.pathsep}{os.environ['PATH']}",
        "DYNAMIG": str(COMMAND),
        "DYNAMIG_SOCKET": str(node.socket),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_SLUID": "s7",
        "SLURM_JOB_RESTART_COUNT": "0",
        "SLURM_JOB_GPUS": "0",
        "SLURM_JOB_NODELIST": "n1",
        "SLURMD_NODENAME": "n1",
        **more,
    }
    return subprocess.Popen([here(script, slurm)], env=environment, stderr=subprocess.PIPE, text=True)


def here(script: Path, slurm: FakeSlurmCommands) -> Path:
    """A copy, with its mode. The script takes its folder from nobody's environment, so the test's is put in."""
    copy = slurm.cleared.with_name(f"{script.parent.name}-{script.name}")
    if not copy.exists():
        shutil.copy(script, copy)
        text = script.read_text()
        assert text.count("/run/dynamig/cleared") == text.count("/run/dynamig/waiting") == 1
        text = text.replace("/run/dynamig/cleared", str(slurm.cleared))
        copy.write_text(text.replace("/run/dynamig/waiting", str(slurm.cleared.with_name("waiting"))))
    return copy


def run(script: Path, node: LendingNode, slurm: FakeSlurmCommands, **more: str) -> tuple[int, str]:
    process = start(script, node, slurm, **more)
    _, said = process.communicate(timeout=80)
    return process.returncode, said


def task_starts(slurm: FakeSlurmCommands, **environment: str) -> bool:
    """Whether the task prolog lets a task start."""
    usual = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "SLURM_JOB_SLUID": "s7", "SLURM_STEP_GPUS": "0"}
    done = subprocess.run(
        [here(TASK_PROLOG, slurm)], env={**usual, **environment}, stdout=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode == 0) == (not done.stdout), "who is not let in is told why"
    return done.returncode == 0


def take(node: LendingNode) -> None:
    """A pod has a slice of GPU 0."""
    node.service.prepare(node.held("a", node.part()), deadline=time.monotonic() + 5)


ASKED_FOR = ["scontrol show hostnames n1", "scontrol --json show job s7"]


def test_a_job_without_gpus_costs_two_questions(node: LendingNode, tmp_path: Path) -> None:
    slurm = FakeSlurmCommands(tmp_path)
    assert run(PROLOG, node, slurm, SLURM_JOB_GPUS="") == (0, "")
    assert task_starts(slurm), "though it was submitted from a step with GPUs, of which it is told"
    assert slurm.asked(but=()) == ASKED_FOR
    assert run(EPILOG, node, slurm, SLURM_JOB_GPUS="") == (0, "")
    assert slurm.asked(but=()) == ASKED_FOR
    assert list(slurm.cleared.iterdir()) == []


def test_a_job_without_gpus_starts_also_where_no_mark_can_be_made(node: LendingNode, tmp_path: Path) -> None:
    slurm = FakeSlurmCommands(tmp_path)
    slurm.cleared.write_text("no directory")
    assert run(PROLOG, node, slurm, SLURM_JOB_GPUS="") == (0, "")
    assert task_starts(slurm, SLURM_STEP_GPUS="")


@pytest.mark.parametrize(
    ("nodes", "gres", "lent"),
    [
        (["n1"], ["gpu:h100:2(IDX:0-1)"], {0: 7, 1: 7}),
        (["n1"], ["gpu:1(IDX:1)"], {1: 7}),
        (["n1"], ["bandwidth:lustre:4G,gpu:a100:1(IDX:0),gpu:h100:1(IDX:1)"], {0: 7, 1: 7}),
        (["n0", "n1", "n2"], ["gpu:2(IDX:0-1)", "gpu:1(IDX:1)", "gpu:1(IDX:0)"], {1: 7}),
    ],
)
def test_gpus_that_slurmd_does_not_name_are_asked_for_lent_and_given_back(
    node: LendingNode, tmp_path: Path, nodes: list[str], gres: list[str], lent: dict[int, int]
) -> None:
    """As of a slurmctld that has just started, with which the node has not registered yet (seen, 26.05.5)."""
    slurm = FakeSlurmCommands(tmp_path, nodes=nodes, gres=gres)
    assert run(PROLOG, node, slurm, SLURM_JOB_GPUS="") == (0, "")
    assert node.lent() == lent
    assert task_starts(slurm)
    assert run(EPILOG, node, slurm, SLURM_JOB_GPUS="")[0] == 0
    assert node.lent() == {}


def test_of_several_nodes_one_may_have_no_gpus(node: LendingNode, tmp_path: Path) -> None:
    slurm = FakeSlurmCommands(tmp_path, nodes=["n0", "n1"], gres=["gpu:2(IDX:0-1)", "gpumem:4,bandwidth:gpu:4G"])
    assert run(PROLOG, node, slurm, SLURM_JOB_GPUS="") == (0, "")
    assert (node.lent(), task_starts(slurm)) == ({}, True)


@pytest.mark.parametrize("gres", [["gpu:h100:2"], ["gpu:2(IDX:)"], ["shard:h100:3(3/7,-/7)"], ["gpu:2(IDX:0-1)", ""]])
def test_a_job_of_whose_gpus_nobody_says_which_they_are_is_turned_away(
    node: LendingNode, tmp_path: Path, gres: list[str]
) -> None:
    slurm = FakeSlurmCommands(tmp_path, gres=gres, nodes=["n1"] if len(gres) == 1 else ["a", "b"])
    status, said = run(PROLOG, node, slurm, SLURM_JOB_GPUS="")
    assert status == 0
    assert "does not say which GPUs" in said
    assert "scontrol requeue s7" in slurm.asked()
    assert (node.lent(), task_starts(slurm)) == ({}, False)


@pytest.mark.parametrize(
    "word",
    [{"controller": "away", "gres": ["gpu:2(IDX:0-1)"]}, {"sluid": "another"}, {"state": "PENDING"}],
    ids=["silent", "of another run", "of a time before"],
)
def test_without_a_word_on_its_gpus_no_task_starts_that_is_told_of_some(
    node: LendingNode, tmp_path: Path, word: dict[str, Any]
) -> None:
    slurm = FakeSlurmCommands(tmp_path, **word)
    status, said = run(PROLOG, node, slurm, SLURM_JOB_GPUS="")
    assert status == 0
    assert "does not say whether it has GPUs" in said
    assert not task_starts(slurm, SLURM_JOB_GPUS="0,1")
    assert task_starts(slurm, SLURM_STEP_GPUS=""), "a job without GPUs is not held up"


def test_the_users_shell_functions_do_not_pass_the_task_prolog(node: LendingNode, tmp_path: Path) -> None:
    """As where /bin/sh is bash, which takes functions from the environment."""
    take(node)
    slurm = FakeSlurmCommands(tmp_path)
    assert run(PROLOG, node, slurm, DYNAMIG_WAIT="1")[0] == 0
    bash = tmp_path / "sh"  # it behaves as sh by its name
    bash.symlink_to("/bin/bash")
    script = here(TASK_PROLOG, slurm)
    first, rest = script.read_text().split("\n", 1)
    script.write_text(f"{first.replace('/bin/sh', str(bash))}\n{rest}")
    assert not task_starts(slurm, **{"BASH_FUNC_[%%": "() { exit 0; }", "BASH_FUNC_exit%%": "() { builtin exit 0; }"})


def test_free_gpus_are_lent_and_given_back_and_slurm_is_not_asked(node: LendingNode, tmp_path: Path) -> None:
    slurm = FakeSlurmCommands(tmp_path)
    assert run(PROLOG, node, slurm, SLURM_JOB_GPUS="0,1") == (0, "")
    assert node.lent() == {0: 7, 1: 7}
    assert slurm.asked(but=()) == []
    assert task_starts(slurm)
    assert not task_starts(slurm, SLURM_JOB_SLUID="another")
    status, said = run(EPILOG, node, slurm, SLURM_JOB_GPUS="0,1", SLURM_JOB_RESTART_COUNT="1")
    assert status == 0
    assert "is given back" in said
    assert node.lent() == {}
    assert not task_starts(slurm)


def test_no_task_of_a_run_starts_that_waits_or_waited_in_vain(node: LendingNode, tmp_path: Path) -> None:
    """Whether it is a batch script, which is told the job's GPUs, or a step, which is told its own or nothing (seen,
    26.05.5: plain `srun` has no SLURM_JOB_GPUS)."""
    take(node)
    slurm = FakeSlurmCommands(tmp_path)
    assert run(PROLOG, node, slurm, DYNAMIG_WAIT="1")[0] == 0
    for gpus in ({"SLURM_STEP_GPUS": "0"}, {"SLURM_JOB_GPUS": "0", "SLURM_STEP_GPUS": ""}, {"SLURM_STEP_GPUS": ""}):
        assert not task_starts(slurm, **gpus)
    assert task_starts(slurm, SLURM_JOB_SLUID="another", SLURM_STEP_GPUS=""), "a job without GPUs"
    node.service.endings.unprepare("a")
    assert run(PROLOG, node, slurm)[0] == 0
    assert task_starts(slurm)
    assert run(EPILOG, node, slurm)[0] == 0
    assert list(slurm.cleared.iterdir()) == list(slurm.cleared.with_name("waiting").iterdir()) == []


def test_what_leaves_in_time_is_waited_for(node: LendingNode, tmp_path: Path) -> None:
    take(node)
    slurm = FakeSlurmCommands(tmp_path, prolog_timeout=60)
    prolog = start(PROLOG, node, slurm)
    while not slurm.asked():
        time.sleep(0.1)
    time.sleep(2)
    assert prolog.poll() is None
    node.service.endings.unprepare("a")
    assert prolog.wait(30) == 0
    assert node.lent() == {0: 7}
    assert slurm.asked() == ["scontrol show config"]


def test_a_batch_job_is_requeued_once_the_time_is_over(node: LendingNode, tmp_path: Path) -> None:
    take(node)
    slurm = FakeSlurmCommands(tmp_path)
    status, said = run(PROLOG, node, slurm)
    assert status == 0
    assert "requeued" in said
    assert "claim-a" in said
    assert node.lent() == {}
    assert not task_starts(slurm), "slurmd may launch it all the same"
    assert slurm.asked() == ["scontrol show config", "scontrol update JobId=s7 Requeue=1", "scontrol requeue s7"]


def test_an_interactive_job_is_cancelled_and_its_user_told_why(node: LendingNode, tmp_path: Path) -> None:
    take(node)
    slurm = FakeSlurmCommands(tmp_path, kind="srun")
    status, _ = run(PROLOG, node, slurm, DYNAMIG_WAIT="0")
    assert status == 0
    notify, cancel = [line for line in slurm.asked() if "requeue" not in line.lower()]
    assert notify.startswith("scontrol notify 7 dynamig: not lent: ")
    assert "claim-a" in notify
    assert cancel == "scancel s7"
    assert slurm.job()["state"] == "COMPLETING"


def test_a_requeue_that_is_not_seen_leads_to_a_cancel(node: LendingNode, tmp_path: Path) -> None:
    take(node)
    slurm = FakeSlurmCommands(tmp_path, requeue="says so only")
    status, said = run(PROLOG, node, slurm, DYNAMIG_WAIT="0")
    assert status == 0
    assert "cancelled" in said


def test_a_job_that_cannot_be_turned_away_closes_the_node(node: LendingNode, tmp_path: Path) -> None:
    take(node)
    slurm = FakeSlurmCommands(tmp_path, kind="srun", cancel="says so only")
    status, said = run(PROLOG, node, slurm, DYNAMIG_WAIT="0")
    assert status == 1
    assert "neither" in said
    assert node.lent() == {}


def test_without_slurmctld_the_node_is_closed(node: LendingNode, tmp_path: Path) -> None:
    take(node)
    slurm = FakeSlurmCommands(tmp_path, controller="away")
    status, _ = run(PROLOG, node, slurm, DYNAMIG_WAIT="0")
    assert status == 1


def test_without_slurmctld_free_gpus_are_lent(node: LendingNode, tmp_path: Path) -> None:
    assert run(PROLOG, node, FakeSlurmCommands(tmp_path, controller="away")) == (0, "")
    assert node.lent() == {0: 7}


@pytest.mark.parametrize("kind", ["batch", "srun"])
def test_without_a_driver_the_job_is_turned_away(node: LendingNode, tmp_path: Path, kind: str) -> None:
    node.close()
    slurm = FakeSlurmCommands(tmp_path, kind=kind)
    status, said = run(PROLOG, node, slurm, DYNAMIG_WAIT="1", SLURMD_NODENAME="n1")
    assert status == 0
    assert "no driver answers" in said
    assert slurm.job()["state"] == "COMPLETING"
    assert slurm.job()["drained"] == f"Reason={names.DRAINED}no driver answers", "nothing else starts there in vain"


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN", "MIXED+DRAIN+NOT_RESPONDING"])
def test_somebody_elses_drain_is_not_written_over(node: LendingNode, tmp_path: Path, state: str) -> None:
    node.close()
    slurm = FakeSlurmCommands(tmp_path, node=state)
    assert run(PROLOG, node, slurm, DYNAMIG_WAIT="1", SLURMD_NODENAME="n1")[0] == 0
    assert "drained" not in slurm.job()


def test_a_gpu_that_is_busy_drains_nothing(node: LendingNode, tmp_path: Path) -> None:
    take(node)
    slurm = FakeSlurmCommands(tmp_path)
    assert run(PROLOG, node, slurm, DYNAMIG_WAIT="1", SLURMD_NODENAME="n1")[0] == 0
    assert "drained" not in slurm.job()


def test_without_the_command_the_job_is_turned_away(node: LendingNode, tmp_path: Path) -> None:
    slurm = FakeSlurmCommands(tmp_path)
    status, _ = run(PROLOG, node, slurm, DYNAMIG="/nonexistent/dynamig")
    assert status == 0
    assert "scontrol requeue s7" in slurm.asked()


def test_a_driver_that_starts_in_time_lends(node: LendingNode, tmp_path: Path) -> None:
    node.close()
    prolog = start(PROLOG, node, FakeSlurmCommands(tmp_path), DYNAMIG_WAIT="30")
    time.sleep(5)
    node.serve()
    assert prolog.wait(40) == 0
    assert node.lent() == {0: 7}


def test_what_waiting_cannot_help_is_not_waited_for(node: LendingNode, tmp_path: Path) -> None:
    slurm = FakeSlurmCommands(tmp_path)
    status, said = run(PROLOG, node, slurm, SLURM_JOB_GPUS="0,5", DYNAMIG_WAIT="1000")
    assert status == 0
    assert "index 5 is not in this node's device map" in said
    assert node.lent() == {}


def test_a_job_that_was_cancelled_while_its_prolog_waited_is_not_requeued(node: LendingNode, tmp_path: Path) -> None:
    take(node)
    slurm = FakeSlurmCommands(tmp_path, state="CANCELLED")
    status, said = run(PROLOG, node, slurm, DYNAMIG_WAIT="0")
    assert status == 0
    assert "had ended by itself" in said
    assert slurm.asked() == []


@pytest.mark.parametrize("restart", [0, 1])
def test_a_job_that_was_requeued_while_its_prolog_waited_is_left_alone(
    node: LendingNode, tmp_path: Path, restart: int
) -> None:
    """Its next run, with a SLUID of its own, completes with it."""
    take(node)
    slurm = FakeSlurmCommands(tmp_path, state="COMPLETING", sluid="next", restart=restart + 1)
    status, said = run(PROLOG, node, slurm, SLURM_JOB_RESTART_COUNT=str(restart), DYNAMIG_WAIT="0")
    assert (status, slurm.asked()) == (0, [])
    assert "had ended by itself" in said


@pytest.mark.parametrize("kind", ["batch", "srun"])
@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETING", "COMPLETED", "CANCELLED"])
def test_another_job_that_has_the_id_now_is_left_alone_and_the_node_is_closed(
    node: LendingNode, tmp_path: Path, kind: str, state: str
) -> None:
    """A slurmctld that crashed has forgotten the run and has given its id away. Nothing keeps slurmd from launching the
    forgotten run but a prolog that fails; and what becomes of the other job says nothing of it."""
    take(node)
    slurm = FakeSlurmCommands(tmp_path, kind=kind, state=state, sluid="another")
    status, said = run(PROLOG, node, slurm, DYNAMIG_WAIT="0")
    assert status == 1
    assert "neither" in said
    assert (slurm.job()["state"], slurm.job()["restart"]) == (state, 0)
    assert [line for line in slurm.asked() if " 7" in line] == [], "what names the id alone hits the other job"


def test_a_slurm_without_sluids_is_asked_by_the_id(node: LendingNode, tmp_path: Path) -> None:
    take(node)
    slurm = FakeSlurmCommands(tmp_path)
    status, said = run(PROLOG, node, slurm, SLURM_JOB_SLUID="", SLURM_JOB_RESTART_COUNT="0", DYNAMIG_WAIT="0")
    assert status == 0
    assert "requeued" in said
    assert slurm.asked() == ["scontrol update JobId=7 Requeue=1", "scontrol requeue 7"]
    node.service.endings.unprepare("a")
    assert run(PROLOG, node, slurm, SLURM_JOB_SLUID="", SLURM_JOB_RESTART_COUNT="1")[0] == 0
    assert task_starts(slurm, SLURM_JOB_SLUID="", SLURM_RESTART_COUNT="1")
    assert not task_starts(slurm, SLURM_JOB_SLUID="")


@pytest.mark.parametrize("full", ["folder", "mark"])
def test_a_job_whose_tasks_could_not_start_is_turned_away(node: LendingNode, tmp_path: Path, full: str) -> None:
    slurm = FakeSlurmCommands(tmp_path)
    if full == "folder":
        slurm.cleared.write_text("no folder")
    else:
        slurm.cleared.mkdir()
        (slurm.cleared / "s7").symlink_to(tmp_path / "nowhere" / "s7")  # as where there is no inode left
    status, _ = run(PROLOG, node, slurm)
    assert status == 0
    assert slurm.job()["state"] == "COMPLETING"


def test_a_mark_that_cannot_be_made_is_said_and_the_job_has_its_gpus(node: LendingNode, tmp_path: Path) -> None:
    slurm = FakeSlurmCommands(tmp_path)
    waiting = slurm.cleared.with_name("waiting")
    waiting.mkdir()
    (waiting / "s7").symlink_to(tmp_path / "nowhere" / "s7")
    status, said = run(PROLOG, node, slurm)
    assert (status, node.lent()) == (0, {0: 7})
    assert "cannot write" in said


def test_a_prolog_that_is_killed_while_it_waits_gets_nothing(node: LendingNode, tmp_path: Path) -> None:
    take(node)
    environment = {**os.environ, "DYNAMIG_SOCKET": str(node.socket)}
    args = (
        "driver",
        "lend",
        "--socket",
        str(node.socket),
        "--job",
        "7",
        "--sluid",
        "s7",
        "--gpus",
        "0",
        "--wait",
        "60",
    )
    client = subprocess.Popen([str(COMMAND), *args], env=environment, stderr=subprocess.PIPE)
    time.sleep(4)
    assert client.poll() is None
    client.kill()
    client.communicate()
    time.sleep(2)
    node.service.endings.unprepare("a")
    time.sleep(1)
    assert node.lent() == {}
    node.lender.give_back(OTHER)
    node.lend(OTHER, 0)
    assert node.lent() == {0: 8}


def test_the_epilog_without_a_driver_says_so_and_succeeds(node: LendingNode, tmp_path: Path) -> None:
    slurm = FakeSlurmCommands(tmp_path)
    assert run(PROLOG, node, slurm)[0] == 0
    node.close()
    status, said = run(EPILOG, node, slurm)
    assert status == 0
    assert "the driver asks slurmctld" in said
    assert node.lent() == {0: 7}, "kept until slurmctld says that the job is over"
    node.restart()
    node.slurm.says(Borrower(7, "s7", 0), "COMPLETED")
    node.lender.ask()
    assert node.lent() == {}
