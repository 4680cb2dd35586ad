from __future__ import annotations

import pytest

from tests.integration.oracle.oracle import Oracle, build


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    return build()
