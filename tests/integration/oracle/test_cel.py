"""Every selector, on every device: the same answer as Kubernetes' own CEL environment."""

from __future__ import annotations

from typing import Any

import pytest

from dynamig.dra import read_pools
from dynamig.dra.cel import CelError, Selector, compile_selector
from dynamig.dra.read import PublishedDevice
from dynamig.errors import Refused
from tests.integration.oracle.expressions import (
    DEVICES,
    DRIVER,
    ERROR_ON_EVERY_DEVICE,
    EXPRESSIONS,
    LENIENT,
    OURS_REFUSES,
)
from tests.integration.oracle.oracle import Oracle

Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def kubernetes(oracle: Oracle) -> Answers:
    """Expression -> what Kubernetes says: an error at compile time, or one result or error per device."""
    expressions = [*EXPRESSIONS, *ERROR_ON_EVERY_DEVICE, *LENIENT, *OURS_REFUSES]
    answer = oracle.run("cel", {"driver": DRIVER, "devices": DEVICES, "expressions": expressions}, "-")
    return {one["expression"]: one for one in answer["results"]}


@pytest.fixture(scope="module")
def devices() -> dict[str, PublishedDevice]:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "n", "pool": pool, "devices": list(DEVICES.values())}
    (read,) = read_pools([{"metadata": {"name": "s"}, "spec": spec}])
    return {device.name: device for device in read.devices}


def answer(selector: Selector, device: PublishedDevice) -> str:
    try:
        return str(selector.matches(DRIVER, device))
    except CelError:
        return "error"


def test_there_are_enough_of_them() -> None:
    assert len(EXPRESSIONS) == len(set(EXPRESSIONS)) >= 195


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_same_as_kubernetes(expression: str, kubernetes: Answers, devices: dict[str, PublishedDevice]) -> None:
    theirs = kubernetes[expression]
    if "compileError" in theirs:
        with pytest.raises(Refused) as caught:
            compile_selector(expression)
        assert caught.value.code == "BAD_SELECTOR", theirs["compileError"]
        return
    selector = compile_selector(expression)
    expected = {name: str(one.get("result", "error")) for name, one in theirs["devices"].items()}
    assert {name: answer(selector, device) for name, device in devices.items()} == expected


@pytest.mark.parametrize("expression", OURS_REFUSES)
def test_what_is_not_evaluated_is_refused_by_name(expression: str, kubernetes: Answers) -> None:
    assert "compileError" not in kubernetes[expression]
    with pytest.raises(Refused) as caught:
        compile_selector(expression)
    assert caught.value.code == "UNSUPPORTED_SELECTOR"
    assert f"`{expression}`" in caught.value.what


@pytest.mark.parametrize("expression", ERROR_ON_EVERY_DEVICE)
def test_what_cannot_be_a_program_fails_everywhere(
    expression: str, kubernetes: Answers, devices: dict[str, PublishedDevice]
) -> None:
    assert kubernetes[expression]["compileError"].startswith("program instantiation failed")
    selector = compile_selector(expression)
    assert {answer(selector, device) for device in devices.values()} == {"error"}


@pytest.mark.parametrize("expression", LENIENT)
def test_more_is_taken_than_the_api_server_would_store(expression: str, kubernetes: Answers) -> None:
    assert "expected type" in kubernetes[expression]["compileError"]
    compile_selector(expression)
