"""The picture and the table: within the terminal's width, whole without one."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from dynamig.cli.output import PIPE_WIDTH, Page
from examples.demo.checks import all_checks
from examples.demo.evidence import Check
from examples.demo.picture import picture
from examples.demo.screen import Screen, queue_table, table
from tests.unit.examples.world import books, evidence, full


def console(width: int) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=width, color_system=None), text


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_picture_fits_and_has_every_pod_and_native_job(width: int) -> None:
    now = full().api
    to, text = console(width)
    to.print(picture(now, Page(width, False), width))
    lines = text.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= 23, "a terminal of usual height shows it whole"
    assert not any("■ notebook" in line and "inference" not in line for line in lines[:5]), "names stand beside bars"
    for name in (*(pod.name for pod in now.pods), "train", "simulate", "evaluate"):
        assert any(name in line for line in lines)


def test_the_picture_says_who_waits_and_what_slurm_says() -> None:
    to, text = console(100)
    to.print(picture(full().api, Page(100, False), 100))
    for name, job in (("pipeline", 7), ("evaluate", 8)):
        (line,) = [line for line in text.getvalue().splitlines() if line.startswith(f"□ {name}")]
        assert "waits" in line.split()
        assert line.rstrip().endswith(f"job {job}: Resources")


def test_bars_name_who_has_a_gpu_whole() -> None:
    to, text = console(PIPE_WIDTH)
    screen = Screen(to)
    screen.show(full().api)
    screen.act(2, "Another", "Something happens.")
    first, *_ = text.getvalue().splitlines()
    assert "Slurm job 1▒" in first
    assert first.rstrip().endswith("■\u00a0train")


ROWS = [["3", "slurm", "dynamig-hold", "RUNNING", "n2", f"Kubernetes pod a/b: 1g.10gb at 4 of GPU-x MIG-{'7' * 36}"]]


def test_squeues_words_stand_beside_or_below() -> None:
    for wide, count in ((True, 2), (False, 3)):
        to, text = console(160 if wide else 80)
        to.print(queue_table(ROWS, wide=wide))
        lines = text.getvalue().splitlines()
        assert len(lines) == count if wide else len(lines) >= count
        assert " ".join(" ".join(lines).split()).endswith(ROWS[0][-1])


def test_the_table_in_a_pipe_has_one_line_for_each_check() -> None:
    to, text = console(PIPE_WIDTH)
    checks = all_checks(evidence())
    to.print(table(checks, wide=True))
    head, *rows = text.getvalue().splitlines()
    assert head.split() == ["CHECK", "ASKED", "SEEN"]
    assert len(rows) == len(checks)
    assert all(row.startswith("pass") and check.seen in row for row, check in zip(rows, checks, strict=True))


def test_the_verdict_counts_what_failed() -> None:
    to, text = console(PIPE_WIDTH)
    Screen(to).verdict([Check("a", "s", "x", True), Check("b", "s", "y", False)])
    assert "1 of 2 checks FAILED" in text.getvalue()
    assert "FAIL  b" in text.getvalue()


def test_lines_without_a_terminal_are_timestamped_and_whole() -> None:
    to, text = console(PIPE_WIDTH)
    screen = Screen(to)
    screen.show(books())
    with screen.live():
        screen.show(books(("notebook",)))
    cut = [line for line in text.getvalue().splitlines() if "is cut for notebook" in line]
    assert len(cut) == 1
    assert cut[0].split()[1] == "s"
    assert cut[0].rstrip().endswith("MIG-n2/gpu-0-gpu-0-mig-1g10gb-19-4")


@pytest.mark.parametrize("width", [80, 120])
def test_no_uuid_is_broken_by_the_end_of_a_line(width: int) -> None:
    uuid = "MIG-6708aee0-8cc9-5500-ae99-4bd150dc12d5"
    to, text = console(width)
    checks = [Check(c.claims, c.sources, f"{uuid} on n1/gpu-0, memory slice 6", True) for c in all_checks(evidence())]
    Screen(to).verdict(checks)
    Screen(to).line(f"n1/gpu-0, memory slices 4-7: 3g.40gb is cut for inference: {uuid}")
    assert text.getvalue().count(uuid) == len(checks) + 1
