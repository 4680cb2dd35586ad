"""The page for administrators: its files are read by the code that will read them, and say what the lab says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lightkube import KubeConfig
from typer.testing import CliRunner

from dynamig.bridge import config as bridge_config
from dynamig.cli import app
from dynamig.driver import config as driver_config
from dynamig.testing.emulator import load_geometry
from lab.slurm.config import gres_conf, node_gres, shards_per_gpu, slurm_conf
from lab.spec import LabSpec, Layout, NodeSpec

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/how-to/install.md").read_text()
BLOCKS = {m["name"]: m["text"] for m in re.finditer(r"```\w*\n# (?P<name>[\w./-]+).*\n(?P<text>(?s:.*?))```", PAGE)}
NODE = NodeSpec("gn07", "h100-80gb-sxm5:2")
SPEC = LabSpec((NODE,), 20_000, slurm_hooks="deploy/slurm")
SITES_OWN = {"AuthAltParameters", "PrologTimeout", "EpilogTimeout", "BatchStartTimeout"}
"""Settings whose values are not the lab's: a folder, and times."""

UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))


def written(name: str, folder: Path) -> Path:
    path = folder / "file"
    path.write_text(BLOCKS[name])
    return path


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith(("Node", "Partition")))


def test_the_drivers_file_is_one_beside_slurm(tmp_path: Path) -> None:
    loaded = driver_config.load(written("/etc/dynamig/driver.yaml", tmp_path))
    assert loaded.slurm is not None
    assert (loaded.node_name, loaded.slurm.node_name) == ("gpu-node-7", NODE.name)


def test_the_bridges_file_has_somebody_who_pays_and_is_where_the_page_asks_it(tmp_path: Path) -> None:
    loaded = bridge_config.load(written("/etc/dynamig/bridge.yaml", tmp_path))
    assert loaded.accounts["team-a"].user == "alice"
    assert f"curl -s http://{loaded.listen}/readyz" in PAGE


def test_the_kubeconfig_leads_to_the_token_that_the_page_makes(tmp_path: Path) -> None:
    found = KubeConfig.from_file(written("/etc/dynamig/driver.kubeconfig", tmp_path)).get()
    assert found is not None
    assert found.user is not None
    assert found.user.token_file == "/etc/dynamig/driver.token"


def test_slurm_is_told_what_the_labs_slurm_is_told(tmp_path: Path) -> None:
    assert BLOCKS["gres.conf"] == gres_conf(SPEC)
    here, labs = settings(BLOCKS["slurm.conf"]), settings(slurm_conf(Layout(tmp_path), SPEC, "host"))
    assert here.keys() <= labs.keys()
    assert {k: v for k, v in here.items() if k not in SITES_OWN} == {k: labs[k] for k in here.keys() - SITES_OWN}
    assert f"NodeName={NODE.name} Gres={node_gres(NODE)}" in BLOCKS["slurm.conf"]


def test_every_gpu_that_can_be_emulated_has_the_shards_of_the_table() -> None:
    rows = re.findall(r"^\| ((?:[A-Z]+\d+(?:, )?)+) \| (\d+) \|$", PAGE, re.MULTILINE)
    table = {gpu.lower(): int(count) for gpus, count in rows for gpu in gpus.split(", ")}
    for model in load_geometry().models:
        family = next(word for word in reversed(model.split("-")) if word in table)
        assert shards_per_gpu(NodeSpec("n", f"{model}:1")) == table[family], model


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_a_command_that_there_is(unit: Path) -> None:
    assert f"`deploy/systemd/{unit.name}`" in PAGE
    (command,) = re.findall(r"^ExecStart=/opt/dynamig/bin/dynamig (.*)$", unit.read_text(), re.MULTILINE)
    words, _, config = command.partition(" --config ")
    assert config in BLOCKS
    assert CliRunner().invoke(app, [*words.split(), "--help"]).exit_code == 0


def test_every_script_for_slurm_is_installed_by_the_page() -> None:
    scripts = [p.relative_to(ROOT).as_posix() for p in (ROOT / "deploy/slurm").rglob("*") if p.is_file()]
    assert [path for path in scripts if path not in PAGE] == []
