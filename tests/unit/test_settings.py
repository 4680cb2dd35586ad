"""Configuration files: every error at once, and YAML without its traps."""

from __future__ import annotations

import pytest
from pydantic import Field

from dynamig.driver.config import DriverConfig
from dynamig.errors import Refused
from dynamig.settings import Settings, parse


class Example(Settings):
    names: dict[str, str] = Field(default_factory=dict)
    by_index: dict[int, str] = Field(default_factory=dict)
    number: int = 0
    share: float = 0.0


def read(text: str) -> Example:
    return parse(text, Example, "here", "there")


def test_a_pci_bus_id_is_text() -> None:
    """PyYAML's 0000:07:00.0 is 420.0, a number to base 60."""
    assert read("names: {0000:07:00.0: 0000:0a:00.0}").names == {"0000:07:00.0": "0000:0a:00.0"}
    config = parse("nodeName: n1\ngpus: {byGpu: {0000:07:00.0: {policy: whole}}}", DriverConfig, "here", "there")
    assert set(config.gpus.by_gpu) == {"0000:07:00.0"}


def test_numbers_are_numbers() -> None:
    assert read("number: -12\nshare: 1.5\nby_index: {0: a, 10: b}") == Example(
        number=-12, share=1.5, by_index={0: "a", 10: "b"}
    )


@pytest.mark.parametrize("text", ["names: {a: x, a: y}", "number: 1\nnumber: 1", "by_index: {1: a, 1: b}"])
def test_a_key_given_twice_is_an_error(text: str) -> None:
    with pytest.raises(Refused, match="is given twice"):
        read(text)


def test_an_anchor_may_be_merged_and_overridden() -> None:
    text = "names: &common {a: x, b: y}\nby_index: {}\n"
    assert read(text).names == {"a": "x", "b": "y"}
    assert read("names: {<<: {a: x}, a: z}").names == {"a": "z"}


def test_every_error_with_its_place() -> None:
    with pytest.raises(Refused) as caught:
        read("number: many\ntypo: 1")
    assert caught.value.code == "BAD_CONFIG"
    assert "here: number: " in caught.value.what
    assert "typo: " in caught.value.what
