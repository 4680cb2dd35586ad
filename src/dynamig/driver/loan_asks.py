"""What Slurm's prolog and epilog ask a driver over its socket: `lend`, `give-back` and `map`.

lend       {"job": 7, "sluid": "s219M8M64JDA00", "restart": 0, "gpus": [0, 1], "wait": 45}
give-back  {"job": 7, "sluid": "s219M8M64JDA00", "restart": 0}, or {"job": 7, "all": true} by hand
map        {}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dynamig.driver.control import Ask, Caller
from dynamig.driver.lender import Lender
from dynamig.driver.recall import Recall
from dynamig.errors import Refused, Unavailable
from dynamig.protocol.device_map import map_to_json
from dynamig.protocol.loans import Borrower, Loan, loan_to_json

T = TypeVar("T")


def loan_asks(lender: Lender, recall: Recall, monotonic: Callable[[], float]) -> Mapping[str, Ask]:
    """`monotonic`: the lender's clock."""

    def lend(args: Mapping[str, Any], caller: Caller) -> None:
        indices = _field(args, "gpus", _indices)
        deadline = monotonic() + _field(args, "wait", float)
        borrower = _borrower(args)
        try:
            with lender.lending(borrower, indices, deadline=deadline, is_there=caller.is_there) as loans:
                caller.deliver(_loans(loans))
        except Unavailable:
            recall.note(borrower, indices)
            raise
        recall.forget(borrower.job_id)

    def give_back(args: Mapping[str, Any], caller: Caller) -> Sequence[Mapping[str, Any]]:
        if args.get("all") is True:
            return _loans(lender.give_back_all(_field(args, "job", int)))
        return _loans(lender.give_back(_borrower(args)))

    def show_map(args: Mapping[str, Any], caller: Caller) -> Mapping[str, Any]:
        if lender.device_map is None:
            raise Unavailable(
                "NO_MAP", f"there is no device map: {lender.map_trouble.what}", "docs/reference/slurm-prolog.md"
            )
        shards = list(lender.shard_lines())
        return {**map_to_json(lender.device_map), "trouble": lender.map_trouble.what, "gresConf": shards}

    return {"lend": lend, "give-back": give_back, "map": show_map}


def _borrower(args: Mapping[str, Any]) -> Borrower:
    return Borrower(_field(args, "job", int), _field(args, "sluid", str), _field(args, "restart", int))


def _indices(value: Any) -> frozenset[int]:
    if not isinstance(value, list) or not value:
        raise ValueError("no list of indices")
    return frozenset(int(index) for index in value)


def _field(args: Mapping[str, Any], key: str, read: Callable[[Any], T]) -> T:
    """Raises Refused INVALID naming the argument."""
    try:
        return read(args[key])
    except (KeyError, ValueError, TypeError) as error:
        raise Refused(
            "INVALID", f"argument {key} is missing or wrong: {error}", "see `dynamig driver --help`"
        ) from error


def _loans(loans: Sequence[Loan]) -> Sequence[Mapping[str, Any]]:
    return [loan_to_json(loan) for loan in loans]
