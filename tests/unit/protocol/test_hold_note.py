"""The note on a claim: what was written is what is read, and what is none of ours is not taken for one."""

from __future__ import annotations

import pytest

from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef, ClaimView
from dynamig.protocol.hold_note import Attempt, HoldNote, NotedDevice, hold_note
from dynamig.protocol.identity import JobKey

DEVICE = NotedDevice("n1/gpu-0", "gpu-0-mig-1g10gb-19-0", GpuUuid("GPU-0"))


def claim(text: str | None) -> ClaimView:
    annotations = {} if text is None else {names.HOLD: text}
    return ClaimView(ClaimRef("ns", "c", "u"), "1", False, frozenset(), annotations, ())


@pytest.mark.parametrize(
    "note",
    [
        HoldNote((DEVICE,)),
        HoldNote((), Attempt("set", 1)),
        HoldNote((DEVICE,), Attempt("set", 2, JobKey(7, "sluid"), priority=100, bare_since=12.5)),
    ],
)
def test_it_is_read_as_it_was_written(note: HoldNote) -> None:
    assert hold_note(claim(note.to_json())) == note


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "7", '{"devices": [{"pool": "p"}]}', '{"devices": [], "set": "u"}']
)
def test_what_is_no_note_is_none(text: str | None) -> None:
    assert hold_note(claim(text)) is None
