"""What is read from `scontrol`, on answers as 26.05.5 gave them. A command that prints them stands in for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dynamig.driver.scontrol import Scontrol, used_gpus
from dynamig.protocol.loans import Borrower, JobFacts, NodeFacts
from dynamig.protocol.seen import Found, Gone, Unknown

ANSWERED = {"set": True, "infinite": False, "number": 1795973892}
SILENT = {"set": True, "infinite": False, "number": 0}

COMMAND = """
import json, pathlib, sys, time
answers = json.loads(pathlib.Path(__file__).with_name("answers.json").read_text())
answer = answers[" ".join(sys.argv[1:])]
if "sleep" in answer:
    time.sleep(answer["sleep"])
print(answer.get("complains", ""), end="", file=sys.stderr)
print(answer["print"] if "print" in answer else json.dumps(answer))
sys.exit(answer.get("rc", 0))
"""


def job(job_id: int, *states: str, sluid: str | None = "s219M8M65KXN00", restart: int = 0) -> dict[str, Any]:
    body: dict[str, Any] = {
        "job_id": job_id,
        "job_state": list(states),
        "restart_cnt": restart,
        "name": "x JobState=COMPLETED",
    }
    if sluid is not None:
        body["step_id"] = {"sluid": sluid, "job_id": {"set": True, "infinite": False, "number": job_id}}
    return body


def jobs(*found: dict[str, Any], update: dict[str, Any] = SILENT, errors: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"jobs": list(found), "last_update": update, "errors": list(errors), "warnings": []}


def scontrol(folder: Path, **answers: dict[str, Any]) -> Scontrol:
    """Keyword `job_7` answers `--json show job 7`, `jobs` answers `--json show jobs`."""
    (folder / "scontrol.py").write_text(COMMAND)
    named = {f"--json show {key.replace('_', ' ')}": answer for key, answer in answers.items()}
    (folder / "answers.json").write_text(json.dumps(named))
    return Scontrol((sys.executable, str(folder / "scontrol.py")))


def test_a_job(tmp_path: Path) -> None:
    asked = scontrol(tmp_path, job_7=jobs(job(7, "PENDING", "COMPLETING", restart=1)))
    assert asked.job(7, within=20) == Found(JobFacts(frozenset({"PENDING", "COMPLETING"}), "s219M8M65KXN00", 1))


def test_a_job_of_a_slurm_without_sluids(tmp_path: Path) -> None:
    asked = scontrol(tmp_path, job_7=jobs(job(7, "RUNNING", sluid=None)))
    assert asked.job(7, within=20) == Found(JobFacts(frozenset({"RUNNING"}), "", 0))


def test_the_nodes_that_a_job_has_now(tmp_path: Path) -> None:
    """Seen: two nodes, one of which was given up; null while it waits, and once it is over."""
    runs = job(7, "RUNNING") | {"job_resources": {"nodes": {"list": "n1", "allocation": [{"index": 0, "name": "n1"}]}}}
    over = job(8, "COMPLETED") | {"nodes": "n1", "job_resources": None}
    older = job(9, "RUNNING") | {"job_resources": {"nodes": "n1", "allocated_nodes": []}}
    asked = scontrol(tmp_path, job_7=jobs(runs), job_8=jobs(over), job_9=jobs(older))
    for job_id, nodes in ((7, frozenset({"n1"})), (8, frozenset[str]()), (9, frozenset[str]())):
        found = asked.job(job_id, within=20)
        assert isinstance(found, Found)
        assert found.value.nodes == nodes


def test_of_an_array_only_the_task_that_was_asked_for(tmp_path: Path) -> None:
    asked = scontrol(tmp_path, job_7=jobs(job(8, "RUNNING"), job(7, "COMPLETED")))
    assert asked.job(7, within=20) == Found(JobFacts(frozenset({"COMPLETED"}), "s219M8M65KXN00", 0))


def test_an_empty_answer_is_absence_only_if_a_controller_stands_behind_the_list(tmp_path: Path) -> None:
    """Seen: for an unknown job and for an unreachable controller alike, exit 0, no jobs, no errors."""
    unknown = scontrol(tmp_path, job_7=jobs(), jobs=jobs(job(9, "RUNNING"), update=ANSWERED))
    assert isinstance(unknown.job(7, within=20), Gone)
    nobody_there = scontrol(tmp_path, job_7=jobs(), jobs=jobs())
    assert isinstance(nobody_there.job(7, within=20), Unknown)
    came_back = scontrol(tmp_path, job_7=jobs(), jobs=jobs(job(7, "RUNNING"), update=ANSWERED))
    assert isinstance(came_back.job(7, within=20), Found)
    with_error = scontrol(tmp_path, job_7=jobs(), jobs=jobs(update=ANSWERED, errors=("some",)))
    assert isinstance(with_error.job(7, within=20), Unknown)


@pytest.mark.parametrize(
    "answer",
    [
        {"print": ""},
        {"print": "[]"},
        {"print": "slurm_load_jobs error: Unable to contact slurm controller"},
        {**jobs(job(7, "COMPLETED")), "rc": 1},
        {"jobs": [{"job_id": 7}]},
        {"jobs": None},
        {"jobs": [job(7, "RUNNING") | {"job_resources": "n1"}]},
        {**jobs(job(7, "COMPLETED")), "sleep": 20},
    ],
    ids=["empty", "list", "text", "exit-1", "no-state", "null", "resources", "late"],
)
def test_what_cannot_be_read_is_no_answer(tmp_path: Path, answer: dict[str, Any]) -> None:
    assert isinstance(scontrol(tmp_path, job_7=answer).job(7, within=6), Unknown)


def test_a_command_that_is_not_there_is_no_answer() -> None:
    assert isinstance(Scontrol(("/nonexistent/scontrol",)).job(7, within=5), Unknown)


def test_a_node(tmp_path: Path) -> None:
    body = {"name": "n1", "state": ["MIXED"], "gres": "gpu:h100:2,shard:h100:16"}
    used = {"gres_used": "gpu:h100:1(IDX:0),shard:h100:0(-/8,0/8)"}
    asked = scontrol(tmp_path, node_n1={"nodes": [body | used], "last_update": ANSWERED}, node_n2={"nodes": []})
    assert asked.node("n1", within=20) == Found(NodeFacts("n1", frozenset({"MIXED"}), frozenset({0})))
    assert isinstance(asked.node("n2", within=20), Unknown)
    without = scontrol(tmp_path, node_n1={"nodes": [body | {"gres_used": "gpu:h100:1"}]})
    assert isinstance(without.node("n1", within=20), Unknown), "counted, and nobody knows which"


def test_steps_that_live_on_the_node(tmp_path: Path) -> None:
    asked = scontrol(tmp_path)
    complaint = "scontrol: error: Domain socket directory /var/spool/slurmd: No such file or directory"
    for answer, seen in (
        ({"jobs": [{"job_id": 6}]}, Found(False)),
        ({"jobs": []}, Found(False)),
        ({"print": json.dumps({"jobs": []}), "complains": complaint}, Unknown(f"scontrol listjobs: {complaint}")),
    ):
        (tmp_path / "answers.json").write_text(json.dumps({"--json listjobs n1": answer}))
        assert asked.has_steps(7, "n1", within=20) == seen


REFUSED = "Unable to connect to slurmstepd: Connection refused\n"


@pytest.mark.parametrize(
    ("answer", "lives"),
    [
        ({"print": "", "complains": REFUSED, "rc": 1}, False),  # seen: its slurmstepd was killed
        ({"print": "", "complains": REFUSED * 2, "rc": 1}, False),  # seen: those of both its steps
        ({"pids": [{"pid": 200, "job_id": 7}]}, True),
        ({"pids": [{"pid": 200, "job_id": 7}], "complains": REFUSED, "rc": 1}, True),  # seen: that of one of two
        ({"print": '{"pids": [{"pid": 200}]}', "complains": REFUSED, "rc": 1}, True),
        ({"sleep": 20}, True),  # seen: a slurmstepd that is stopped
        ({"print": "", "complains": "There are no steps for job 7 on node n1.\n", "rc": 1}, True),  # seen: just ended
        ({"print": "", "complains": "Unable to connect to slurmstepd: Permission denied\n", "rc": 1}, True),
        ({"print": "", "complains": REFUSED + "scontrol: error: something else\n", "rc": 1}, True),
        ({"print": "", "complains": REFUSED, "rc": 0}, True),
        ({"print": "", "complains": "", "rc": 1}, True),
        ({"print": "", "complains": "", "rc": 0}, True),
    ],
)
def test_a_step_that_is_listed_lives_unless_it_is_known_that_nobody_listens(
    tmp_path: Path, answer: dict[str, Any], lives: bool
) -> None:
    asked = scontrol(tmp_path)
    answers = {"--json listjobs n1": {"jobs": [{"job_id": 7}]}, "--json listpids 7 n1": answer}
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    assert asked.has_steps(7, "n1", within=6) == Found(lives)


@pytest.mark.parametrize(
    ("used", "indices"),
    [
        ("gpu:h100:0(IDX:N/A),shard:h100:2(2/8,0/8)", set()),
        ("gpu:h100:1(IDX:1),shard:2(2/8,-/8)", {1}),
        ("gpu:h100:2(IDX:0-1)", {0, 1}),
        ("gpu:h100_0:0(IDX:),gpu:h100_1:1(IDX:1)", {1}),
    ],
)
def test_gpus_in_use(used: str, indices: set[int]) -> None:
    assert used_gpus("gpu:h100:2,shard:h100:16", used) == indices


def test_a_job_is_told_to_start_now(tmp_path: Path) -> None:
    asked = scontrol(tmp_path)
    answers = {"update JobId=s7 StartTime=now": {"print": ""}, "update JobId=8 StartTime=now": {"print": "", "rc": 1}}
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    assert asked.start_now(Borrower(7, "s7", 0), within=20)
    assert not asked.start_now(Borrower(8, "", 0), within=20)
    assert not Scontrol(("/no/such/scontrol",)).start_now(Borrower(7, "", 0), within=20)
