"""A driver on fakes that lends over its real socket, in real time; and Slurm's commands as scripts over one folder."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from dynamig.driver.control import ControlServer
from dynamig.driver.loan_asks import loan_asks
from dynamig.driver.recall import Recall
from tests.unit.driver.bench_node import FakeClock
from tests.unit.driver.test_loans import SlurmNode


class RealClock(FakeClock):
    """Seconds that pass by themselves."""

    def __call__(self) -> float:
        return time.monotonic()


class LendingNode(SlurmNode):
    """`socket` answers `lend`, `give-back` and `map` between `serve` and `close`."""

    def __init__(self, folder: Path, gpus: int = 2) -> None:
        super().__init__(folder, gpus)
        self.bench.clock = RealClock()
        self.restart()
        self.socket = folder / "driver.sock"
        self._server: ControlServer | None = None

    def serve(self) -> None:
        self._server = ControlServer(
            self.socket, loan_asks(self.lender, Recall(self.lender, self.slurm, 1.0), self.bench.clock)
        )
        self._server.start()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            self.socket.unlink(missing_ok=True)


SLURM = """
import json, pathlib, sys
name, folder = pathlib.Path(sys.argv[0]).name, pathlib.Path(__file__).parent.parent
job = json.loads((folder / "job.json").read_text())
asked = sys.argv[1:]
with (folder / "asked").open("a") as log:
    log.write(name + " " + " ".join(asked) + "\\n")

def become(state, restart):
    (folder / "job.json").write_text(json.dumps({**job, "state": state, "restart": restart}))

def check_known(job_or_sluid):
    if job_or_sluid not in (str(job["id"]), job["sluid"]):
        sys.exit("Invalid job id specified for job " + job_or_sluid)

if job["controller"] == "away":
    if asked[0] == "--json":  # no error, no job
        print(json.dumps({"jobs": [], "errors": []}, indent=2))
        sys.exit()
    sys.exit("error: Unable to contact slurm controller (connect failure)")
if name == "squeue":
    fields = [field.split(":")[0] for field in asked[-1].removeprefix("--Format=").split(",")]
    has = {"JobID": job["id"], "RestartCnt": job["restart"], "State": job["state"], "SLUID": job["sluid"]}
    for row in ({**has, "JobID": 1, "State": "RUNNING"}, has):  # for the id of an array all its tasks are shown
        print(*(str(row[field]).ljust(30) for field in fields))
elif name == "scancel":  # silent about what it does not find
    if job["cancel"] == "works" and asked[0] in (str(job["id"]), job["sluid"]):
        become("COMPLETING", job["restart"])
elif asked[0] == "requeue":
    check_known(asked[1])
    if job["kind"] != "batch":
        sys.exit("Only batch jobs are accepted or processed for job " + asked[1])
    if job["requeue"] == "works":
        become("COMPLETING", job["restart"] + 1)
elif asked[0] == "update" and asked[1].startswith("NodeName="):
    (folder / "job.json").write_text(json.dumps({**job, "node": "IDLE+DRAIN", "drained": asked[3]}))
elif asked[:3] == ["--oneliner", "show", "node"]:
    print(f"NodeName={asked[3]} Arch=x86_64 CPUAlloc=0 State={job['node']} ThreadsPerCore=1 Reason=...")
elif asked[0] == "update":
    check_known(asked[1].removeprefix("JobId="))
elif asked[:2] == ["show", "config"]:
    print("Configuration data as of 2026-11-29T17:42:05")
    print("BatchStartTimeout       = 120 sec")
    print("EpilogTimeout           = 65534")
    print("PrologTimeout           =", job["prolog_timeout"])
elif asked[:2] == ["show", "hostnames"]:
    print(*job["nodes"] if asked[2:] != [""] else (), sep="\\n")
elif asked[:3] == ["--json", "show", "job"]:
    known = asked[3] in (str(job["id"]), job["sluid"])
    has = {"name": '"gres_detail": []', "gres_detail": job["gres"], "job_state": [job["state"]]}
    print(json.dumps({"jobs": [has] if known else [], "errors": []}, indent=2))
elif asked[0] != "notify":
    sys.exit("scontrol: unknown " + asked[0])
"""


class FakeSlurmCommands:
    """`bin` has scontrol, squeue and scancel for one job and its node; `asked` says what they were asked; `lent` is
    where the task prolog looks.

    Answers, exit statuses and states are those that 26.05.5 gave: docs/decisions/0011-the-loan.md.
    """

    def __init__(self, folder: Path, **job: Any) -> None:
        self._folder = folder
        self.bin = folder / "bin"
        self.cleared = folder / "cleared"
        self.bin.mkdir()
        for name in ("scontrol", "squeue", "scancel"):
            (self.bin / name).write_text(f"#!{sys.executable}\n{SLURM}")
            (self.bin / name).chmod(0o755)
        usual = {
            "id": 7,
            "sluid": "s7",
            "restart": 0,
            "state": "RUNNING",
            "kind": "batch",
            "controller": "there",
            "node": "IDLE",
            "nodes": ["n1"],
            "gres": [],
        }
        self._write({**usual, "requeue": "works", "cancel": "works", "prolog_timeout": 18, **job})

    def _write(self, job: dict[str, Any]) -> None:
        (self._folder / "job.json").write_text(json.dumps(job))

    def job(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads((self._folder / "job.json").read_text())
        return body

    def change(self, **job: Any) -> None:
        self._write({**self.job(), **job})

    def asked(self, *, but: tuple[str, ...] = ("squeue",)) -> list[str]:
        path = self._folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if not line.startswith(but)]
