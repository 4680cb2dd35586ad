"""However the demo ends by somebody's hand, it tidies up; where it is stuck, it leaves what there is to look at."""

from __future__ import annotations

import io
from typing import cast

import pytest
from rich.console import Console

from dynamig.errors import Unavailable
from examples.demo.__main__ import checks_of
from examples.demo.screen import Screen
from examples.demo.stage import Stage


class Ends:
    """A stage on which the story ends before it begins."""

    def __init__(self, by: BaseException) -> None:
        self._by = by
        self.tidied = 0

    def tidy(self) -> None:
        self.tidied += 1

    def need_empty_gpus(self) -> None:
        raise self._by


@pytest.mark.parametrize(("by", "tidied"), [(KeyboardInterrupt(), 2), (Unavailable("DEMO_STUCK", "pod"), 1)])
def test_ctrl_c_tidies_and_a_failure_does_not(by: BaseException, tidied: int) -> None:
    stage = Ends(by)
    with pytest.raises(type(by)):
        checks_of(cast(Stage, stage), Screen(Console(file=io.StringIO())))
    assert stage.tidied == tidied
