"""Slurm in the lab: configuration as text, files with their owners to be, and what daemons say about themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynamig.errors import Refused, Unavailable
from lab.slurm import answers, config, daemons
from lab.slurm.clients import job_id
from lab.spec import CONTROL, LabSpec, Layout, NodeSpec

H100, A30 = "h100-80gb-sxm5", "a30-24gb"
SPEC = LabSpec((NodeSpec("n1", f"{H100}:2"), NodeSpec("n2", f"{A30}:1,{H100}:1")), 20_000)
STARTED = 1_000_000.5


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith(("Node", "Partition")))


def test_everything_is_below_the_labs_folder_and_on_its_ports(layout: Layout) -> None:
    text = config.slurm_conf(layout, SPEC, "host")
    found = settings(text)
    for name in ("StateSaveLocation", "SlurmdSpoolDir", "AuthAltParameters"):
        assert str(layout.root) in found[name]
    assert found["SlurmctldHost"] == "host(127.0.0.1)"
    assert found["SlurmctldPort"] == str(SPEC.ports.slurmctld)
    assert set(found["CommunicationParameters"].split(",")) == {"NoCtldInAddrAny", "NoInAddrAny"}
    assert f"Port={SPEC.ports.slurmd(1)} " in next(line for line in text.splitlines() if line.startswith("NodeName=n2"))


def test_a_prolog_has_more_than_the_minute_that_it_waits(layout: Layout) -> None:
    found = settings(config.slurm_conf(layout, SPEC, "host"))
    assert found["PrologFlags"] == "Alloc"
    assert 60 < int(found["PrologTimeout"]) < int(found["BatchStartTimeout"])


def test_low_loses_to_all(layout: Layout) -> None:
    lines = [line.split() for line in config.slurm_conf(layout, SPEC, "h").splitlines() if line.startswith("Partition")]
    named = [dict(word.split("=") for word in words if "=" in word) for words in lines]
    tiers = {fields["PartitionName"]: int(fields["PriorityTier"]) for fields in named}
    assert tiers == {"all": 10, "low": 1, "kubernetes": 10}
    assert "Default=YES" in lines[0]


def test_shards_are_equal_on_all_gpus_of_a_node_and_enough_for_each() -> None:
    one, mixed = SPEC.nodes
    assert (config.shards_per_gpu(one), config.shards_per_gpu(mixed)) == (7, 7)
    assert config.shards_per_gpu(NodeSpec("n", f"{A30}:4")) == 4
    assert config.node_gres(one) == "gpu:h100:2,shard:14"
    assert config.node_gres(mixed) == "gpu:a30:1,gpu:h100:1,shard:14"
    with pytest.raises(Refused):
        config.shards_per_gpu(NodeSpec("n", "abacus:1"))


def test_gres_lines_follow_the_minors() -> None:
    lines = [line for line in config.gres_conf(SPEC).splitlines() if line.startswith("NodeName=n2")]
    assert lines == [
        "NodeName=n2 Name=gpu Type=a30 File=/dev/nvidia0",
        "NodeName=n2 Name=gpu Type=h100 File=/dev/nvidia1",
        "NodeName=n2 Name=shard Count=7 File=/dev/nvidia0",
        "NodeName=n2 Name=shard Count=7 File=/dev/nvidia1",
    ]


def test_without_driver_there_are_no_gpus(layout: Layout) -> None:
    bare = replace(SPEC, with_driver=False)
    assert "NodeName" not in config.gres_conf(bare)
    assert " Gres=" not in config.slurm_conf(layout, bare, "host")


def test_keys_are_made_once_kept_private_and_only_where_they_are_needed(layout: Layout) -> None:
    daemons.fill(layout, SPEC)
    keys = {path: path.read_bytes() for path in layout.root.rglob("*.key")}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in keys)
    daemons.fill(layout, SPEC)
    assert {path: path.read_bytes() for path in layout.root.rglob("*.key")} == keys
    shared = {path.read_bytes() for path in keys if path.name == "munge.key"}
    assert len(shared) == 1, "all machines of a lab trust each other"
    assert {path.parent for path in keys if path.name == "jwt.key"} == {
        layout.pki,
        layout.machine(CONTROL) / config.FOLDER,
    }


def test_two_labs_do_not_trust_each_other(tmp_path: Path) -> None:
    for name in ("a", "b"):
        daemons.fill(Layout(tmp_path / name), SPEC)
    keys = [(tmp_path / lab / "pki" / key).read_bytes() for lab in ("a", "b") for key in ("munge.key", "jwt.key")]
    assert len(set(keys)) == 4


def test_everybody_may_read_the_configuration(layout: Layout) -> None:
    daemons.fill(layout, SPEC)
    for name in ("slurm.conf", "gres.conf", "cgroup.conf", "job_submit.lua"):
        assert (daemons.etc(layout, "n1") / name).stat().st_mode & 0o044 == 0o044


def test_without_hooks_prolog_and_epilog_are_there_and_do_nothing(layout: Layout) -> None:
    daemons.fill(layout, SPEC)
    for folder in daemons.HOOKS:
        (script,) = (daemons.etc(layout, "n1") / folder).iterdir()
        assert os.system(str(script)) == 0


def test_the_sites_scripts_are_put_in_and_taken_out(layout: Layout, tmp_path: Path) -> None:
    for folder in daemons.HOOKS:
        (tmp_path / "site" / folder).mkdir(parents=True)
    (tmp_path / "site/prolog.d/10-ours").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "site" / config.TASK_PROLOG).write_text("#!/bin/sh\nexit 4\n")
    daemons.fill(layout, replace(SPEC, slurm_hooks=str(tmp_path / "site")))
    prologs = daemons.etc(layout, "n2") / "prolog.d"
    assert {path.name for path in prologs.iterdir()} == {daemons.PLACEHOLDER, "10-ours"}
    assert os.waitstatus_to_exitcode(os.system(str(prologs / "10-ours"))) == 3
    assert os.waitstatus_to_exitcode(os.system(str(prologs.parent / config.TASK_PROLOG))) == 4
    daemons.fill(layout, SPEC)
    assert {path.name for path in prologs.iterdir()} == {daemons.PLACEHOLDER}


def node(state: list[str], gres: str = "gpu:h100:2,shard:h100:14", since: float = STARTED + 1) -> Mapping[str, Any]:
    return {"state": state, "reason": "because", "gres": gres, "slurmd_start_time": {"number": int(since)}}


WANTED = "gpu:h100:2,shard:14"


@pytest.mark.parametrize("state", [["IDLE"], ["MIXED"], ["ALLOCATED"], ["IDLE", "COMPLETING"], ["MIXED", "PLANNED"]])
def test_a_node_that_takes_jobs_is_ready(state: list[str]) -> None:
    assert answers.node_problem(node(state), WANTED, STARTED) is None


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (node(["DOWN"]), "DOWN: because"),
        (node(["IDLE", "DRAIN"]), "IDLE+DRAIN"),
        (node(["IDLE", "NOT_RESPONDING"]), "NOT_RESPONDING"),
        (node(["UNKNOWN"]), "UNKNOWN"),
        (node(["IDLE"], since=STARTED - 60), "not registered yet"),
        (node(["IDLE"], gres="gpu:h100:2"), "shard:14"),
        (node(["IDLE"], gres=""), "gpu:h100:2"),
    ],
)
def test_a_node_that_does_not_says_why(shown: Mapping[str, Any], reason: str) -> None:
    assert reason in (answers.node_problem(shown, WANTED, STARTED) or "")


def test_totals_do_not_depend_on_types_and_sockets() -> None:
    assert answers.totals("gpu:h100:1(S:0),gpu:a30:1(S:0-1),shard:14") == {"gpu": 2, "shard": 14}
    assert answers.totals("") == {}


def test_ids_and_tokens_are_read_or_refused() -> None:
    assert (job_id("12\n"), job_id("12;lab\n")) == (12, 12)
    assert answers.token("SLURM_JWT=a.b.c\n") == "a.b.c"
    for read, text in ((job_id, "Submitted batch job 12"), (answers.token, "sorry")):
        with pytest.raises(Unavailable):
            read(text)
