"""Both declarations of the emulator's files, C and Python, mean the same bytes."""

import ctypes
from pathlib import Path

from dynamig.testing.emulator import layout


def test_sizes_and_offsets_agree(library: Path) -> None:
    expected = layout.described()
    exported = (ctypes.c_uint32 * len(expected)).in_dll(ctypes.CDLL(str(library)), "dynamig_emulator_layout")
    assert tuple(exported) == expected
