"""What the kubelet says of a pod is the reason of its device, as long as no driver says anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dynamig.cli.complaints import NOT_PREPARED, complaints, unprepared, warnings, with_complaints
from dynamig.cli.view import gpu_views
from dynamig.protocol import names
from tests.unit.cli.cluster import Object, claim, device, pool, ready, slices

GPU = pool()
SMALL = (GPU, device("1g10gb-19-4", GPU))


def event(message: str, at: str = "04:39:16", *, uid: str = "u", reason: str = NOT_PREPARED) -> Object:
    about = {"kind": "Pod", "namespace": "ml", "name": "p", "uid": uid}
    return {"reason": reason, "message": message, "lastTimestamp": f"2026-11-30T{at}Z", "involvedObject": about}


def told(reason: str, message: str) -> Object:
    """A pod with the bridge's condition."""
    condition = {"type": names.CONDITION, "status": "True", "reason": reason, "message": message}
    return {"metadata": {"namespace": "ml", "name": "p"}, "status": {"conditions": [condition]}}


def reasons(held: Object, events: list[Object], pods: list[Object] | None = None) -> list[str]:
    views = with_complaints(gpu_views(slices(GPU), [held]), complaints(events, None), warnings(pods or []))
    return [h.reason for v in views for h in v.holdings]


def test_an_allocated_device_has_the_kubelets_last_words() -> None:
    asked = claim("c", [SMALL], pods=["p"])
    assert reasons(asked, [event("refused", "04:40:23"), event("not registered")]) == ["refused"]
    assert reasons(asked, [event("pulled", reason="Pulled")]) == [""]
    assert reasons(claim("c", [SMALL], pods=["q"]), [event("refused")]) == [""]


def test_a_ready_device_has_no_complaint() -> None:
    assert reasons(ready(claim("c", [SMALL], pods=["p"]), [SMALL]), [event("refused")]) == [""]


@pytest.mark.parametrize("make", [lambda c: c, lambda c: ready(c, [SMALL])], ids=["allocated", "ready"])
def test_what_the_bridge_warns_of_comes_first(make: Callable[[Object], Object]) -> None:
    held = make(claim("c", [SMALL], pods=["p"]))
    suspended = told(names.HOLD_SUSPENDED, "it is suspended")
    assert reasons(held, [event("refused")], [suspended]) == ["it is suspended"]
    assert "it is suspended" not in reasons(held, [], [told(names.PAID, "it is suspended")])
    assert reasons(held, [], [{**suspended, "metadata": {"namespace": "ml", "name": "another"}}]) == [""]


def test_an_earlier_pod_of_the_same_name_is_another() -> None:
    now: Object = {"metadata": {"namespace": "ml", "name": "p", "uid": "u"}}
    assert complaints([event("mine"), event("not mine", "05:00:00", uid="earlier")], [now]) == {("ml", "p"): "mine"}


@pytest.mark.parametrize(
    ("one", "asked"),
    [
        (claim("c", [SMALL], pods=["p"]), {"ml"}),
        (claim("c", [SMALL]), set()),
        (claim("c", [], pods=["p"]), set()),
        (ready(claim("c", [SMALL], pods=["p"]), [SMALL]), set()),
    ],
    ids=["allocated", "no pod", "waiting", "ready"],
)
def test_events_are_read_only_where_a_driver_said_nothing(one: Object, asked: set[str]) -> None:
    assert unprepared([one]) == asked
