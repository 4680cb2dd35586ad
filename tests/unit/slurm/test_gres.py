"""GRES strings as slurmctld 26.05.5 wrote them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamig.protocol.slurm_jobs import SlurmGpu
from dynamig.slurm import gres


def test_kinds_are_counted_over_their_types() -> None:
    records = gres.parse("gpu:h100:2(S:0-1),gpu:a30:1,shard:h100:16,mig:7")
    assert (gres.total(records, "gpu"), gres.total(records, "shard"), gres.total(records, "mig")) == (3, 16, 7)


@pytest.mark.parametrize("nothing", ["", "(null)", "N/A"])
def test_a_node_without_gres_has_none(nothing: str) -> None:
    assert gres.parse(nothing) == ()


@pytest.mark.parametrize("text", ["gpu", "gpu:h100", "gpu:1,", "gpu:1;shard:2", "gpu:1(IDX:0", ",gpu:1", "gpu:1(a)b"])
def test_other_text_is_an_error_and_no_guess(text: str) -> None:
    with pytest.raises(ValueError, match="not a GRES string"):
        gres.parse(text)


@given(st.sets(st.integers(0, 30)))
def test_indices_read_what_a_list_of_ranges_says(wanted: set[int]) -> None:
    assert gres.indices(",".join(map(str, sorted(wanted)))) == wanted
    if wanted:
        assert gres.indices(f"{min(wanted)}-{max(wanted)}") == set(range(min(wanted), max(wanted) + 1))


@pytest.mark.parametrize(
    "kind", ["h100.80gb", "nvidia_h200_nvl_4g.71gb", "1g.10gb+me", "a100-sxm4", "amd~mi300/x@1", "no"]
)
def test_a_type_is_whatever_the_administrator_writes(kind: str) -> None:
    assert gres.parse(f"gpu:{kind}:2(S:0-1),shard:{kind}:14(S:0)") == (
        gres.Gres("gpu", kind, 2, "S:0-1"),
        gres.Gres("shard", kind, 14, "S:0"),
    )
    found = gres.gpus(f"gpu:{kind}:2,shard:{kind}:14", f"gpu:{kind}:1(IDX:0),shard:{kind}:3(-/7,3/7)")
    assert [(g.taken, g.free) for g in found] == [(True, 0), (False, 4)]


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [
        ("tmpdisk:1600G", "", 1600 * 2**30),
        ("bandwidth:lustre:no_consume:4G", "lustre", 4 * 2**30),
        ("bandwidth:no_consume:7", "", 7),
        ("licence:3P", "", 3 * 2**50),
        ("licence:no:3", "no", 3),
    ],
)
def test_other_gres_of_the_node_do_not_stop_us(text: str, kind: str, count: int) -> None:
    """`slurm.conf` lists them beside ours; Slurm's manual has the one with no_consume."""
    (record,) = gres.parse(text)
    assert (record.type, record.count) == (kind, count)
    assert len(gres.gpus(f"gpu:h100:2,{text},shard:14", "gpu:h100:0(IDX:N/A),shard:0(0/7,0/7)")) == 2


def test_many_shards_are_counted_in_units() -> None:
    assert gres.total(gres.parse("gpu:8,shard:1K"), "shard") == 1024


def test_what_is_free_on_each_gpu() -> None:
    found = gres.gpus("gpu:h100:3,shard:h100:24", "gpu:h100:1(IDX:1),shard:h100:2(2/8,-/8,0/8)")
    assert found == (SlurmGpu(0, 8, 2, False), SlurmGpu(1, 8, 0, True), SlurmGpu(2, 8, 0, False))
    assert [gpu.free for gpu in found] == [6, 0, 8]


def test_types_may_vanish_or_come_one_per_gpu() -> None:
    untyped = gres.gpus("gpu:2,shard:16", "gpu:0(IDX:N/A),shard:5(5/8,0/8)")
    assert [gpu.free for gpu in untyped] == [3, 8]
    typed = gres.gpus(
        "gpu:h100_0:1,gpu:h100_1:1,shard:h100_0:8,shard:h100_1:8",
        "gpu:h100_0:0(IDX:),gpu:h100_1:1(IDX:1),shard:h100_0:2(2/8,0/8),shard:h100_1:0(0/8,-/8)",
    )
    assert [(gpu.used, gpu.taken) for gpu in typed] == [(2, False), (0, True)]


def test_shards_that_are_only_counted_are_nobodys_to_give() -> None:
    (one, two) = gres.gpus("gpu:h100:2,shard:16", "gpu:h100:0,shard:2")
    assert (one.free, two.free) == (0, 0)


def test_shards_per_gpu_must_be_numbers() -> None:
    with pytest.raises(ValueError):
        gres.gpus("gpu:2", "shard:2(x/8,0/8)")
