"""What is computed once, and what is not."""

from __future__ import annotations

from collections.abc import Callable

from dynamig.bridge.by_identity import by_identity


def counted(keep: int) -> tuple[list[dict[str, int]], Callable[[dict[str, int]], int]]:
    calls: list[dict[str, int]] = []

    @by_identity(keep)
    def total(amounts: dict[str, int]) -> int:
        calls.append(amounts)
        return sum(amounts.values())

    return calls, total


def test_the_same_object_is_asked_about_once_and_an_equal_one_again() -> None:
    calls, total = counted(keep=4)
    one, equal = {"a": 1}, {"a": 1}
    assert [total(one), total(one), total(equal), total(one)] == [1, 1, 1, 1]
    assert [c is one for c in calls] == [True, False]


def test_an_object_that_is_gone_is_never_taken_for_a_new_one_at_its_place() -> None:
    _, total = counted(keep=1)
    assert [total({"a": n}) for n in range(100)] == list(range(100))


def test_the_order_of_several_objects_counts() -> None:
    @by_identity(keep=4)
    def joined(*parts: list[str]) -> str:
        return "".join(text for part in parts for text in part)

    one, other = ["a"], ["b"]
    assert (joined(one, other), joined(other, one), joined(one)) == ("ab", "ba", "a")
