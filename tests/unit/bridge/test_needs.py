"""Processors and memory of a pod as kube-scheduler would reserve them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dynamig.bridge.needs import Needs, needs_of


def container(cpu: str = "0", memory: str = "0", **other: Any) -> Mapping[str, Any]:
    return {"resources": {"requests": {"cpu": cpu, "memory": memory}}, **other}


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ({"containers": [{}]}, Needs(1, 1)),
        ({"containers": [container("1500m", "1Gi"), container("200m", "1")]}, Needs(2, 1025)),
        ({"containers": [container("1")], "initContainers": [container("4", "3Gi")]}, Needs(4, 3072)),
        ({"containers": [container("2")], "initContainers": [container("1", restartPolicy="Always")]}, Needs(3, 1)),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("1", restartPolicy="Always"), container("3")],
            },
            Needs(4, 1),
        ),
        ({"containers": [container("1")], "overhead": {"cpu": "250m", "memory": "64Mi"}}, Needs(2, 64)),
        ({"containers": [container("8")], "resources": {"requests": {"cpu": "2"}}}, Needs(2, 1)),
    ],
)
def test_needs(spec: Mapping[str, Any], needs: Needs) -> None:
    assert needs_of(spec) == needs
