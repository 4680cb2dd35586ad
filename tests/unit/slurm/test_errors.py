"""Error numbers, not texts, decide what a caller may do."""

from __future__ import annotations

import pytest

from dynamig.errors import Conflict, DynamigError, Refused, Unavailable
from dynamig.slurm.errors import SlurmError, translated


@pytest.mark.parametrize(
    ("status", "number", "family", "code"),
    [
        (404, 2017, Refused, "NOT_FOUND"),
        (200, 2017, Refused, "NOT_FOUND"),
        (200, 2021, Conflict, "JOB_ENDED"),
        (422, 2084, Conflict, "JOB_ENDED"),
        (422, 2085, Conflict, "JOB_CHANGED"),
        (422, 2002, Refused, "SLURM_FORBIDDEN"),
        (422, 2010, Refused, "SLURM_FORBIDDEN"),
        (511, 1007, Refused, "SLURM_AUTH"),
        (401, 0, Refused, "SLURM_AUTH"),
        (422, 2014, Refused, "SLURM_2014"),
        (422, 2072, Refused, "SLURM_2072"),
        (422, 2007, Unavailable, "SLURM_UNAVAILABLE"),
        (502, 1800, Unavailable, "SLURM_UNAVAILABLE"),
        (500, 1000, Unavailable, "SLURM_UNAVAILABLE"),
        (500, -1, Unavailable, "SLURM_UNAVAILABLE"),
        (403, 1, Unavailable, "SLURM_UNAVAILABLE"),
        (502, 5005, Unavailable, "SLURM_UNAVAILABLE"),
    ],
)
def test_families(status: int, number: int, family: type[DynamigError], code: str) -> None:
    error = translated("job 7", status, [SlurmError(number, "words")])
    assert (type(error), error.code) == (family, code)
    assert "job 7" in error.what


def test_a_known_number_beats_one_that_says_nothing() -> None:
    both = [SlurmError(-1, "Unspecified error"), SlurmError(2018, "Invalid node name specified")]
    assert translated("x", 422, both).code == "SLURM_2018"


def test_no_error_in_a_failed_answer_is_not_a_success() -> None:
    assert isinstance(translated("x", 500, []), Unavailable)
