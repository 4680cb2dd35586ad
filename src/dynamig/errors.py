"""The four families of errors.

A caller decides by family, never by text: `Refused` is final and is shown to whoever asked; `Unavailable` may be
tried again; `Conflict` means re-read and decide anew; `InvariantBroken` is our bug and stops work on the GPU it
names. Errors of libraries are translated into these once, in the adapter that met them, and chained.
"""

from __future__ import annotations


class DynamigError(Exception):
    """Base of all errors that dynamig raises on purpose.

    `code` is a stable machine word (also an event reason, a metric label and a condition reason); `what` names
    the thing and the place; `next_step` says what the reader can do.
    """

    def __init__(self, code: str, what: str, next_step: str = "") -> None:
        super().__init__(code, what, next_step)
        self.code = code
        self.what = what
        self.next_step = next_step

    def __str__(self) -> str:
        tail = f" - {self.next_step}" if self.next_step else ""
        return f"{self.what} [{self.code}]{tail}"


class Refused(DynamigError):
    """Asked for something that cannot be given; asking again the same way cannot help."""


class Unavailable(DynamigError):
    """Cannot be done now; the same request may succeed later."""


class Conflict(DynamigError):
    """Somebody changed the thing between our read and our write; read it again."""


class InvariantBroken(DynamigError):
    """A promise of ours does not hold. Whoever sees this stops work on the GPU it names."""
