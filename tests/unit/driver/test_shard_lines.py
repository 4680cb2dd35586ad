"""What `dynamig driver map` says for gres.conf."""

from __future__ import annotations

from collections.abc import Sequence

from dynamig.driver.catalog import build
from dynamig.driver.config import GpuPolicies, GpuPolicy, Policy
from dynamig.driver.shard_lines import shard_lines
from dynamig.protocol.device_map import DeviceMap, Given, Source, make_map
from dynamig.protocol.gpus import GpuReading, MigMode
from tests.unit.driver.bench_node import h100
from tests.unit.mig.models import A30


def lines(readings: Sequence[GpuReading], policy: GpuPolicy | None = None, known: DeviceMap | None = None) -> list[str]:
    catalog = build("n1", readings, {r.uuid: r.minor for r in readings}, GpuPolicies(default=policy or GpuPolicy()))
    return list(shard_lines(known or make_map(readings, Given("gn07")), readings, catalog))


def shards(readings: Sequence[GpuReading], policy: GpuPolicy | None = None) -> list[int]:
    return [int(line.split("Count=")[1].split()[0]) for line in lines(readings, policy)]


def test_one_line_for_each_gpu_in_slurms_order_with_its_device_file() -> None:
    first, second = h100(0, minor=3), h100(1, minor=0)
    swapped = DeviceMap({1: second.uuid, 0: first.uuid}, Source.GIVEN, "gn07")
    assert lines([first, second], known=swapped) == [
        "NodeName=gn07 Name=shard Count=7 File=/dev/nvidia3",
        "NodeName=gn07 Name=shard Count=7 File=/dev/nvidia0",
    ]


def test_the_count_is_that_of_the_gpu_that_needs_most_on_all_gpus_of_a_node() -> None:
    a30, without_mig = h100(1, geometry=A30), h100(2, mode=MigMode.ABSENT, geometry=None)
    assert shards([a30]) == [4]
    assert shards([a30, h100(0)]) == [7, 7]
    assert shards([without_mig, a30]) == [4, 4]
    assert shards([without_mig]) == [1]


def test_what_may_never_be_cut_needs_no_more_shards() -> None:
    assert shards([h100()], GpuPolicy(policy=Policy.WHOLE)) == [1]
    assert shards([h100()], GpuPolicy(policy=Policy.IGNORE)) == [1]
    assert shards([h100()], GpuPolicy(profiles=frozenset({"3g.40gb"}))) == [2]
    assert shards([h100()], GpuPolicy(profiles=frozenset({"of another model"}))) == [1]


def test_the_present_mode_does_not_count() -> None:
    off = h100(mode=MigMode.OFF, mode_switch_needs_reset=True)
    assert shards([off]) == [7], "whoever switches it need not change gres.conf"


def test_while_a_gpu_is_silent_nothing_is_said() -> None:
    both = make_map([h100(0), h100(1)], Given("gn07"))
    assert lines([h100(1)], known=both) == []
