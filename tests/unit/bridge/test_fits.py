"""Labels and taints of nodes, as kube-scheduler 1.37 reads them; the cases are those of its own documentation."""

from __future__ import annotations

from typing import Any

import pytest

from dynamig.bridge.fits import marks_of, rules_of, why_not
from dynamig.protocol import names

NODE: dict[str, Any] = {
    "metadata": {"labels": {"zone": "a", "gpus": "8", "dirty": "x8"}},
    "spec": {"taints": [{"key": names.MANAGED_TAINT, "effect": "NoSchedule"}]},
}


def fits(spec: dict[str, Any], **node_spec: Any) -> bool:
    return not why_not(rules_of(spec), "n1", marks_of({**NODE, "spec": {**NODE["spec"], **node_spec}}))


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def wants(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


NAMED = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}


@pytest.mark.parametrize(
    ("spec", "fit"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "a", "gpus": "8"}}, True),
        ({"nodeSelector": {"zone": "a", "gpus": "4"}}, False),
        ({"nodeSelector": {"absent": ""}}, False),
        (affinity(wants("zone", "In", "a", "b")), True),
        (affinity(wants("zone", "NotIn", "a")), False),
        (affinity(wants("absent", "NotIn", "a")), True),
        (affinity(wants("zone", "Exists")), True),
        (affinity(wants("zone", "DoesNotExist")), False),
        (affinity(wants("gpus", "Gt", "4")), True),
        (affinity(wants("gpus", "Gt", "8")), False),
        (affinity(wants("gpus", "Lt", "9")), True),
        (affinity(wants("dirty", "Gt", "1")), False),
        (affinity(wants("zone", "Newer", "a")), True),  # not known here: kube-scheduler's to say
        (affinity(NAMED), True),
        (affinity({**NAMED, **wants("zone", "In", "b")}), False),
        (affinity(wants("zone", "In", "b"), NAMED), True),  # one term is enough
        (affinity({}), False),
        (affinity(), False),
        ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}, True),
    ],
)
def test_selectors_and_required_affinity(spec: dict[str, Any], fit: bool) -> None:
    assert fits(spec) is fit


@pytest.mark.parametrize(
    ("toleration", "fit"),
    [
        (None, False),
        ({"operator": "Exists"}, True),
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "team", "value": "x"}, True),
        ({"key": "team", "value": "y"}, False),
        ({"key": "team", "value": "x", "effect": "NoSchedule"}, True),
        ({"key": "team", "value": "x", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "team", "operator": "Lt", "value": "5"}, True),  # not known here
    ],
)
def test_taints_and_tolerations(toleration: dict[str, Any] | None, fit: bool) -> None:
    spec = {} if toleration is None else {"tolerations": [toleration]}
    assert fits(spec, taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}]) is fit


def test_a_taint_that_only_asks_politely_keeps_nobody_away() -> None:
    assert fits({}, taints=[{"key": "team", "effect": "PreferNoSchedule"}])


def test_a_cordoned_node_says_so_unless_the_pod_goes_there_all_the_same() -> None:
    cordoned = marks_of({**NODE, "spec": {"unschedulable": True}})
    assert why_not(rules_of({}), "n1", cordoned) == "it is cordoned"
    anyway = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
    assert why_not(rules_of({"tolerations": [anyway]}), "n1", cordoned) == ""
