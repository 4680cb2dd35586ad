"""Bars and columns: right in a narrow and in a wide terminal, whole in a pipe."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from dynamig.cli import draw, table, words
from dynamig.cli.nodes import NodeTrouble
from dynamig.cli.output import PIPE_WIDTH, Page
from dynamig.cli.view import GpuView, gpu_views
from dynamig.dra import Pool
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.loans import Borrower, Loan
from tests.unit.cli.cluster import Object, claim, device, in_the_way, pool, ready, slices

PIPE = Page(width=None, colour=False)
A, B = pool("n1", 0), pool("n1", 1)
UUID = "MIG-6708aee0-8cc9-5500-ae99-4bd150dc12d5"


def printed(drawn: RenderableType, width: int = PIPE_WIDTH, *, colour: bool = False) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=colour, color_system="256" if colour else None)
    console.print(drawn, soft_wrap=isinstance(drawn, Text))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def held(name: str, part: str, among: Pool = A, *, pods: Sequence[str] = ()) -> Object:
    devices = [(among, device(part, among))]
    made = ready(claim(name, devices, pods=pods), devices)
    for entry in made["status"]["devices"]:
        entry["data"]["uuid"] = UUID
    return made


def full(among: Pool) -> Object:
    devices = [(among, among.full_gpu)]
    return ready(claim("c", devices), devices)


def cluster() -> tuple[GpuView, ...]:
    return gpu_views(
        slices(A) + slices(B),
        [
            held("notebook-gpu-x7k2p", "1g10gb-19-6", pods=["notebook"]),
            held("inference-gpu-b9d4q", "3g40gb-9-0", pods=["inference"]),
            held("team", "gpu-1", B, pods=["team-alice", "team-bob"]),
        ],
    )


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_bars_fit_the_terminal(width: int) -> None:
    lines = printed(draw.gpus(cluster(), Page(width, False)), width)
    assert max(map(cell_len, lines)) <= width


def test_a_bar_at_eighty_columns() -> None:
    lines = printed(draw.gpus(cluster(), Page(80, False)), 80)
    assert lines[:3] == [
        "n1  NVIDIA H100 80GB HBM3",
        "  gpu-0  3g.40gb━━━━━━━━ ··· ··· 1g━ ---  ■ ml/inference 3g.40gb",
        "                                          ■ ml/notebook 1g.10gb",
    ]


def test_a_wide_terminal_has_room_for_the_whole_profile() -> None:
    (line,) = [text for text in printed(draw.gpus(cluster(), Page(160, False)), 160) if "gpu-0" in text]
    assert "1g.10gb" in line.split("■")[0]


def test_the_full_gpu_is_one_block_over_all_slices() -> None:
    views = gpu_views(slices(A), [full(A)])
    assert draw.bar(views[0], 3, {}).plain == "whole" + "━" * 26


def test_a_gpu_without_slices_is_drawn_whole() -> None:
    plain = pool(geometry=None)
    free, taken = (gpu_views(slices(plain), c)[0] for c in ([], [full(plain)]))
    assert draw.bar(free, 3, {}).plain == "·" * 31
    assert draw.bar(taken, 3, {}).plain == "whole" + "━" * 26


def test_what_is_withdrawn_is_crossed_and_explained() -> None:
    foreign = pool(taints=in_the_way({6}, A))
    (view,) = gpu_views(slices(foreign), [])
    assert draw.bar(view, 3, {}).plain == "··· ··· ··· ··· ··· ··· ××× ×××"
    assert any("instance of unknown owner" in line for line in printed(draw.legend(view, {})))


def test_a_problem_is_told() -> None:
    (view,) = gpu_views(slices(A)[1:], [])
    assert printed(draw.legend(view, {})) == ["! 1 slices seen, 2 announced"]


def test_a_holder_that_is_not_ready_has_its_state_behind_it() -> None:
    (view,) = gpu_views(slices(A), [claim("c", [(A, device("1g10gb-19-6", A))], pods=["p"])])
    assert printed(draw.legend(view, {})) == ["■ ml/p 1g.10gb (allocated)"]


def test_a_claim_with_several_devices_has_one_line() -> None:
    both = [(A, device("1g10gb-19-6", A)), (A, device("3g40gb-9-0", A))]
    (view,) = gpu_views(slices(A), [ready(claim("c", both, pods=["p"]), both)])
    assert printed(draw.legend(view, {})) == ["■ ml/p 3g.40gb, 1g.10gb"]


@pytest.mark.parametrize(
    ("width", "label"), [(10, "1g.10gb+me"), (9, "1g+me"), (5, "1g+me"), (4, "1g"), (2, "1g"), (1, "1")]
)
def test_a_label_says_as_much_as_fits(width: int, label: str) -> None:
    (view,) = gpu_views(slices(A), [claim("c", [(A, device("1g10gb-me", A))])])
    assert draw._label(view.holdings[0], width) == label


def test_neighbours_on_a_gpu_have_different_colours() -> None:
    places = ["1g10gb-19-0", "1g10gb-19-1", "1g10gb-19-2", "1g10gb-19-3", "1g10gb-19-4", "1g10gb-19-5", "1g10gb-19-6"]
    views = gpu_views(slices(A), [held(f"c{i}", place) for i, place in enumerate(places)])
    palette = words.colours(views)
    assert len(set(palette.values())) == 7


def test_a_claim_keeps_its_colour_when_another_comes() -> None:
    one = gpu_views(slices(A), [held("a", "1g10gb-19-0")])
    two = gpu_views(slices(A), [held("a", "1g10gb-19-0"), held("b", "1g10gb-19-5")])
    assert words.colours(two)["ml", "a"] == words.colours(one)["ml", "a"]


def test_a_pipe_has_one_line_for_each_gpu_and_countable_columns() -> None:
    head, *rows = printed(draw.gpus(cluster(), PIPE))
    assert len(rows) == 2
    columns = head.split()
    for row in rows:
        assert len(row.split(None, len(columns) - 1)) == len(columns)
    assert rows[0].split()[:4] == ["n1/gpu-0", "4-5", "7", "-"]
    assert rows[0].split()[-1] == "ml/inference:3g.40gb,ml/notebook:1g.10gb"


def test_a_pipe_tells_withdrawn_and_problem_in_one_word() -> None:
    foreign = pool(taints=in_the_way({0}, A))
    _, row = printed(draw.gpus(gpu_views(slices(foreign)[1:], []), PIPE))
    assert (row.split()[3], row.split()[6]) == ("0", "1_slices_seen,_2_announced")


def test_holdings_in_a_pipe_are_never_cut() -> None:
    long = "a-pod-with-a-name-as-long-as-kubernetes-lets-people-give-to-one-" + "x" * 180
    views = gpu_views(slices(A), [held("c" * 200, "1g10gb-19-6", pods=[long])])
    head, row = printed(table.holdings(views, (), PIPE))
    assert head.split() == [
        "NAMESPACE",
        "POD",
        "CLAIM",
        "GPU",
        "PROFILE",
        "SLICES",
        "STATE",
        "UUID",
        "DEVICE",
        "SLURM-JOB",
        "REASON",
    ]
    assert row.split() == [
        "ml", long, "c" * 200, "n1/gpu-0", "1g.10gb", "6", "ready", UUID, "gpu-0-mig-1g10gb-19-6", "-", "-",
    ]  # fmt: skip


def test_holdings_take_two_lines_where_one_is_too_narrow() -> None:
    lines = printed(table.holdings(cluster(), (), Page(80, False)), 80)
    assert lines[:3] == [
        "POD                     GPU       PROFILE  SLICES  JOB  STATE",
        "ml/inference            n1/gpu-0  3g.40gb  0-3     -    ready",
        f"  {UUID}",
    ]
    assert max(map(cell_len, lines)) <= 80


def test_holdings_take_one_line_where_there_is_room() -> None:
    lines = printed(table.holdings(cluster(), (), Page(200, False)), 200)
    assert len(lines) == 4
    assert all(UUID in line for line in lines[1:])


def test_a_failure_is_shown_with_its_reason_in_every_width() -> None:
    failed = claim("c", [(A, device("1g10gb-19-6", A))])
    condition = {"type": "Prepared", "status": "False", "message": "a client\nholds it"}
    failed["status"]["devices"] = [
        {"driver": "gpu.nvidia.com", "pool": A.name, "device": "gpu-0-mig-1g10gb-19-6", "conditions": [condition]}
    ]
    views = gpu_views(slices(A), [failed])
    for page in (PIPE, Page(80, False), Page(200, False)):
        told = "a_client_holds_it" if page is PIPE else "a client holds it"
        assert any(told in line for line in printed(table.holdings(views, (), page), page.width or PIPE_WIDTH))


@pytest.mark.parametrize(
    ("slices", "text"), [((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((0, 1, 4, 6, 7), "0-1,4,6-7")]
)
def test_ranges(slices: tuple[int, ...], text: str) -> None:
    assert words.ranges(slices) == text


def test_colour_marks_blocks_instead_of_lines() -> None:
    lines = printed(draw.gpus(cluster(), Page(80, True)), 80, colour=True)
    assert not any("━" in line for line in lines)


@pytest.mark.parametrize("width", [24, 40, 60])
def test_names_are_whole_in_a_narrow_terminal(width: int) -> None:
    lines = printed(draw.gpus(cluster(), Page(width, False)), width)
    assert max(map(cell_len, lines)) <= width
    for name in ("ml/inference", "ml/notebook", "ml/team-alice,"):
        assert any(name in line for line in lines)


def test_a_block_tells_its_state_without_colours() -> None:
    failed = claim("c", [(A, device("3g40gb-9-0", A))])
    entry = {"driver": "gpu.nvidia.com", "pool": A.name, "device": "gpu-0-mig-3g40gb-9-0"}
    condition = {"type": "Prepared", "status": "False", "message": "a client holds it " * 20}
    failed["status"]["devices"] = [entry | {"conditions": [condition]}]
    leaving = held("d", "3g40gb-9-4")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    (view,) = gpu_views(slices(A), [failed, leaving])
    assert draw.bar(view, 3, {}).plain == "3g.40gb!!!!!!!! 3g.40gb<<<<<<<<"
    palette = words.colours([view])
    assert draw.bar(view, 3, palette).plain == "3g.40gb!!!!!!!! 3g.40gb<<<<<<<<"
    told = " ".join(printed(draw.legend(view, {})))
    assert "(failed: a client holds it" in told
    assert told.count("a client") < 5, "a long reason is shortened"
    assert "see dynamig ps" in told


def test_no_cell_of_a_pipe_has_blanks_and_no_line_ends_with_one() -> None:
    views = [*cluster(), *gpu_views(slices(pool("n2", 0))[1:], [held("x" * 100, "gpu-0", pool("n2", 0))])]
    for drawn in (draw.gpus(views, PIPE), table.holdings(views, (), PIPE)):
        assert isinstance(drawn, Text)
        lines = drawn.plain.splitlines()
        assert {len(line.split()) for line in lines} == {len(lines[0].split())}
        assert all(line == line.rstrip() for line in lines)


def test_the_last_column_is_not_padded() -> None:
    """Rows of GPUs that nobody holds do not grow with the longest list of holders."""
    lines = printed(draw.gpus([*cluster(), *gpu_views(slices(pool("n2", 0), node="n2"), [])], PIPE))
    assert len(lines[-1]) < len(lines[1])


def test_a_silent_driver_stands_in_the_title_and_in_every_row_of_a_pipe() -> None:
    views = [replace(v, trouble=NodeTrouble("driver silent since 12:00:00")) for v in cluster()]
    title = printed(draw.gpus(views, Page(80, False)), 80)[0]
    assert title == "n1  NVIDIA H100 80GB HBM3  ! driver silent since 12:00:00"
    assert all("driver_silent_since_12:00:00" in row for row in printed(draw.gpus(views, PIPE))[1:])


def test_a_gpu_that_is_not_published_is_not_drawn_free() -> None:
    note = '{"devices": [{"pool": "n1/gpu-0", "device": "d", "gpu": "GPU-n1-0"}]}'
    leaving = claim("c", [], finalizers=[names.HELD], annotations={names.HOLD: note, names.NODE: "n1"})
    lines = printed(draw.gpus(gpu_views([], [leaving]), Page(80, False)), 80)
    assert draw.FREE not in "".join(lines)
    assert any("unknown" in line for line in lines)


LOAN = Loan(GpuUuid("GPU-n1-0"), Borrower(12, "s1", 0), 1_772_625_600.0)


def shared_and_lent() -> tuple[GpuView, ...]:
    """gpu-0 has a native job, gpu-1 a pod for which Slurm job 14 pays."""
    lent, shared = gpu_views(slices(A) + slices(B), [held("team", "3g40gb-9-0", B, pods=["notebook"])])
    paid = tuple(replace(h, job=14) for h in shared.holdings)
    return replace(lent, loan=LOAN, free=()), replace(shared, holdings=paid)


@pytest.mark.parametrize("width", [24, 60, 80, 160])
def test_a_lent_gpu_is_one_block_with_its_job_and_fits(width: int) -> None:
    lines = printed(draw.gpus(shared_and_lent(), Page(width, False)), width)
    assert max(map(cell_len, lines)) <= width
    (bar,) = [line for line in lines if draw.NATIVE_FILL in line]
    assert "job 12" in bar
    assert " ".join(" ".join(lines).split()).count("Slurm job 12, since 20") == 1


def test_native_jobs_have_a_colour_that_no_claim_has() -> None:
    shades = words.palette(shared_and_lent(), colour=True)
    assert shades[words.LENT] not in words.COLOURS
    bar = draw.bar(shared_and_lent()[0], 3, shades)
    assert bar.plain.strip() == "Slurm job 12"
    assert str(bar.style) == f"black on {shades[words.LENT]}"


def test_nobody_gets_anything_of_a_lent_gpu() -> None:
    lent = shared_and_lent()[0]
    assert (lent.free, lent.unusable, lent.whole_is_free) == ((), (), False)
    without_mig = gpu_views(slices(pool(geometry=None)), [])[0]
    assert without_mig.whole_is_free
    assert not replace(without_mig, loan=LOAN).whole_is_free


def test_a_claim_on_a_lent_gpu_is_told_beside_the_loan() -> None:
    waits = gpu_views(slices(A), [claim("c", [(A, device("1g10gb-19-6", A))], pods=["p"])])[0]
    lines = printed(draw.legend(replace(waits, loan=LOAN), {}))
    assert lines[0].startswith("■ Slurm job 12, since ")
    assert lines[1] == "■ ml/p 1g.10gb (allocated)"


def test_the_paying_job_stands_behind_its_pod() -> None:
    assert printed(draw.legend(shared_and_lent()[1], {})) == ["■ ml/notebook 3g.40gb, Slurm job 14"]
    _, lent, shared = printed(draw.gpus(shared_and_lent(), PIPE))
    assert lent.split()[-2:] == ["Slurm_job_12", "-"]
    assert shared.split()[-2:] == ["-", "ml/notebook:3g.40gb@14"]
    for page in (PIPE, Page(80, False)):
        head, *rows = printed(table.holdings(shared_and_lent(), (), page), page.width or PIPE_WIDTH)
        column = [word.removeprefix("SLURM-") for word in head.split()].index("JOB")
        assert rows[0].split()[column] == "14"
