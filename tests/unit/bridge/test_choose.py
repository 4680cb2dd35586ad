"""Devices for a set on one GPU: what fits beside what is held, what the shards pay for, and why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dynamig.bridge.choose import WorldChooser
from dynamig.bridge.plan import Choice, Chooser, NoChoice, NoPlan, plan_hold
from dynamig.bridge.sets import ClaimSet
from dynamig.bridge.world import SetClaim, World, read_set_claim
from dynamig.dra import rules_for, tainted
from dynamig.mig import GpuUuid
from dynamig.protocol import names
from dynamig.protocol.hold_note import Attempt, HoldNote, NotedDevice
from tests.unit.bridge.stage import Stage, gpu, published

GPU = gpu("n1", 0)
POOL = published()[GPU].name
CLASSES = {
    "mig.nvidia.com": {
        "metadata": {"name": "mig.nvidia.com"},
        "spec": {"selectors": [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].type == 'mig'"}}]},
    }
}


def claim(uid: str, profile: str, **status: Any) -> SetClaim:
    selector = {"cel": {"expression": f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"}}
    request = {"name": "mig", "exactly": {"deviceClassName": "mig.nvidia.com", "selectors": [selector]}}
    body: Mapping[str, Any] = {
        "metadata": {"namespace": "ns", "name": uid, "uid": uid, **status.pop("metadata", {})},
        "spec": {"devices": {"requests": [request]}},
        "status": status,
    }
    return read_set_claim(body, names.DRIVER_NAME)


def allocated(uid: str, device: str) -> SetClaim:
    result = {"request": "mig", "driver": names.DRIVER_NAME, "pool": POOL, "device": device}
    return claim(uid, "any", allocation={"devices": {"results": [result]}})


def leaving(uid: str, device: str) -> SetClaim:
    """Deallocated, and its instance may still live: only the note on the claim says so."""
    note = HoldNote((NotedDevice(POOL, device, GPU),), Attempt("set", 1)).to_json()
    return claim(uid, "any", metadata={"finalizers": [names.HELD], "annotations": {names.HOLD: note}})


def world(*others: SetClaim) -> World:
    return World(
        now=0.0,
        driver=names.DRIVER_NAME,
        pods={},
        claims={c.view.ref.uid: c for c in others},
        pools=published(),
        classes=CLASSES,
        nodes={},
        jobs=(),
        slurm_nodes={},
    )


def choose(wanted: str, *others: SetClaim, most: int | None = None) -> Choice | NoChoice:
    return WorldChooser(world(*others), names.DRIVER_NAME)(ClaimSet("set", (), (claim("me", wanted),)), GPU, most=most)


def device_of(choice: Choice | NoChoice) -> str:
    assert isinstance(choice, Choice), choice
    (pick,) = choice.picks
    assert pick.claim_uid == "me"
    return pick.device


def test_the_placement_that_loses_the_fewest_and_its_cost() -> None:
    found = choose("3g.40gb")
    assert device_of(found) == "gpu-0-mig-3g40gb-9-4"
    assert isinstance(found, Choice)
    assert found.cost == 3


def test_beside_what_is_allocated_and_what_is_still_leaving() -> None:
    assert device_of(choose("3g.40gb", allocated("a", "gpu-0-mig-3g40gb-9-4"))) == "gpu-0-mig-3g40gb-9-0"
    assert device_of(choose("3g.40gb", leaving("a", "gpu-0-mig-3g40gb-9-4"))) == "gpu-0-mig-3g40gb-9-0"
    found = choose("4g.40gb", leaving("a", "gpu-0-mig-1g10gb-19-2"))
    assert isinstance(found, NoChoice)


def test_only_what_the_held_shards_pay_for() -> None:
    left = allocated("a", "gpu-0-mig-1g10gb-19-6")
    assert isinstance(choose("3g.40gb", left, most=3), NoChoice), "only the left half is free, and it costs 4"
    found = choose("3g.40gb", left, most=4)
    assert isinstance(found, Choice)
    assert found.cost == 4


def test_what_is_lost_counts_on_the_whole_gpu_however_little_can_be_paid() -> None:
    rich, poor = choose("1g.10gb"), choose("1g.10gb", most=1)
    assert rich == poor
    assert isinstance(poor, Choice)
    assert poor.lost > 3, "among what one shard pays for hardly anything would be lost"


def test_a_held_device_that_costs_more_than_we_have_is_not_forgotten() -> None:
    found = choose("3g.40gb", allocated("a", "gpu-0-mig-4g40gb-5-0"), most=3)
    assert device_of(found) == "gpu-0-mig-3g40gb-9-4"
    assert isinstance(choose("1g.10gb", allocated("a", "gpu-0-mig-7g80gb-0-0"), most=1), NoChoice)


def test_a_held_device_that_is_not_published_closes_the_gpu() -> None:
    found = choose("1g.10gb", allocated("a", "gpu-0-mig-of-another-time"))
    assert isinstance(found, NoChoice)
    assert "not published" in found.why


def test_a_profile_that_does_not_exist_is_told_in_words() -> None:
    found = choose("5g.60gb")
    assert isinstance(found, NoChoice)
    assert found.unmatched
    assert "profile == '5g.60gb'`; devices of class mig.nvidia.com have profile 1g.10gb, " in found.why


class Kinds:
    """Each node's GPUs say something else."""

    def __init__(self, *, also_full: bool = False) -> None:
        self._also_full = also_full

    def __call__(self, of: ClaimSet, gpu: GpuUuid, *, most: int | None = None) -> NoChoice:
        if self._also_full and gpu.endswith("n2-1"):
            return NoChoice("it is full")
        return NoChoice(f"what {gpu[:6]} has", unmatched=True)

    def when_empty(self, of: ClaimSet, gpu: GpuUuid) -> NoChoice:
        return self(of, gpu)


