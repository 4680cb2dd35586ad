"""Regular expressions with RE2's syntax and its linear time, both of which Kubernetes promises.

cel-cpp has RE2 inside, so its own `matches` is asked; Python's `re` reads other patterns and can be made to take
forever by the author of a claim.
"""

from __future__ import annotations

import json
from functools import lru_cache

from cel_expr_python import cel

from dynamig.dra.cel.values import CelError


@lru_cache(maxsize=256)
def _program(pattern: str) -> cel.Expression:
    """The pattern as a constant, so that it is compiled once. JSON's escapes are all escapes of CEL too."""
    environment = cel.NewEnv(None, variables={"text": cel.Type.STRING})
    return environment.compile(f"text.matches({json.dumps(pattern, ensure_ascii=False)})")


def matches(text: str, pattern: str) -> bool:
    """Whether the pattern matches anywhere in the text. Raises: CelError for a pattern that RE2 does not take."""
    found = _program(pattern).eval(data={"text": text}).value()
    if not isinstance(found, bool):
        raise CelError(f"invalid regular expression {pattern!r}: {found}")
    return found
