"""A loan whose job's end no epilog tells: a dead step does not keep it for ever, and one that may live does.

Slurm's word for a step is its slurmstepd's socket in slurmd's spool folder, and that stays when a slurmstepd is killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.lab import Lab
from lab.slurm import config
from tests.e2e.cluster import Cluster, until
from tests.slurm.stage import PATIENCE, SLEEPS
from tests.slurm.unfenced import without

pytestmark = pytest.mark.timeout(420)

NODE = "n2"
TWO_STEPS = "#!/bin/sh\nsrun --overlap -n1 sleep 1000 &\nsleep 1000\n"

TO_STEPS = """
signal=$1
shift
for process in /proc/[0-9]*; do
    case "$(cat "$process/cmdline" 2>/dev/null | tr '\\0' ' ')" in
    "slurmstepd: ["*) kill "-$signal" "${process#/proc/}" ;;
    esac
done
for task; do kill "-$signal" "$task" 2>/dev/null || :; done
"""
"""`sh -c TO_STEPS sh SIGNAL [PID]...`: to every slurmstepd of the node, then to these."""


def test_sockets_of_steps_that_were_killed_do_not_keep_the_loan(lab: Lab, cluster: Cluster) -> None:
    """slurmd and all steps are killed, and slurmctld; the job is cancelled before slurmd is back. No epilog of it runs
    then, seen twice; here Slurm has none, so that nothing but slurmctld's word can end the loan."""
    with without(lab, "Epilog"):
        job = lab.submit(TWO_STEPS, f"--nodelist={NODE}", "--gres=gpu:1")
        tasks = until(lambda: tasks_of_both_steps(lab, job), within=PATIENCE)
        assert [loan["job"]["id"] for loan in loans(cluster)] == [job]
        lab.kill(f"slurmd-{NODE}")
        to_steps(lab, "KILL", tasks)
        lab.kill("slurmctld")
        lab.start("slurmctld")
        lab.slurm("scancel", str(job))
        lab.start(f"slurmd-{NODE}")
        until(lambda: over(lab, job, "CANCELLED"), within=PATIENCE)
        assert len(sockets(lab, job)) == 2, "what slurmd goes by"
        until(lambda: nothing_is_lent(cluster), within=PATIENCE)
        assert len(sockets(lab, job)) == 2, "and not because they went"


def test_a_slurmstepd_that_lives_and_does_not_answer_keeps_the_loan_and_plan_says_so(
    lab: Lab, cluster: Cluster
) -> None:
    """slurmctld gives the job up, since it is told that the node is down. The node is back at once."""
    job = lab.submit(SLEEPS, f"--nodelist={NODE}", "--gres=gpu:1", "--no-requeue")
    until(lambda: launched(lab, job), within=PATIENCE)
    with stopped_steps(lab):
        lab.slurm("scontrol", "update", f"nodename={NODE}", "state=down", "reason=a test")
        lab.slurm("scontrol", "update", f"nodename={NODE}", "state=resume")
        until(lambda: over(lab, job, "NODE_FAIL"), within=PATIENCE)
        until(lambda: plan_says(cluster, "slurmd's spool folder on this node still has a step of it"), within=PATIENCE)
    until(lambda: nothing_is_lent(cluster), within=2 * PATIENCE)


def test_a_job_that_gives_a_node_up_while_no_driver_answers_does_not_keep_its_gpu(lab: Lab, cluster: Cluster) -> None:
    """Its user may (`NodeList=`), and slurmd runs its epilog there once. The job itself goes on."""
    job = lab.submit(SLEEPS, "--nodes=2", "--gres=gpu:1", user="alice")
    until(lambda: lent_to(cluster, job), within=PATIENCE)
    with cluster.killed_driver(NODE):
        lab.slurm("scontrol", "update", f"jobid={job}", "nodelist=n1", user="alice")
        until(lambda: epilog_is_over(lab, job), within=PATIENCE)
    lent_to(cluster, job)
    until(lambda: nothing_is_lent(cluster), within=3 * PATIENCE)
    over(lab, job, "RUNNING")
    assert [loan["job"]["id"] for loan in loans(cluster, "n1")] == [job]


def epilog_is_over(lab: Lab, job: int) -> None:
    (found,) = lab.slurm_json("scontrol", "show", "job", str(job))["jobs"]
    assert found["step_id"]["sluid"] not in lab.node(NODE).run("ls", "/run/dynamig/cleared")
    assert "epilog.d" not in lab.node(NODE).run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")


def lent_to(cluster: Cluster, job: int) -> None:
    assert [loan["job"]["id"] for loan in loans(cluster)] == [job]


@contextmanager
def stopped_steps(lab: Lab) -> Iterator[None]:
    to_steps(lab, "STOP")
    try:
        yield
    finally:
        to_steps(lab, "CONT")


def to_steps(lab: Lab, signal: str, tasks: Sequence[int] = ()) -> None:
    lab.node(NODE).run("sh", "-c", TO_STEPS, "sh", signal, *map(str, tasks))


def tasks_of_both_steps(lab: Lab, job: int) -> list[int]:
    """As the node's processes are numbered inside its machine."""
    pids = lab.node(NODE).run("scontrol", "listpids", str(job), NODE).splitlines()[1:]
    assert {line.split()[2] for line in pids} == {"batch", "0"}, pids
    return [int(line.split()[0]) for line in pids]


def launched(lab: Lab, job: int) -> None:
    assert len(sockets(lab, job)) == 1


def sockets(lab: Lab, job: int) -> list[Path]:
    return list((lab.layout.node(NODE) / config.FOLDER / "spool").glob(f"{NODE}_{job}.*"))


def over(lab: Lab, job: int, state: str) -> None:
    (found,) = lab.slurm_json("scontrol", "show", "job", str(job))["jobs"]
    assert found["job_state"] == [state]


def loans(cluster: Cluster, node: str = NODE) -> Sequence[dict[str, dict[str, int]]]:
    found: Sequence[dict[str, dict[str, int]]] = cluster.driver(node, "status")["slurm"]["loans"]
    return found


def nothing_is_lent(cluster: Cluster, node: str = NODE) -> None:
    assert loans(cluster, node) == []


def plan_says(cluster: Cluster, words: str) -> None:
    (lent,) = cluster.driver(NODE, "plan")["lent"]
    assert words in lent
