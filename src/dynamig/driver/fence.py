"""What keeps prepares and native Slurm jobs apart on a GPU, as the claims' side sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from dynamig.mig import GpuUuid


class Fence(Protocol):
    """Keeps prepares off GPUs that are lent to native Slurm jobs."""

    def lent(self, gpus: Iterable[GpuUuid]) -> Sequence[str]:
        """Who has borrowed one of `gpus`, in words. Callers hold the GPUs' locks.

        Raises Unavailable LOAN_UNREADABLE for a loan that does not say to whom.
        """
        ...

    def ask(self, gpus: Collection[GpuUuid], *, within: float) -> Sequence[object]:
        """slurmctld was asked whether the loans of `gpus` still stand, and those that do not are gone, and returned;
        none if nobody answered in `within` seconds. Callers hold no GPU's lock."""
        ...


class NoFence:
    """A node without Slurm: nothing is ever lent."""

    def lent(self, gpus: Iterable[GpuUuid]) -> Sequence[str]:
        return ()

    def ask(self, gpus: Collection[GpuUuid], *, within: float) -> Sequence[object]:
        return ()
