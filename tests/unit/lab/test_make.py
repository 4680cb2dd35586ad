"""`make help` is where a newcomer begins: the rings in order, and one figure for the first run everywhere."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def listed() -> list[str]:
    text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in text.splitlines() if line.startswith("  ")]


def test_the_rings_are_listed_from_the_fastest_to_the_slowest() -> None:
    found = listed()
    rings = ["test", "check", "lint", "unit", "property", "integration", "e2e"]
    at = found.index("test")
    assert found[at : at + len(rings)] == rings
    assert found.index("emulator") == found.index("demo") + 1
    assert len(found) == len(set(found))


def lab_of_targets(*arguments: str, exported: str) -> Path:
    """The lab's folder that recipes see."""
    show = ["--no-print-directory", "--eval", "show: ; @printenv DYNAMIG_LAB_DIR", "show"]
    environ = {**os.environ, "DYNAMIG_LAB_DIR": exported}
    done = subprocess.run(
        ["make", *arguments, *show], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip())


@pytest.mark.parametrize("arguments", [(), ("-e",)])
def test_the_lab_that_a_shell_talks_to_is_not_the_one_that_targets_use(arguments: tuple[str, ...]) -> None:
    assert lab_of_targets(*arguments, exported="/somebody/elses/lab") == ROOT / ".lab"


def test_another_lab_is_named_on_the_command_line_of_make() -> None:
    assert lab_of_targets("DYNAMIG_LAB_DIR=/my/lab", exported="/somebody/elses/lab") == Path("/my/lab")


def test_one_figure_for_the_first_run() -> None:
    texts = [(ROOT / name).read_text() for name in ("README.md", "Makefile", "lab/cli.py")]
    figures = [re.findall(r"(?i)about (\w+) minutes", text) for text in texts]
    assert figures == [["8"], ["8"], ["8"]]