def no_plan(chooser: Chooser) -> str:
    plan = plan_hold(ClaimSet("set", (), (claim("me", "1g.10g"),)), Stage().world(), chooser)
    assert isinstance(plan, NoPlan)
    return plan.why


def test_what_no_gpu_has_is_told_once_for_each_kind_of_gpu() -> None:
    every = replace(Stage().world(), classes=CLASSES)
    assert no_plan(WorldChooser(every, names.DRIVER_NAME)).count("no device matches the selector") == 1
    assert no_plan(Kinds()).endswith("what GPU-n1 has; what GPU-n2 has")


def test_what_some_gpus_have_nothing_of_is_no_news_where_another_has() -> None:
    assert no_plan(Kinds(also_full=True)).endswith(": it is full")


def test_admin_access_is_refused_in_words() -> None:
    """It would hold nothing, and so cost nothing."""
    request = {"name": "mig", "exactly": {"deviceClassName": "mig.nvidia.com", "adminAccess": True}}
    body = {"metadata": {"namespace": "ns", "name": "me", "uid": "me"}, "spec": {"devices": {"requests": [request]}}}
    watching = ClaimSet("set", (), (read_set_claim(body, names.DRIVER_NAME),))
    found = WorldChooser(world(), names.DRIVER_NAME)(watching, GPU)
    assert isinstance(found, NoChoice)
    assert "adminAccess" in found.why


def test_what_claim_and_class_tell_the_driver_goes_with_the_devices() -> None:
    """The driver refuses what it does not do; it can do so only where it hears of it."""
    sharing = {"opaque": {"driver": names.DRIVER_NAME, "parameters": {"kind": "MigDeviceConfig", "sharing": {}}}}
    mine = claim("me", "1g.10gb")
    mine.body["spec"]["devices"]["config"] = [sharing]
    toleration = {"key": "example.com/test", "operator": "Exists"}
    mine.body["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = [toleration]
    found = WorldChooser(world(), names.DRIVER_NAME)(ClaimSet("set", (), (mine, claim("other", "1g.10gb"))), GPU)
    assert isinstance(found, Choice)
    assert found.devices["me"]["config"] == [{"source": "FromClaim", **sharing}]
    assert found.devices["other"].keys() == {"results"}
    (first, second) = (found.devices[uid]["results"][0] for uid in ("me", "other"))
    assert (first["tolerations"], "tolerations" in second) == ([toleration], False), "nor is ours told to anybody"


def test_a_claim_that_asks_for_nothing_is_named() -> None:
    nothing = replace(claim("nothing", "any"), body={"metadata": {"namespace": "ns", "name": "nothing"}, "spec": {}})
    found = WorldChooser(world(), names.DRIVER_NAME)(ClaimSet("set", (), (nothing,)), GPU)
    assert found == NoChoice("claim ns/nothing asks for no device: leave it out of the pod")


def rule(name: str, **selector: str) -> dict[str, Any]:
    taint = {"key": "example.com/broken", "effect": "NoSchedule"}
    return {"metadata": {"name": name}, "spec": {"deviceSelector": selector, "taint": taint}}


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ({"driver": names.DRIVER_NAME, "pool": POOL}, False),
        ({"pool": POOL, "device": "gpu-0-mig-7g80gb-0-0"}, False),
        ({}, False),
        ({"pool": POOL, "device": "gpu-0-mig-1g10gb-19-6"}, True),
        ({"pool": "another"}, True),
        ({"driver": "another.example.com"}, True),
    ],
)
def test_devices_that_an_administrator_tainted_are_nobodys(selector: dict[str, str], fits: bool) -> None:
    """As kube-scheduler sees it, and the taint eviction controller, which would end the pod at once."""
    pool = published()[GPU]
    assert "gpu-0-mig-7g80gb-0-0" in {d.name for d in pool.devices}
    ruled = replace(world(), pools={GPU: tainted(pool, rules_for(pool, [rule("r", **selector)]))})
    found = WorldChooser(ruled, names.DRIVER_NAME)(ClaimSet("set", (), (claim("me", "7g.80gb"),)), GPU)
    assert isinstance(found, Choice) is fits


def test_a_rule_without_a_selector_taints_nothing() -> None:
    nothing = {"metadata": {"name": "r"}, "spec": {"taint": rule("r")["spec"]["taint"]}}
    assert rules_for(published()[GPU], [nothing]) == ()
