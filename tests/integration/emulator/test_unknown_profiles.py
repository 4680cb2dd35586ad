"""Profiles that dynamig has never seen: variants, unknown ids, constants and texts, and unusable ones (C-05)."""

from __future__ import annotations

import os
from pathlib import Path

import pynvml
import pytest
import yaml

from dynamig.dra import Pool, PublishedDevice, read_pools, resource_slices
from dynamig.driver.catalog import FOREIGN, build
from dynamig.driver.config import GpuPolicies
from dynamig.errors import Refused
from dynamig.mig import Geometry, GiProfile, GiProfileId
from dynamig.nvml.reading import profile_name
from dynamig.protocol import names
from dynamig.testing.emulator import Emulator
from tests.integration.emulator.conftest import Make
from tests.integration.emulator.test_acceptance import LEGAL, driver_on, made, mig_devices, pools, unprepared
from tests.integration.emulator.test_every_set import written, written_profile
from tests.unit.mig.models import QUARTERS, RTX_PRO_6000, profile

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a prepared claim has character devices")

NEW_ID, NAMELESS_ID, EMPTY_ID = GiProfileId(4_000_004_242), GiProfileId(77), GiProfileId(88)
NEW = profile("1x.24gb~new.kind|β", NEW_ID, 40, 1, 24192, (46, 1, 0, 0, 0, 0), 4, QUARTERS, 3)
NAMELESS = profile("", NAMELESS_ID, 41, 1, 24192, (46, 1, 0, 0, 0, 0), 4, QUARTERS, 3)
EMPTY = profile("1g.0gb", EMPTY_ID, 42, 1, 0, (46, 1, 0, 0, 0, 0), 1, QUARTERS, 3)
"""Nothing that can be used: it has no memory."""


def node_with(make: Make, path: Path, known: Geometry, *more: GiProfile) -> Emulator:
    """The GPU lists `more` too."""
    document = yaml.safe_load(written(path, known).read_text())
    document["gpus"][0]["profiles"] += [written_profile(one) for one in more]
    path.write_text(yaml.safe_dump(document, allow_unicode=True))
    return make("made-up", geometry=path)


def published(pool: Pool) -> tuple[PublishedDevice, ...]:
    [read] = read_pools(resource_slices(pool, driver=names.DRIVER_NAME, node="n1", generation=1))
    assert read.complete
    return read.devices


def test_no_library_of_ours_knows_them() -> None:
    known = {value for name, value in vars(pynvml).items() if name.startswith("NVML_GPU_INSTANCE_PROFILE_")}
    assert known.isdisjoint({NEW.nvml, NAMELESS.nvml, EMPTY.nvml})
    assert max(known) < NEW.nvml


def test_all_that_can_be_used_is_published_and_can_be_made(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The ids of the RTX PRO's variants are on no record; here they are made up, and so unknown to everything."""
    emulator = node_with(make, tmp_path / "g.yaml", RTX_PRO_6000, NEW, NAMELESS, EMPTY)
    with driver_on(emulator, monkeypatch) as node:
        [reading] = node.gpus.readings()
        [why] = reading.left_out
        assert "1g.0gb" in why
        assert "0 MiB" in why
        [pool] = pools(node)
        devices = published(pool)
        texts = {device.profile for device in devices if device.type == "mig"}
        assert texts == {p.name for p in RTX_PRO_6000.profiles} | {NEW.name, "profile-77"}
        assert {"1g.24gb+gfx", "1g.24gb+me.all", "1g.24gb-me"} <= texts
        assert all(LEGAL.fullmatch(device.name) and len(device.name) <= 63 for device in devices)
        assert len({device.name for device in devices}) == len(devices)
        for device in mig_devices(pool):
            [live] = made(node, pool, device)
            assert live.partition == device.partition
            [name] = [d.profile_name for r in node.journal.records().values() for d in r.devices if d.live]
            assert name == device.attributes["profile"]
            unprepared(node)
            assert not node.live()


def test_what_cannot_be_used_takes_nothing_else_away(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with driver_on(node_with(make, tmp_path / "g.yaml", RTX_PRO_6000, EMPTY), monkeypatch) as node:
        with_it = [published(pool) for pool in pools(node)]
    with driver_on(node_with(make, tmp_path / "h.yaml", RTX_PRO_6000), monkeypatch) as node:
        [reading] = node.gpus.readings()
        assert reading.left_out == ()
        without = [published(pool) for pool in pools(node)]
    assert [[d.name for d in devices] for devices in with_it] == [[d.name for d in devices] for devices in without]


def test_somebodys_instance_of_a_profile_that_is_left_out_is_in_the_way_and_no_more(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    emulator = node_with(make, tmp_path / "g.yaml", RTX_PRO_6000, EMPTY)
    emulator.foreign(0, "1g.0gb", 3)
    with driver_on(emulator, monkeypatch) as node:
        [foreign] = node.live()
        assert foreign.profile == EMPTY_ID
        [reading] = node.gpus.readings()
        catalog = build("n1", [reading], {reading.uuid: 0}, GpuPolicies(), {reading.uuid: (foreign,)})
        [pool] = [offer.pool for offer in catalog.offers.values()]
        free = {d.attributes["profile"] for d in pool.devices if FOREIGN not in d.taints}
        assert free == {"1g.24gb-me", "2g.48gb-me"}  # it may have every engine that others would need
        for device in pool.devices:
            if FOREIGN in device.taints:
                with pytest.raises(Refused, match="profile 88"):
                    made(node, pool, device)
            else:
                made(node, pool, device)
                unprepared(node)
        assert node.live() == [foreign]


def test_a_gpu_whose_profiles_are_all_unusable_is_offered_whole(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    document = yaml.safe_load(written(tmp_path / "g.yaml", RTX_PRO_6000).read_text())
    document["gpus"][0]["profiles"] = [written_profile(EMPTY)]
    (tmp_path / "g.yaml").write_text(yaml.safe_dump(document))
    with driver_on(make("made-up", geometry=tmp_path / "g.yaml", mig=False), monkeypatch) as node:
        [reading] = node.gpus.readings()
        assert (reading.geometry, len(reading.left_out)) == (None, 1)
        [pool] = pools(node)
        assert [device.name for device in published(pool)] == ["gpu-0"]


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (b"MIG 1g.24gb+me.all", "1g.24gb+me.all"),
        ("MIG β".encode(), "β"),
        (b"MIG ", "profile-4242"),
        (b"MIG 1g.\xff", "profile-4242"),
        (b"1g\n10gb", "profile-4242"),
        (b"x" * 65, "profile-4242"),
        ("β".encode() * 33, "profile-4242"),
    ],
)
def test_a_name_that_cannot_be_published_whole_is_replaced_by_the_id(told: bytes, name: str) -> None:
    info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
    info.id, info.name = 4242, told
    assert profile_name(info) == name
