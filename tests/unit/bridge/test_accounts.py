"""Who pays: the map, what a pod may choose inside it, and how every refusal names what is allowed."""

from __future__ import annotations

import pytest

from dynamig.bridge.accounts import NICEST, Accounts, NotPayable, Payment, Terms, Wish, read_minutes, read_wish
from dynamig.protocol import names

TEAM = Terms("alice", "team-a", ("gpu", "low"), ("normal", "scavenger"), minutes=60, most=720)
OPEN = Terms("bob", "team-b", ("gpu",))
MAP = Accounts({"team-a": TEAM, "team-b": OPEN, "team-a/trainer": Terms("trainer", "big", ("big",), (), None, 90)})


def wish(namespace: str = "team-a", service_account: str = "default", deadline: int | None = None) -> Wish:
    return Wish(namespace, service_account, {}, deadline)


def choosing(deadline: int | None = None, **words: str) -> Wish:
    """A pod of team-a with these annotations under dynamig.io/."""
    named = {f"dynamig.io/{word.replace('_', '-')}": value for word, value in words.items()}
    return Wish("team-a", "default", named, deadline)


def refused(of: Wish, accounts: Accounts = MAP) -> str:
    answer = accounts.payment(of)
    assert isinstance(answer, NotPayable)
    return answer.why


def paid(of: Wish, accounts: Accounts = MAP) -> Payment:
    answer = accounts.payment(of)
    assert isinstance(answer, Payment), answer
    return answer


def test_the_service_account_counts_before_the_namespace_and_that_before_the_default() -> None:
    with_default = Accounts(MAP.entries, Terms("guest", "", ("guests",)))
    assert paid(wish(service_account="trainer"), with_default).user == "trainer"
    assert paid(wish(), with_default).user == "alice"
    assert paid(wish("elsewhere"), with_default) == Payment("guest", "", "guests")
    why = refused(wish("elsewhere"))
    assert "accounts.elsewhere" in why
    assert "defaultAccount" in why


def test_without_a_choice_the_first_of_everything_and_the_default_limit() -> None:
    assert paid(wish()) == Payment("alice", "team-a", "gpu", "normal", 60, 0)


def test_a_choice_inside_the_map() -> None:
    chosen = paid(choosing(partition="low", qos="scavenger", time_limit="2:00:00", nice="50"))
    assert chosen == Payment("alice", "team-a", "low", "scavenger", 120, 50)


@pytest.mark.parametrize(
    ("word", "value", "allowed"),
    [
        ("partition", "debug", "gpu, low"),
        ("partition", "", "gpu, low"),
        ("qos", "high", "normal, scavenger"),
        ("time_limit", "13:00:00", "at most 720"),
        ("time_limit", "0", "sbatch"),
        ("time_limit", "forever", "sbatch"),
        ("nice", "-1", "lowered only"),
        ("nice", str(NICEST + 1), "lowered only"),
        ("nice", "1.5", "lowered only"),
        ("account", "other", "dynamig.io/partition"),
        ("user", "root", "dynamig.io/partition"),
        ("priority", "9", "dynamig.io/partition"),
    ],
)
def test_anything_else_is_refused_naming_what_is_allowed(word: str, value: str, allowed: str) -> None:
    why = refused(choosing(None, **{word: value}))
    assert f"dynamig.io/{word.replace('_', '-')}" in why
    assert allowed in why


def test_an_entry_without_qos_takes_none() -> None:
    assert "leave it out" in refused(Wish("team-b", "default", {names.QOS: "normal"}, None))


def test_all_that_is_wrong_is_told_at_once() -> None:
    why = refused(choosing(partition="x", qos="y", time_limit="z", nice="n", gres="gpu:1"))
    for word in ("partition", "qos", "time-limit", "nice", "gres"):
        assert f"dynamig.io/{word} " in why


@pytest.mark.parametrize(
    ("namespace", "account", "deadline", "minutes"),
    [
        ("team-a", "default", None, 60),  # the map's default
        ("team-a", "trainer", None, 90),  # no default: the maximum, not the partition's limit, which may be more
        ("team-b", "default", None, None),  # neither: the partition's limit, which the adapter asks for
        ("team-a", "default", 600, 10),  # a pod with a deadline says itself how long it lasts
        ("team-a", "default", 601, 11),
        ("team-a", "default", 720 * 60, 720),
        ("team-b", "default", 1, 1),
    ],
)
def test_the_time_limit(namespace: str, account: str, deadline: int | None, minutes: int | None) -> None:
    assert paid(wish(namespace, account, deadline)).minutes == minutes


def test_a_deadline_above_the_maximum_and_one_that_the_limit_does_not_cover() -> None:
    assert "activeDeadlineSeconds asks for 721 minutes, at most 720" in refused(wish(deadline=720 * 60 + 1))
    assert paid(choosing(600, time_limit="30")).minutes == 30
    assert "less than activeDeadlineSeconds" in refused(choosing(3600, time_limit="30"))


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90),
        ("1:30", 2),
        ("1:30:00", 90),
        ("0:0:1", 1),
        ("2-0", 2880),
        ("1-2:30", 1590),
        ("1-0:0:1", 1441),
        ("0", None),
        ("0:0", None),
        ("", None),
        ("-5", None),
        ("1:2:3:4", None),
        ("1h", None),
        (" 5", None),
        ("UNLIMITED", None),
    ],
)
def test_times_as_sbatch_takes_them(text: str, minutes: int | None) -> None:
    assert read_minutes(text) == minutes


def test_what_a_pod_says() -> None:
    pod = {
        "metadata": {"namespace": "ns", "annotations": {names.QOS: "low", "other.io/qos": "high"}},
        "spec": {"activeDeadlineSeconds": 5},
    }
    assert read_wish(pod) == Wish("ns", "default", {names.QOS: "low"}, 5)
    named = {"metadata": {"namespace": "ns"}, "spec": {"serviceAccountName": "trainer"}}
    assert read_wish(named) == Wish("ns", "trainer", {}, None)
