"""Looks at all claims again and again: no two verified ones ever share a memory slice."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from lightkube import Client

from dynamig.dra import read_pools
from dynamig.errors import DynamigError
from dynamig.kube import connect
from dynamig.kube.client import ResourceClaim, ResourceSlice, plain, translated
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimView, read_claim
from lab.lab import Lab

EVERY_S = 0.25

Slice = tuple[str, int]
"""A memory slice of a pool's GPU; -1 stands for the whole of one without partitions."""


class Witness:
    """From `start` to `stop`. `overlaps`: pairs of claims, in words, with what they share."""

    def __init__(self, lab: Lab) -> None:
        self._client = connect(lab.admin_kubeconfig)
        self._devices = devices(self._client)
        self._overlaps: set[str] = set()
        self.looks = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def overlaps(self) -> frozenset[str]:
        return frozenset(self._overlaps)

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            try:
                claims = read_claims(self._client)
            except DynamigError:
                continue  # one look less
            self.looks += 1
            self._overlaps.update(overlaps((c for c in claims if c.verified), self._devices))


def devices(client: Client) -> Mapping[tuple[str, str], frozenset[Slice]]:
    """(pool, device) to the memory slices that it takes."""
    with translated("slices"):
        pools = read_pools([plain(s) for s in client.list(ResourceSlice)])
    return {
        (pool.name, device.name): frozenset((pool.name, s) for s in device.memory_slices or (-1,))
        for pool in pools
        for device in pool.devices
    }


def read_claims(client: Client) -> list[ClaimView]:
    with translated("claims"):
        return [read_claim(plain(c), names.DRIVER_NAME) for c in client.list(ResourceClaim, namespace="*")]


def overlaps(claims: Iterable[ClaimView], known: Mapping[tuple[str, str], frozenset[Slice]]) -> set[str]:
    taken = {c.ref: frozenset[Any]().union(*(known[d.pool, d.device] for d in c.allocated)) for c in claims}
    pairs = combinations(sorted(taken.items()), 2)
    return {f"{a} and {b} share {sorted(x & y)}" for (a, x), (b, y) in pairs if x & y}
