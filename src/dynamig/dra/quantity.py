"""Kubernetes quantities as exact numbers, and back in the form the API server stores.

Source: k8s.io/apimachinery pkg/api/resource/quantity.go, the grammar in the comment of `Quantity`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from dynamig.errors import Refused
from dynamig.mig import MiB

_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?\d+))?")


@lru_cache(maxsize=4096)
def parse(text: str | int) -> Fraction:
    """The exact value of a quantity, `40Gi` as well as `1500m` or `2e3`.

    JSON may carry a quantity as a bare number, hence `int`. Raises: Refused BAD_QUANTITY.
    """
    found = _QUANTITY.fullmatch(str(text))
    if not found:
        raise Refused("BAD_QUANTITY", f"{text!r} is not a quantity", "write it like 40Gi, 1500m or 7")
    number, binary, decimal, exponent = found.groups()
    base, power = (2, _BINARY[binary]) if binary else (10, int(exponent or _DECIMAL[decimal or ""]))
    return Fraction(number) * (Fraction(base**power) if power >= 0 else Fraction(1, base**-power))


def memory(amount: MiB) -> str:
    """Memory as the API server would write it back: the largest binary unit that leaves a whole number.

    `9984Mi`, but `16Gi` for 16384 MiB. Sent like this, a read object equals the written one.
    """
    return written(Fraction(int(amount) << 20))


def written(amount: Fraction) -> str:
    """For people and the API server: the largest binary unit that leaves a whole number."""
    if amount.denominator != 1:
        return f"{float(amount):g}"
    value, unit = int(amount), ""
    for larger in _BINARY:
        if value == 0 or value % 1024:
            break
        value, unit = value // 1024, larger
    return f"{value}{unit}"
