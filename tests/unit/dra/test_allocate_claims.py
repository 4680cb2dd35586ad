"""Claims, classes and pools as the API gives them, and what is refused of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dynamig.dra.allocate import (
    Allocation,
    Constraint,
    DeviceId,
    Mode,
    NodeDevices,
    Policy,
    Refusal,
    State,
    Toleration,
    allocate,
    allocation_status,
    held_devices,
    offers_by_node,
    read_claim,
    read_class,
)
from dynamig.errors import Refused
from tests.unit.dra.allocating import CLASSES, DRIVER, A, claim, exactly, slices, wants

Object = dict[str, Any]


def an_object(**devices: Any) -> Object:
    return {"metadata": {"name": "c", "namespace": "team"}, "spec": {"devices": devices}}


def one_request(**fields: Any) -> Object:
    return an_object(requests=[{"name": "r", "exactly": {"deviceClassName": "mig", **fields}}])


def test_defaults_are_filled_in() -> None:
    read = read_claim(one_request())
    assert read.name == "team/c"
    ((choice,),) = [request.choices for request in read.requests]
    assert (choice.name, choice.mode, choice.count, choice.admin) == ("r", Mode.EXACT_COUNT, 1, False)


def test_everything_is_read() -> None:
    toleration = {"key": "k", "operator": "Exists", "effect": "NoExecute"}
    sub = {"name": "s", "deviceClassName": "gpu", "allocationMode": "All", "tolerations": [toleration]}
    obj = an_object(
        requests=[
            {
                "name": "a",
                "exactly": {
                    "deviceClassName": "mig",
                    "count": 3,
                    "adminAccess": True,
                    "selectors": [{"cel": {"expression": "true"}}],
                },
            },
            {"name": "b", "firstAvailable": [sub]},
        ],
        constraints=[{"requests": ["a"], "matchAttribute": "d/x"}, {"distinctAttribute": "d/y"}],
    )
    read = read_claim(obj)
    exact, alternative = read.requests[0].choices[0], read.requests[1].choices[0]
    assert (exact.count, exact.admin, exact.selectors) == (3, True, ("true",))
    assert (alternative.name, alternative.mode) == ("b/s", Mode.ALL)
    assert alternative.tolerations == (Toleration("k", "Exists", "", "NoExecute"),)
    assert read.constraints == (
        Constraint("d/x", False, frozenset({"a"})),
        Constraint("d/y", True, frozenset()),
    )


@pytest.mark.parametrize(
    ("obj", "named"),
    [
        (one_request(capacity={"requests": {"memory": "1Gi"}}), "capacity"),
        (one_request(derivedAttributes=[{"name": "x"}]), "derivedAttributes"),
        (one_request(fieldOfTheFuture=1), "fieldOfTheFuture"),
        (one_request(allocationMode="Some"), "allocation mode Some"),
        (one_request(selectors=[{"other": {}, "x": 1}]), "a selector uses x"),
        (an_object(requests=[{"name": "r"}]), "neither exactly nor firstAvailable"),
        (an_object(requests=[], constraints=[{"requests": ["r"]}]), "neither matchAttribute"),
        (an_object(requests=[], constraints=[{"matchAttribute": "d/x", "other": 1}]), "other"),
        (an_object(requests=[], more=1), "more"),
    ],
)
def test_what_is_not_done_is_refused_by_name(obj: Object, named: str) -> None:
    with pytest.raises(Refused) as caught:
        read_claim(obj)
    assert caught.value.code in ("UNSUPPORTED_REQUEST", "BAD_CLAIM")
    assert named in caught.value.what
    assert "team/c" in caught.value.what


def test_nonsense_is_refused() -> None:
    for obj in ({}, {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{}]}}}, {"metadata": 1, "spec": {}}):
        with pytest.raises(Refused) as caught:
            read_claim(obj)
        assert caught.value.code == "BAD_CLAIM"
    with pytest.raises(Refused):
        read_class({"spec": {}})


def test_empty_fields_say_nothing() -> None:
    assert read_claim(one_request(capacity={}, derivedAttributes=None)) == read_claim(one_request())


def test_admin_access_holds_nothing() -> None:
    def result(device: str, **more: Any) -> Object:
        return {"request": "r", "driver": DRIVER, "pool": "p", "device": device, **more}

    results = [result("a"), result("b", adminAccess=True), result("c", adminAccess=False)]
    claims: list[Object] = [{"status": {"allocation": {"devices": {"results": results}}}}, {}, {"status": None}]
    assert held_devices(claims) == {DeviceId(DRIVER, "p", "a"), DeviceId(DRIVER, "p", "c")}


def edited(change: Any) -> list[Object]:
    """The two slices of one GPU, the counters first, after a change."""
    made = copy.deepcopy(slices())
    change(made[0]["spec"], made[1]["spec"])
    return made


def state_after(change: Any) -> tuple[State, str]:
    ((offer,),) = offers_by_node(edited(change)).values()
    return offer.state, offer.why


@pytest.mark.parametrize(
    ("change", "state", "why"),
    [
        (lambda counters, devices: None, State.USABLE, ""),
        (lambda counters, devices: counters["pool"].update(resourceSliceCount=3), State.INCOMPLETE, "2 slices seen"),
        (lambda counters, devices: devices["pool"].update(generation=2), State.INCOMPLETE, "1 slices seen"),
        (lambda counters, devices: devices["devices"].append(devices["devices"][0]), State.INVALID, "twice"),
        (
            lambda counters, devices: counters.update(sharedCounters=counters["sharedCounters"] * 2),
            State.INVALID,
            "twice",
        ),
        (lambda counters, devices: counters["sharedCounters"].clear(), State.INVALID, "does not have"),
        (lambda counters, devices: devices.update(perDeviceNodeSelection=True), State.UNSUPPORTED, "one by one"),
        (
            lambda counters, devices: devices["devices"][0].update(allowMultipleAllocations=True),
            State.UNSUPPORTED,
            "is shared by capacity",
        ),
        (
            lambda counters, devices: devices["devices"][0].update(bindingConditions=["x"]),
            State.UNSUPPORTED,
            "binding conditions",
        ),
    ],
)
def test_pools_and_why_they_are_left_out(change: Any, state: State, why: str) -> None:
    got, said = state_after(change)
    assert got is state
    assert why in said


def test_a_pool_of_several_nodes_is_unsupported_everywhere() -> None:
    spread = slices("n1") + slices("n2")
    spread[1]["spec"]["nodeName"] = "n2"
    offers = offers_by_node(spread)
    assert [offer.state for offer in offers["n2"]] == [State.UNSUPPORTED, State.USABLE]
    everywhere = slices("n1")
    everywhere[0]["spec"] = {
        **everywhere[0]["spec"],
        "pool": {"name": "fabric", "generation": 1, "resourceSliceCount": 1},
    }
    everywhere[0]["spec"].pop("nodeName")
    assert [offer.pool.name for offer in offers_by_node(everywhere)["n1"]] == ["fabric", "n1/gpu-0"]


def asked(change: Any, mode: Mode) -> Refusal:
    offers = offers_by_node(edited(change))
    occupancy = NodeDevices("n1", offers["n1"]).occupied()
    answer = allocate(occupancy, [claim(exactly("r", device_class="gpu", mode=mode))], CLASSES, Policy.FIRST_FIT)
    assert isinstance(answer, Refusal)
    return answer


def test_devices_of_a_pool_that_is_left_out_are_not_given_away() -> None:
    def incomplete(counters: Object, devices: Object) -> None:
        counters["pool"]["resourceSliceCount"] = devices["pool"]["resourceSliceCount"] = 3

    def shared(_: Object, devices: Object) -> None:
        devices["devices"][0]["allowMultipleAllocations"] = True

    def twice(_: Object, devices: Object) -> None:
        devices["devices"].append(devices["devices"][0])

    answer = asked(incomplete, Mode.EXACT_COUNT)
    assert (answer.code, answer.fatal) == ("NO_ROOM", False)
    assert "pool gpu.nvidia.com/n1/gpu-0 is left out: 2 slices seen, 3 announced" in answer.what
    assert (asked(incomplete, Mode.ALL).code, asked(incomplete, Mode.ALL).fatal) == ("POOL_UPDATING", True)
    assert (asked(twice, Mode.EXACT_COUNT).code, asked(twice, Mode.ALL).code) == ("POOL_INVALID", "POOL_INVALID")
    assert "is shared by capacity" in asked(shared, Mode.EXACT_COUNT).what
    assert (asked(shared, Mode.ALL).code, asked(shared, Mode.ALL).fatal) == ("POOL_UNSUPPORTED", False)


def test_a_foreign_pool_that_nobody_asks_for_does_not_hinder_all() -> None:
    foreign = {"name": "fabric", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "net.example.com", "allNodes": True, "pool": foreign, "devices": [{"name": "nic"}]}
    offers = offers_by_node([*slices(), {"metadata": {"name": "s"}, "spec": spec}])
    occupancy = NodeDevices("n1", offers["n1"]).occupied()
    gpus = claim(exactly("r", device_class="gpu", mode=Mode.ALL))
    assert isinstance(allocate(occupancy, [gpus], CLASSES), Allocation)
    anything = claim(exactly("r", device_class="any", selectors=(f"{A}.?type.orValue('gpu') == 'gpu'",), mode=Mode.ALL))
    answer = allocate(occupancy, [anything], CLASSES)
    assert isinstance(answer, Refusal)
    assert answer.code == "POOL_UNSUPPORTED"


def test_the_status_that_is_written() -> None:
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"kind": "MigDeviceConfig"}}}
    toleration = {"key": "k", "operator": "Exists"}
    exact = {"deviceClassName": "mig", "tolerations": [toleration]}
    obj = an_object(
        requests=[{"name": "a", "exactly": exact}, {"name": "b", "firstAvailable": [{"name": "s", **exact}]}],
        config=[{"requests": ["b/s"], **opaque}, {**opaque}, {"requests": ["nobody"], **opaque}],
    )
    mig_class = read_class({"metadata": {"name": "mig"}, "spec": {"config": [opaque]}})
    occupancy = NodeDevices("n1", offers_by_node(slices())["n1"]).occupied()
    asks = read_claim(obj)
    answer = allocate(occupancy, [asks], {"mig": mig_class}, Policy.FIRST_FIT)
    assert isinstance(answer, Allocation)
    device = {"driver": DRIVER, "pool": "n1/gpu-0", "tolerations": [toleration]}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    assert allocation_status(answer, 0, asks, {"mig": mig_class}) == {
        "devices": {
            "results": [
                {"request": "a", "device": "gpu-0-mig-1g10gb-19-6", **device},
                {"request": "b/s", "device": "gpu-0-mig-1g10gb-19-4", **device},
            ],
            "config": [
                {"source": "FromClass", **opaque},
                {"source": "FromClaim", "requests": ["b/s"], **opaque},
                {"source": "FromClaim", **opaque},
            ],
        },
        "nodeSelector": {"nodeSelectorTerms": terms},
    }


def test_a_claim_without_devices_has_no_node() -> None:
    occupancy = NodeDevices("n1", offers_by_node(slices())["n1"]).occupied()
    answer = allocate(occupancy, [claim(), wants("1g.10gb")], CLASSES)
    assert isinstance(answer, Allocation)
    assert allocation_status(answer, 0, claim(), CLASSES) == {"devices": {"results": []}}
