"""`python -m dynamig.protocol`: the lifecycle tables as diagrams, for docs/reference/lifecycles.md."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from dynamig.protocol import hold_lifecycle, lifecycle

HEAD = """# Lifecycles

Written by `python -m dynamig.protocol` from the tables that the code goes by; a test compares.
"""


def diagram(steps: Iterable[tuple[Enum, Enum, str]]) -> str:
    """A Mermaid state diagram."""
    lines = [f"    {a.value} --> {b.value}{f' : {word}' if word else ''}" for a, b, word in steps]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def page() -> str:
    claim = diagram((before, after, event.value) for (before, event), after in lifecycle.NEXT.items())
    moves = ((a, b) for a, following in hold_lifecycle.NEXT.items() for b in hold_lifecycle.HoldState if b in following)
    hold = diagram((a, b, "") for a, b in moves)
    return (
        "\n\n".join(
            [
                HEAD.rstrip(),
                "## A claim on its node\n\nKept in the journal: `src/dynamig/protocol/lifecycle.py`.",
                claim,
                "## A hold in Slurm\n\nRead off pods, claims and job: `src/dynamig/protocol/hold_lifecycle.py`.",
                hold,
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    print(page(), end="")
