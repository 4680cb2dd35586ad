"""Whose money: who pays in Slurm for a pod, and what the pod itself may choose. Pure.

An administrator's map says it for namespaces and service accounts. A pod's annotations choose inside what the map
allows, and may lower the job's priority; whatever else they say is refused in words that name what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dynamig.protocol import names

PREFIX: Final = "dynamig.io/"
NICEST: Final = 2_147_483_645
"""The greatest nice that Slurm takes. Source: NICE_OFFSET of slurm.h, sbatch(1) --nice."""

_TIME = re.compile(r"(?:(?P<days>\d{1,6})-)?(?P<first>\d{1,9})(?::(?P<second>\d{1,9}))?(?::(?P<third>\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class Terms:
    """One entry of the map. The first partition and the first QOS are taken where a pod does not choose; no QOS at all
    is Slurm's default for the account. `minutes`: limit of a job without its own; `most`: of any job; None: the
    partition's."""

    user: str
    account: str
    partitions: tuple[str, ...]
    qos: tuple[str, ...] = ()
    minutes: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What a pod says that matters for its job. `words`: its annotations under dynamig.io/; `deadline`:
    activeDeadlineSeconds."""

    namespace: str
    service_account: str
    words: Mapping[str, str]
    deadline: int | None


@dataclass(frozen=True, slots=True)
class Payment:
    """As whom and how a pod's jobs are submitted. `minutes`: None for the partition's limit; `nice`: never negative."""

    user: str
    account: str
    partition: str
    qos: str = ""
    minutes: int | None = None
    nice: int = 0


@dataclass(frozen=True, slots=True)
class NotPayable:
    """Nobody pays for the pod as it is: a word for programs, and all that is wrong in words for its user."""

    reason: str
    why: str


@dataclass(frozen=True, slots=True)
class Accounts:
    """The map. `entries`: by `namespace`, or `namespace/service account`, which counts more; `default`: for all
    others, None if nobody pays for them."""

    entries: Mapping[str, Terms]
    default: Terms | None = None

    def payment(self, wish: Wish) -> Payment | NotPayable:
        account = f"{wish.namespace}/{wish.service_account}"
        terms = self.entries.get(account) or self.entries.get(wish.namespace) or self.default
        if terms is None:
            return NotPayable(
                "NoAccount",
                f"no Slurm account pays for service account {wish.service_account} of namespace {wish.namespace}: the"
                f" bridge's configuration has neither accounts.{wish.namespace} nor defaultAccount",
            )
        return _payment(wish, terms)


def read_wish(pod: Mapping[str, Any]) -> Wish:
    """Of one API object."""
    meta, spec = pod["metadata"], pod["spec"]
    words = {k: str(v) for k, v in (meta.get("annotations") or {}).items() if k.startswith(PREFIX)}
    return Wish(
        namespace=meta["namespace"],
        service_account=spec.get("serviceAccountName") or "default",
        words=words,
        deadline=spec.get("activeDeadlineSeconds"),
    )


def _payment(wish: Wish, terms: Terms) -> Payment | NotPayable:
    """Everything that is wrong is told at once."""
    wrong = [
        f"annotation {word} means nothing here, known are {', '.join(names.POD_WORDS)}"
        for word in sorted(set(wish.words) - set(names.POD_WORDS))
    ]
    payment = Payment(
        user=terms.user,
        account=terms.account,
        partition=_chosen(wish, names.PARTITION, terms.partitions, wrong),
        qos=_chosen(wish, names.QOS, terms.qos, wrong),
        minutes=_minutes(wish, terms, wrong),
        nice=_nice(wish, wrong),
    )
    return NotPayable("NotAllowed", "; ".join(wrong)) if wrong else payment


def _chosen(wish: Wish, word: str, allowed: Sequence[str], wrong: list[str]) -> str:
    """The pod's choice, else the first one allowed."""
    choice = wish.words.get(word)
    if choice is None:
        return allowed[0] if allowed else ""
    if choice not in allowed:
        what = f"one of {', '.join(allowed)}" if allowed else "nothing: leave it out"
        wrong.append(f"annotation {word} is {choice!r}, allowed is {what}")
    return choice


def _minutes(wish: Wish, terms: Terms, wrong: list[str]) -> int | None:
    """The job's limit: what the pod asks for, at least its activeDeadlineSeconds; else the map's."""
    deadline = None if wish.deadline is None else _minutes_of(wish.deadline)
    text = wish.words.get(names.TIME_LIMIT)
    asked = deadline if text is None else read_minutes(text)
    if text is not None and asked is None:
        wrong.append(f"annotation {names.TIME_LIMIT} is {text!r}, not a time as sbatch takes it (90, 1:30:00, 2-12)")
    elif asked is not None and terms.most is not None and asked > terms.most:
        name = "activeDeadlineSeconds" if text is None else f"annotation {names.TIME_LIMIT}"
        wrong.append(f"{name} asks for {asked} minutes, at most {terms.most} are allowed")
    elif asked is not None and deadline is not None and asked < deadline:
        wrong.append(f"annotation {names.TIME_LIMIT} is {asked} minutes, less than activeDeadlineSeconds ({deadline})")
    return asked or terms.minutes or terms.most


def _nice(wish: Wish, wrong: list[str]) -> int:
    text = wish.words.get(names.NICE, "0")
    if re.fullmatch(r"[0-9]{1,10}", text) and int(text) <= NICEST:
        return int(text)
    wrong.append(f"annotation {names.NICE} is {text!r}, allowed is 0 to {NICEST}: priority may be lowered only")
    return 0


def read_minutes(text: str) -> int | None:
    """A time limit as sbatch takes it, rounded up to minutes: `minutes`, `minutes:seconds`, `hours:minutes:seconds`,
    `days-hours`, `days-hours:minutes`, `days-hours:minutes:seconds`. None for anything else, and for nothing at all,
    which to Slurm is no limit. Source: sbatch(1) --time."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    first, second, third = (int(found[part] or 0) for part in ("first", "second", "third"))
    if found["days"] is not None:
        seconds = int(found["days"]) * 86400 + first * 3600 + second * 60 + third
    elif found["third"] is not None:
        seconds = first * 3600 + second * 60 + third
    else:
        seconds = first * 60 + second
    return _minutes_of(seconds) or None


def _minutes_of(seconds: int) -> int:
    return -(-seconds // 60)
