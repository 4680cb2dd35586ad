"""Every symbol of nvml.h and what the emulator does with it, read from the header and the sources.

Usage: python -m emulator.symbols HEADER COMPILER > SYMBOLS.md
A symbol is implemented if a source file defines impl_<symbol>, and constant if CONSTANT stands above that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from emulator.generate import symbols

SOURCES = Path(__file__).parent / "src"
DEFINITION = re.compile(
    r"^(?P<constant>CONSTANT\n)?(nvmlReturn_t impl_|const char \*)(?P<name>nvml\w+)\(", re.MULTILINE
)


class Level(StrEnum):
    REAL = "real"
    CONSTANT = "constant"
    NOT_SUPPORTED = "not supported"


def implemented(sources: Path = SOURCES) -> dict[str, Level]:
    """Symbols that have a body, by name."""
    found = {}
    for source in sorted(sources.glob("*.c")):
        for match in DEFINITION.finditer(source.read_text()):
            found[match["name"]] = Level.CONSTANT if match["constant"] else Level.REAL
    return found


def levels(names: Iterable[str]) -> dict[str, Level]:
    known = implemented()
    return {name: known.get(name, Level.NOT_SUPPORTED) for name in names}


def table(all_levels: dict[str, Level]) -> str:
    meanings = {
        Level.REAL: "follows the state of the node, or changes it",
        Level.CONSTANT: "fixed by the GPU's model or by what the node was made with: a setter succeeds without effect, "
        "and on some models the answer is NOT_SUPPORTED",
        Level.NOT_SUPPORTED: "exported, answers NVML_ERROR_NOT_SUPPORTED; faults can be ordered for it all the same",
    }
    lines = ["# Symbols", "", "Written by `make symbols` from nvml.h and the sources; a test compares.", ""]
    lines += ["| level | symbols | meaning |", "|---|---|---|"]
    by_level = {level: [name for name, found in all_levels.items() if found is level] for level in Level}
    lines += [f"| {level} | {len(by_level[level])} | {meanings[level]} |" for level in Level]
    for level in Level:
        lines += ["", f"## {level.capitalize()}", "", *(f"- `{name}`" for name in by_level[level])]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.stdout.write(table(levels(s.name for s in symbols(Path(sys.argv[1]), sys.argv[2]))))
