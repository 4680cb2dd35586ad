"""Every bench can at least be loaded, beside everything that the others load."""

from __future__ import annotations

import importlib

from bench.__main__ import BENCHES


def test_all_modules_load_in_one_process() -> None:
    modules = [importlib.import_module(bench.module) for bench in BENCHES]
    assert len({m.__name__ for m in modules}) == len(BENCHES) >= 6
