"""Free is what somebody can get: compared with trying every published device against the limits of MIG."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynamig.cli.view import GpuView, gpu_views
from dynamig.dra import Device, Taint
from dynamig.protocol import names
from tests.unit.cli.cluster import Object, claim, device, in_the_way, pool, ready, slices, slices_of

GPU = pool()
PARTITIONS = [d for d in GPU.devices if d.partition is not None]


def seen(claims: list[Object], published: list[Object] | None = None) -> GpuView:
    (view,) = gpu_views(slices(GPU) if published is None else published, claims)
    return view


def held(*parts: str) -> list[Object]:
    return [claim(f"c{i}", [(GPU, device(part, GPU))]) for i, part in enumerate(parts)]


def test_a_slice_on_which_nothing_fits_is_not_free() -> None:
    view = seen(held("1g10gb-19-6"))
    assert (view.free, view.unusable) == ((0, 1, 2, 3, 4, 5), (7,))


def test_seven_small_ones_leave_nothing() -> None:
    view = seen(held(*(f"1g10gb-19-{i}" for i in range(7))))
    assert (view.free, view.unusable) == ((), (7,))


def test_a_device_that_is_no_longer_published_still_takes_its_slices() -> None:
    half = (GPU, device("3g40gb-9-0", GPU))
    published = slices(GPU)
    for one in published:
        one["spec"]["devices"] = [d for d in one["spec"].get("devices", []) if d["name"] != half[1].name]
    view = seen([ready(claim("c", [half]), [half])], published)
    assert view.free == (4, 5, 6, 7)


def test_the_taint_of_slurm_withdraws_nothing() -> None:
    managed = {d.name: (Taint(names.MANAGED_TAINT, "managed", "NoSchedule"),) for d in GPU.devices}
    view = seen([], slices(pool(taints=managed)))
    assert (view.free, view.withdrawn, view.withdrawals) == (tuple(range(8)), (), ())


def test_withdrawn_slices_are_not_called_unusable() -> None:
    view = seen([], slices(pool(taints=in_the_way({0}, GPU))))
    assert (view.withdrawn, view.unusable) == ((0,), ())


def _fits(one: Device, beside: list[Device]) -> bool:
    return all(
        float(one.consumes.get(counter, "0").rstrip("Mi"))
        + sum(float(d.consumes.get(counter, "0").rstrip("Mi")) for d in beside)
        <= float(total.rstrip("Mi"))
        for counter, total in GPU.counters.items()
    )


@given(st.permutations(PARTITIONS), st.integers(0, 7))
def test_free_is_where_a_device_fits_beside_what_is_held(order: list[Device], count: int) -> None:
    taken: list[Device] = []
    for one in order:
        if len(taken) < count and _fits(one, taken):
            taken.append(one)
    view = seen([claim(d.name, [(GPU, d)]) for d in taken])
    assert set(view.free) == {s for d in PARTITIONS if _fits(d, taken) for s in slices_of(d)}
