"""Whether a pod may be on a node at all, as far as the node's labels and taints say. Pure.

kube-scheduler decides that, and takes the devices from a pod that does not fit where its hold runs (PROTOCOL P7). A
hold that is bound to be refused costs the pod half a minute and other people a GPU, so such nodes are not asked for.
What is not known here counts as fitting: volumes are for kube-scheduler. Required affinity between pods and topology
spread are refused at admission (`deploy/chart/templates/bridge-policies.yaml`): Slurm knows no other pods.

Source: k8s.io/component-helpers/scheduling/corev1 (1.37), nodeaffinity and tolerations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynamig.protocol import names

Requirement = Mapping[str, Any]
"""`key`, `operator` and `values` of a node selector requirement."""

KEEPS_AWAY = ("NoSchedule", "NoExecute")
CORDONED = "node.kubernetes.io/unschedulable"
"""The taint that kube-scheduler sees on a node whose `spec.unschedulable` is set."""


@dataclass(frozen=True, slots=True)
class NodeRules:
    """What a pod asks of nodes, in the words of its spec. `terms`: of its required node affinity, one of which must
    match; None where it has none."""

    selector: Mapping[str, str] = field(default_factory=dict)
    terms: Sequence[Mapping[str, Any]] | None = None
    tolerations: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class NodeMarks:
    """Labels and taints of a node; that it is cordoned is one of the taints."""

    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, Any]] = ()


UNMARKED = NodeMarks()


def rules_of(spec: Mapping[str, Any]) -> NodeRules:
    """Of a pod's spec. The bridge's own toleration is there already: it comes with the removal of the gate."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    ours = {"key": names.MANAGED_TAINT, "operator": "Exists"}
    return NodeRules(
        spec.get("nodeSelector") or {},
        None if required is None else required["nodeSelectorTerms"],
        (ours, *(spec.get("tolerations") or ())),
    )


def marks_of(node: Mapping[str, Any]) -> NodeMarks:
    """Of a Node object."""
    spec = node["spec"]
    cordoned = [{"key": CORDONED, "effect": "NoSchedule"}] if spec.get("unschedulable") else []
    taints = [t for t in spec.get("taints") or () if t["key"] != CORDONED]
    return NodeMarks(node["metadata"].get("labels") or {}, (*cordoned, *taints))


def why_not(rules: NodeRules, name: str, node: NodeMarks) -> str:
    """Why the pod cannot be on the node, in words for its user; empty if nothing here speaks against it."""
    for taint in node.taints:
        if taint["effect"] in KEEPS_AWAY and not any(_tolerates(t, taint) for t in rules.tolerations):
            key = taint["key"]
            return "it is cordoned" if key == CORDONED else f"the pod does not tolerate its taint {key}"
    for key, value in rules.selector.items():
        if node.labels.get(key) != value:
            return f"the pod's node selector asks for {key}={value}"
    if rules.terms is not None and not any(_matches(term, name, node) for term in rules.terms):
        return "the pod's node affinity rules it out"
    return ""


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    key = toleration.get("key") or ""
    if key and key != taint["key"]:
        return False
    match toleration.get("operator") or "Equal":
        case "Exists":
            return True
        case "Equal":
            return bool(key) and (toleration.get("value") or "") == (taint.get("value") or "")
        case _:  # newer than this code: kube-scheduler knows
            return True


def _matches(term: Mapping[str, Any], name: str, node: NodeMarks) -> bool:
    """A term without any requirement matches nothing."""
    expressions: Sequence[Requirement] = term.get("matchExpressions") or ()
    fields: Sequence[Requirement] = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_holds(e, node.labels) for e in expressions) and all(_holds(f, {"metadata.name": name}) for f in fields)


def _holds(requirement: Requirement, values: Mapping[str, str]) -> bool:
    value = values.get(requirement["key"])
    wanted: Sequence[str] = requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return (number := _number(value)) is not None and number > int(wanted[0])
        case "Lt":
            return (number := _number(value)) is not None and number < int(wanted[0])
        case _:
            return True


def _number(value: str | None) -> int | None:
    try:
        return int(value or "")
    except ValueError:
        return None
