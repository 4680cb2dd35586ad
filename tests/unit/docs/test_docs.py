"""What the documents name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dynamig.bridge.config import BridgeConfig, SlurmConfig
from dynamig.driver.config import DriverConfig, GpuPolicy
from dynamig.protocol import __main__ as lifecycles
from dynamig.protocol import invariants

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")])
PATH = re.compile(r"`((?:src|tests|lab|deploy|docs|emulator|examples|bench)/[\w./-]*)`")
TEST = re.compile(r"`(test_\w+)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_paths_and_tests_named_in(document: Path) -> None:
    text = document.read_text()
    missing = [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    assert missing == []
    sources = "".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in TEST.findall(text) if f"def {name}(" not in sources] == []


def test_every_invariant_in_code_is_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    coded = {name.split("_")[0].upper() for name in vars(invariants) if re.match(r"i\d+_", name)}
    assert {f"I{n}" for n in range(1, 5)} == coded
    for name in coded:
        assert f"| {name} |" in text


def test_every_configuration_key_is_documented() -> None:
    text = (ROOT / "docs/reference/driver-config.md").read_text()
    for model in (DriverConfig, GpuPolicy):
        for field in model.model_fields.values():
            assert field.alias is not None
            assert f"`{field.alias}" in text, field.alias


def test_architecture_stays_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 200


def test_the_lifecycles_are_those_of_the_tables() -> None:
    written = (ROOT / "docs/reference/lifecycles.md").read_text()
    assert written == lifecycles.page(), "run: python -m dynamig.protocol > docs/reference/lifecycles.md"


def test_every_key_of_the_bridges_configuration_is_documented() -> None:
    text = (ROOT / "docs/reference/bridge-config.md").read_text()
    keys = [field.alias for field in BridgeConfig.model_fields.values()]
    keys += [f"slurm.{f.alias}" for f in SlurmConfig.model_fields.values()]
    assert [key for key in keys if key != "slurm" and f"`{key}`" not in text] == []
