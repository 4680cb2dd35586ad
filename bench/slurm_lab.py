"""A lab in which pods and native jobs share the GPUs: one that is given, or one that ends with the bench."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from dynamig.errors import Unavailable
from lab.components import REPOSITORY
from lab.lab import Lab, take_down
from lab.progress import Reporter

FOLDER = ".lab-bench"


@contextmanager
def slurm_lab() -> Iterator[Lab]:
    """`DYNAMIG_SLURM_LAB_DIR`, left as it is; without it a lab of our own, made and taken down again.

    Raises: Refused, Unavailable naming what is not ready.
    """
    given = os.environ.get("DYNAMIG_SLURM_LAB_DIR")
    if given is not None:
        yield _ready(Lab.open(Path(given)))
        return
    own, silent = REPOSITORY / FOLDER, Reporter(Console(quiet=True), quiet=True)
    try:
        Lab.create(own, slurm_hooks=REPOSITORY / "deploy/slurm").up()
        yield _ready(Lab.open(own))
    finally:
        take_down(own, silent)


def _ready(lab: Lab) -> Lab:
    if not lab.spec.lends:
        raise Unavailable("NO_HOOKS", f"lab in {lab.layout.root} lends no GPUs", "lab up --slurm-hooks deploy/slurm")
    if lacking := [f"{s.name}: {s.reason}" for s in lab.status() if s.reason is not None]:
        raise Unavailable("LAB_NOT_READY", f"lab in {lab.layout.root}: {'; '.join(lacking)}", "make lab-up")
    return lab
