"""Fixtures of the adapter's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dynamig.slurm import SlurmClient, connect
from tests.unit.slurm.replay import RIGHTS, Replay, serving


@pytest.fixture
def replay() -> Iterator[Replay]:
    """A server whose token is privileged, unless told otherwise."""
    with serving(Replay().on(RIGHTS, "rights")) as server:
        yield server


@pytest.fixture
def client(replay: Replay) -> SlurmClient:
    return connect(replay.url, "dynamig", lambda: "token")
