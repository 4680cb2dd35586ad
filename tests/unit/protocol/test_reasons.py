"""Every code that a prepare can end with is sorted: tried again, or final."""

from __future__ import annotations

import re
from pathlib import Path

import dynamig
from dynamig.errors import InvariantBroken, Refused, Unavailable
from dynamig.protocol.reasons import FINAL, RETRY, is_final

SOURCE = Path(dynamig.__file__).parent
ON_THE_WAY = ("driver/claims.py", "driver/hardware.py", "driver/requests.py", "driver/catalog.py", "disk.py")
RAISED = re.compile(r"(?:Refused|Unavailable|Conflict)\(\s*\"([A-Z_]+)\"")


def test_every_code_on_the_way_of_a_prepare_is_sorted() -> None:
    paths = [SOURCE / name for name in ON_THE_WAY] + sorted((SOURCE / "nvml").glob("*.py"))
    codes = {code for path in paths for code in RAISED.findall(path.read_text())}
    assert len(codes) > 15
    assert codes - RETRY - FINAL == set()
    assert frozenset() == RETRY & FINAL


def test_an_unknown_code_goes_by_its_family() -> None:
    assert is_final(Refused("SOMETHING_NEW", "x"))
    assert not is_final(Unavailable("SOMETHING_NEW", "x"))
    assert is_final(InvariantBroken("I1", "x"))
