"""The admission policies speak of the names that the code does: CEL cannot import them."""

from __future__ import annotations

import re
from pathlib import Path

from dynamig.protocol import names

TEMPLATES = Path(__file__).parents[3] / "deploy/chart/templates"
FOR_ADMISSION = {"dynamig.io/confirm-empty"}
"""Said by people to admission only."""


def text() -> str:
    return "\n".join(p.read_text() for p in sorted(TEMPLATES.glob("*.yaml")))


def test_pods_may_have_the_annotations_that_the_bridge_reads() -> None:
    (listed,) = re.findall(r"!\(k in \[(.*?)\]\)\)", (TEMPLATES / "bridge-policies.yaml").read_text())
    assert tuple(re.findall(r"'([^']+)'", listed)) == names.POD_WORDS


def test_every_name_of_ours_is_known() -> None:
    known = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    used = set(re.findall(r"dynamig\.io/[A-Za-z]+(?:-[A-Za-z]+)*", text()))
    assert used - known == FOR_ADMISSION
    assert {names.HELD, names.NODE, names.GATE, names.SCHEDULER_LABEL} <= used


def test_drivers_read_the_map_by_its_name() -> None:
    assert f"resourceNames: [{names.GPU_MAP}]" in (TEMPLATES / "driver-rbac.yaml").read_text()
