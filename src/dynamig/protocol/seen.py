"""Absence has three values. Only `Gone` proves anything.

`Found` carries what was read; `Gone` means that the authority answered and does not have it; `Unknown` that nobody
answered, which proves nothing. A function that destroys must match on all three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class Gone:
    proof: str


@dataclass(frozen=True, slots=True)
class Unknown:
    reason: str


Seen = Found[T] | Gone | Unknown
