"""Processes that a bench starts and measures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from bench.processes import (
    LIBRARIES,
    SAYS_READY,
    age_seconds,
    cpu_seconds,
    importing,
    private_mib,
    rss_mib,
    started,
)
from dynamig.errors import Unavailable


def distributions(modules: Iterable[str]) -> set[str]:
    """Those of our dependencies that the modules come from."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    ours = {re.split(r"[<>=!~ \[;]", requirement, maxsplit=1)[0].lower() for requirement in project["dependencies"]}
    providers = packages_distributions()
    return ours & {name.lower() for module in modules for name in providers.get(module.split(".")[0], ())}


def test_the_libraries_are_those_that_a_driver_imports() -> None:
    code = "import sys, dynamig.cli.driver; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    needed = distributions(done.stdout.split())
    assert len(needed) >= 5
    assert distributions(LIBRARIES) == needed


def test_a_process_is_there_until_the_block_ends() -> None:
    with started(importing("json"), SAYS_READY) as idle:
        assert idle.seconds > 0
        assert idle.lines == (SAYS_READY,)
        assert 0 < private_mib(idle.pid) <= rss_mib(idle.pid) + 1
        assert cpu_seconds(idle.pid) >= 0
        assert 0 <= age_seconds(idle.pid) < 60
    with pytest.raises(Unavailable, match=f"{idle.pid}"):
        rss_mib(idle.pid)


def test_a_process_that_ends_early_tells_what_it_said() -> None:
    argv = [sys.executable, "-c", "print('no luck')"]
    with pytest.raises(Unavailable, match="no luck"), started(argv, SAYS_READY):
        pass


def test_our_own_processor_time_grows_with_work() -> None:
    before = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) < before + 0.03:
        sum(range(10_000))
