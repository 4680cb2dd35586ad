"""The lab that `make lab-up` brought up, for benches that need a cluster."""

from __future__ import annotations

from dynamig.errors import Unavailable
from lab.lab import Lab, default_dir


def ready_lab() -> Lab:
    """Every daemon runs and is ready. Raises Refused if there is no lab, Unavailable naming what is not ready."""
    lab = Lab.open(default_dir())
    if lacking := [f"{s.name}: {s.reason}" for s in lab.status() if s.reason is not None]:
        raise Unavailable("LAB_NOT_READY", f"lab in {lab.layout.root}: {'; '.join(lacking)}", "make lab-up")
    return lab
