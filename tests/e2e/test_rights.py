"""Who may write what, on the real API server with the driver's real, node-bound token, and as a plain editor."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamig.protocol import names
from lab.lab import Lab
from tests.e2e.cluster import NAMESPACE, Cluster, mig


class As:
    """kubectl under somebody's own kubeconfig or impersonated; answers (succeeded, output)."""

    def __init__(self, lab: Lab, kubeconfig: Path, *flags: str) -> None:
        self._command = [str(lab.kubectl_path), f"--kubeconfig={kubeconfig}", *flags]

    def __call__(self, *args: str, stdin: str | None = None) -> tuple[bool, str]:
        done = subprocess.run([*self._command, *args], input=stdin, capture_output=True, text=True, check=False)
        return done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def driver_n1(lab: Lab) -> As:
    return As(lab, lab.node("n1").dir / "driver.kubeconfig")


@pytest.fixture
def editor(lab: Lab, namespace: str) -> Iterator[As]:
    """A person with the built-in role edit, and the rights on claims that DRA users are given, in one namespace."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "claims"},
        "rules": [
            {
                "apiGroups": ["resource.k8s.io"],
                "resources": ["resourceclaims", "resourceclaimtemplates"],
                "verbs": ["*"],
            }
        ],
    }
    lab.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(role))
    lab.kubectl("-n", namespace, "create", "rolebinding", "claims", "--role=claims", "--user=eve")
    lab.kubectl("-n", namespace, "create", "rolebinding", "edit", "--clusterrole=edit", "--user=eve")
    yield As(lab, lab.admin_kubeconfig, "--as=eve", "-n", namespace)
    lab.kubectl("-n", namespace, "delete", "rolebinding/claims", "rolebinding/edit", "role/claims")


def test_the_driver_is_no_administrator(driver_n1: As) -> None:
    for verb, what in (
        ("list", "secrets"),
        ("create", "pods"),
        ("list", "pods"),
        ("delete", "nodes"),
        ("update", "resourceclaims/binding"),
        ("delete", "resourceclaims"),
        ("create", "deviceclasses.resource.k8s.io"),
    ):
        allowed, output = driver_n1("auth", "can-i", verb, what, "--all-namespaces")
        assert not allowed, f"{verb} {what}: {output}"


def test_the_driver_writes_slices_and_lease_of_its_own_node_only(lab: Lab, driver_n1: As) -> None:
    slices = lab.kubectl_json("get", "resourceslices")["items"]
    foreign = next(s for s in slices if s["spec"]["nodeName"] == "n2")
    own = next(s for s in slices if s["spec"]["nodeName"] == "n1")
    refused, why = driver_n1("delete", "resourceslice", foreign["metadata"]["name"])
    assert not refused
    assert "own node only" in why
    stolen = {**own, "metadata": {"name": "stolen"}, "spec": {**own["spec"], "nodeName": "n2"}}
    stolen["spec"]["pool"] = {**own["spec"]["pool"], "name": "stolen"}
    refused, why = driver_n1("create", "-f", "-", stdin=json.dumps(stolen))
    assert not refused
    assert "own node only" in why
    for spoil in ({"pool": {**own["spec"]["pool"], "name": "n2/gpu-0"}}, {"driver": "other.example.com"}):
        forged = {**own, "metadata": {"name": own["metadata"]["name"] + "-forged"}, "spec": {**own["spec"], **spoil}}
        done, why = driver_n1("create", "-f", "-", stdin=json.dumps(forged))
        assert not done
        assert "own node only" in why
    squatting = {**own, "metadata": {"name": foreign["metadata"]["name"].replace("gpu-0", "gpu-9")}}
    done, why = driver_n1("create", "-f", "-", stdin=json.dumps(squatting))
    assert not done
    assert "after its own node" in why
    refused, why = driver_n1(
        "-n", names.NAMESPACE, "patch", "lease", names.lease_name("n2"), "--type=merge", "-p", '{"spec":{}}'
    )
    assert not refused or "no change" in why
    refused, why = driver_n1(
        "-n", names.NAMESPACE, "annotate", "lease", names.lease_name("n2"), "--overwrite", f"{names.REPORT}=lie"
    )
    assert not refused
    assert "own node only" in why


def test_a_driver_touches_neither_allocation_nor_claims_of_other_nodes(cluster: Cluster, driver_n1: As) -> None:
    cluster.pod("theirs", mig(profile="1g.10gb", gpu=cluster.gpus("n2")[0]))
    cluster.running("theirs")
    name = cluster.claim_of("theirs")["metadata"]["name"]
    in_namespace = ("-n", NAMESPACE)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "no-such-uid"}
    attempts: tuple[tuple[dict[str, object], tuple[str, ...]], ...] = (
        ({"metadata": {"finalizers": []}}, ()),
        ({"metadata": {"finalizers": [names.HELD]}}, ()),
        ({"metadata": {"ownerReferences": [owner]}}, ()),
        ({"metadata": {"labels": {"a": "b"}}}, ()),
        ({"metadata": {"annotations": {"other.io/word": "x"}}}, ()),
        ({"metadata": {"annotations": {names.NODE: "n1"}}}, ()),
        ({"metadata": {"annotations": {names.HOLD: None}}}, ()),
        ({"status": {"devices": []}}, ("--subresource=status",)),
        ({"status": {"allocation": None}}, ("--subresource=status",)),
    )
    for patch, sub in attempts:
        done, why = driver_n1(
            *in_namespace, "patch", "resourceclaim", name, *sub, "--type=merge", "-p", json.dumps(patch)
        )
        assert not done, f"{patch}: {why}"
    assert names.HELD in cluster.claim_of("theirs")["metadata"]["finalizers"]


@pytest.mark.parametrize("who", ["editor", "admin"])
def test_nobody_else_takes_the_finalizer_or_writes_our_words(cluster: Cluster, editor: As, who: str, lab: Lab) -> None:
    person = editor if who == "editor" else As(lab, lab.admin_kubeconfig, "-n", NAMESPACE)
    cluster.pod("mine", mig(profile="1g.10gb"))
    cluster.running("mine")
    name = cluster.claim_of("mine")["metadata"]["name"]
    patches: tuple[dict[str, object], ...] = (
        {"metadata": {"finalizers": []}},
        {"metadata": {"annotations": {names.NODE: "n9"}}},
        {"metadata": {"annotations": {names.NODE: None}}},
        {"metadata": {"annotations": {names.RELEASE: "now"}}},
    )
    for patch in patches:
        done, why = person("patch", "resourceclaim", name, "--type=merge", "-p", json.dumps(patch))
        assert not done
        assert "dynamig" in why, why
    # A label of one's own is one's own business.
    done, why = person("label", "resourceclaim", name, "team=a")
    assert done, why


def test_our_words_are_refused_at_creation_and_inside_templates(cluster: Cluster, editor: As) -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "forged", "finalizers": [names.HELD]},
        "spec": {"devices": {"requests": [mig()]}},
    }
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "forged"},
        "spec": {"metadata": {"annotations": {names.NODE: "n1"}}, "spec": claim["spec"]},
    }
    for obj in (claim, template):
        done, why = editor("create", "-f", "-", stdin=json.dumps(obj))
        assert not done
        assert "dynamig" in why, why


def test_the_lab_gives_the_driver_a_token_bound_to_its_node(lab: Lab, driver_n1: As) -> None:
    done, output = driver_n1("auth", "whoami", "-o", "json")
    assert done, output
    extra = json.loads(output)["status"]["userInfo"]["extra"]
    assert extra["authentication.kubernetes.io/node-name"] == ["n1"]
