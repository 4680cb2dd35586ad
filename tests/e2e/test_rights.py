"""Who may write what, on the real API server: drivers and bridge with their own tokens, and people as plain editors."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightkube import ApiError, Client
from lightkube.types import PatchType

from dynamig.kube import connect
from dynamig.kube.client import Event, Lease, Pod, ResourceClaim
from dynamig.protocol import names
from lab import pki
from lab.lab import Lab
from tests.e2e.cluster import NAMESPACE, Cluster, mig, pod_object, until

SLURM_NAMESPACE = "e2e-slurm"
BRIDGE = "dynamig-bridge"


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


@pytest.fixture(scope="session")
def bridge_kubeconfig(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the bridge's service account, with a token of its own."""
    token = lab.kubectl("create", "token", BRIDGE, f"--namespace={names.NAMESPACE}").strip()
    kubeconfig = tmp_path_factory.mktemp("bridge") / "kubeconfig"
    server = f"https://127.0.0.1:{lab.spec.ports.apiserver}"
    kubeconfig.write_text(pki.kubeconfig(server, lab.layout.pki / "ca.crt", {"token": token}))
    return kubeconfig


@pytest.fixture(scope="session")
def bridge(bridge_kubeconfig: Path) -> Client:
    """Calls as the bridge makes them. kubectl reads what it patches first, for which the bridge has no right."""
    return connect(bridge_kubeconfig)


def denied(attempt: Callable[[], object]) -> str:
    """Why the API server refused it."""
    with pytest.raises(ApiError) as caught:
        attempt()
    return str(caught.value.status.message)


@pytest.fixture
def editor(lab: Lab, namespace: str) -> Iterator[As]:
    yield from an_editor(lab, namespace)


@pytest.fixture(scope="module")
def slurm_namespace(lab: Lab) -> Iterator[str]:
    """A namespace whose pods Slurm would pay for. There is no bridge in this lab: what is gated stays gated."""
    lab.kubectl("delete", "namespace", SLURM_NAMESPACE, "--ignore-not-found", "--wait=true", "--timeout=90s")
    lab.kubectl("create", "namespace", SLURM_NAMESPACE)
    lab.kubectl("label", "namespace", SLURM_NAMESPACE, f"{names.SCHEDULER_LABEL}=slurm")
    yield SLURM_NAMESPACE
    lab.kubectl("delete", "namespace", SLURM_NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def slurm_editor(lab: Lab, slurm_namespace: str) -> Iterator[As]:
    yield from an_editor(lab, slurm_namespace)


def an_editor(lab: Lab, namespace: str) -> Iterator[As]:
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
    driver = connect(lab.node("n1").dir / "driver.kubeconfig")
    lie = {"metadata": {"annotations": {names.REPORT: "lie"}}}
    patch = partial(driver.patch, Lease, obj=lie, namespace=names.NAMESPACE, patch_type=PatchType.MERGE)
    assert "own node only" in denied(partial(patch, names.lease_name("n2")))


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


def test_a_driver_holds_no_claim_that_is_not_allocated_on_its_node(cluster: Cluster, editor: As, driver_n1: As) -> None:
    accepted(editor, claim("free"))
    hold = {"metadata": {"finalizers": [names.HELD], "annotations": {names.NODE: "n1"}}}
    done, said = driver_n1("-n", NAMESPACE, "patch", "resourceclaim", "free", "--type=merge", "-p", json.dumps(hold))
    assert not done
    assert "holds a claim only that is allocated a device of its own node" in said, said
    assert editor("delete", "resourceclaim", "free")[0]


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


# -- what a namespace editor may do where Slurm pays -------------------------------------------------------------------


def template(name: str, **request: Any) -> dict[str, Any]:
    asked = {"name": "mig", "exactly": {"deviceClassName": "mig.nvidia.com"}} | request
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [asked]}}},
    }


def claim(name: str, **request: Any) -> dict[str, Any]:
    body = template(name, **request)
    return {**body, "kind": "ResourceClaim", "spec": body["spec"]["spec"]}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """A pod with one claim of a template of its name."""
    return pod_object(name, {"resourceClaimTemplateName": name}, "sleep 100000", "lab.local/tool:1", **spec)


def annotated(body: dict[str, Any], **words: str) -> dict[str, Any]:
    found = copy.deepcopy(body)
    found["metadata"]["annotations"] = {f"dynamig.io/{word.replace('_', '-')}": text for word, text in words.items()}
    return found


def asking(amount: dict[str, Any], where: str = "containers") -> dict[str, Any]:
    """A pod with these resources in one container, and no claims."""
    body = pod("extended")
    del body["spec"]["resourceClaims"], body["spec"]["containers"][0]["resources"]
    asks = {"name": "asks", "image": "lab.local/tool:1", "resources": amount}
    body["spec"][where] = [*body["spec"].get(where, ()), asks]
    return body


def refused(who: As, body: dict[str, Any], *why: str) -> None:
    done, said = who("create", "-f", "-", stdin=json.dumps(body))
    assert not done, f"{body['kind']} {body['metadata']['name']} was accepted"
    for part in why:
        assert part in said, said


def accepted(who: As, *bodies: dict[str, Any]) -> None:
    for body in bodies:
        done, said = who("create", "-f", "-", stdin=json.dumps(body))
        assert done, said


def test_a_pod_with_claims_is_gated_and_its_editor_cannot_let_it_go(lab: Lab, slurm_editor: As) -> None:
    toleration = {"key": names.MANAGED_TAINT, "operator": "Exists"}
    accepted(slurm_editor, template("mine"), pod("mine", tolerations=[toleration]))
    done, said = slurm_editor("get", "pod", "mine", "-o", "json")
    assert done, said
    assert json.loads(said)["spec"]["schedulingGates"] == [{"name": names.GATE}]
    condition = {"type": names.CONDITION, "status": "True", "reason": names.PAID}
    bind = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "mine"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    for args in (
        ("patch", "pod", "mine", "--type=merge", "-p", '{"spec":{"schedulingGates":null}}'),
        ("patch", "pod", "mine", "--type=merge", "-p", '{"spec":{"nodeName":"n1"}}'),
        ("patch", "pod", "mine", "--subresource=status", "-p", json.dumps({"status": {"conditions": [condition]}})),
        ("create", "--raw", f"/api/v1/namespaces/{SLURM_NAMESPACE}/pods/mine/binding", "-f", "-"),
    ):
        done, said = slurm_editor(*args, stdin=json.dumps(bind))
        assert not done, f"{args}: {said}"
    # Even who may bind and write status gets no further: the API binds no gated pod.
    admin = As(lab, lab.admin_kubeconfig)
    done, said = admin(
        "create", "--raw", f"/api/v1/namespaces/{SLURM_NAMESPACE}/pods/mine/binding", "-f", "-", stdin=json.dumps(bind)
    )
    assert not done
    assert "schedulingGates" in said, said


def test_who_chooses_node_or_scheduler_himself_is_refused(slurm_editor: As) -> None:
    refused(slurm_editor, pod("pinned", nodeName="n1"), "schedulingGates", "nodeName")
    refused(slurm_editor, pod("own", schedulerName="my-scheduler"), "leave spec.schedulerName out")


_ELSEWHERE = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        (
            {"topologySpreadConstraints": [_ELSEWHERE | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]},
            "topologySpreadConstraints",
        ),
        (
            {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_ELSEWHERE]}}},
            "podAntiAffinity",
        ),
        (
            {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_ELSEWHERE]}}},
            "podAffinity",
        ),
    ],
)
def test_what_depends_on_other_pods_is_refused_and_not_ignored(
    slurm_editor: As, wish: dict[str, Any], field: str
) -> None:
    """Case C-73. Preferences may be asked for, and so may anything by a pod without claims."""
    refused(slurm_editor, pod("together", **wish), field, "Slurm chooses the node")
    plain = pod(f"plain-{field.lower()}", **wish)
    del plain["spec"]["resourceClaims"], plain["spec"]["containers"][0]["resources"]
    accepted(slurm_editor, plain)


def test_preferences_about_other_pods_may_be_asked_for(slurm_editor: As) -> None:
    spread = _ELSEWHERE | {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
    apart = [{"weight": 1, "podAffinityTerm": _ELSEWHERE}]
    affinity = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": apart}}
    accepted(slurm_editor, pod("soft", topologySpreadConstraints=[spread], affinity=affinity))


@pytest.mark.parametrize(
    "request_",
    [
        {"exactly": {"deviceClassName": "mig.nvidia.com", "tolerations": [{"operator": "Exists"}]}},
        {"exactly": {"deviceClassName": "mig.nvidia.com", "tolerations": [{"key": "", "operator": "Exists"}]}},
        {
            "exactly": {
                "deviceClassName": "mig.nvidia.com",
                "tolerations": [{"key": names.MANAGED_TAINT, "operator": "Equal", "value": "managed"}],
            }
        },
        {
            "exactly": None,
            "firstAvailable": [
                {"name": "a", "deviceClassName": "gpu.nvidia.com"},
                {"name": "b", "deviceClassName": "mig.nvidia.com", "tolerations": [{"operator": "Exists"}]},
            ],
        },
    ],
    ids=["no key", "empty key", "ours", "an alternative"],
)
def test_no_claim_tolerates_the_taint(editor: As, slurm_editor: As, request_: dict[str, Any]) -> None:
    for who in (editor, slurm_editor):
        refused(who, claim("tolerant", **request_), "may not tolerate the device taint")
        refused(who, template("tolerant", **request_), "may not tolerate the device taint")


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "deviceclass.resource.kubernetes.io/x"])
@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_no_gpu_as_an_extended_resource(slurm_editor: As, name: str, where: str) -> None:
    amount = {name: "1"}
    refused(slurm_editor, asking({"limits": amount, "requests": amount}, where), "asks", "ResourceClaimTemplate")


def test_a_request_without_a_limit_and_an_ephemeral_container_get_no_gpu_either(lab: Lab, slurm_editor: As) -> None:
    """The API itself refuses both."""
    refused(slurm_editor, asking({"requests": {"nvidia.com/gpu": "1"}}), "limit")
    accepted(slurm_editor, template("debugged"), pod("debugged"))
    debug = {"name": "debug", "image": "lab.local/tool:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    body = {"spec": {"ephemeralContainers": [debug]}}
    patch = ("patch", "pod", "debugged", "--subresource=ephemeralcontainers", "-p", json.dumps(body))
    assert not slurm_editor(*patch)[0]
    done, said = As(lab, lab.admin_kubeconfig, "-n", SLURM_NAMESPACE)(*patch)
    assert not done
    assert "resources" in said, said


def test_a_pod_does_not_grow_beyond_what_its_job_holds(lab: Lab, slurm_editor: As) -> None:
    """Refused to whoever has the right: the administrator here."""
    small = pod("grows")
    small["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
    accepted(slurm_editor, template("grows"), small)
    bigger = {"name": "main", "resources": {"requests": {"cpu": "64"}}}
    resize = json.dumps({"spec": {"containers": [bigger]}})
    admin = As(lab, lab.admin_kubeconfig, "-n", SLURM_NAMESPACE)
    done, said = admin("patch", "pod", "grows", "--subresource=resize", "-p", resize)
    assert not done
    assert "make a new pod" in said, said


def test_annotations_that_mean_nothing_or_come_later_are_refused(slurm_editor: As) -> None:
    for word in ("account", "user", "gres", "node", "hold", "priority"):
        refused(slurm_editor, annotated(pod("words"), **{word: "1"}), f"dynamig.io/{word} means nothing here")
    accepted(slurm_editor, template("words"), annotated(pod("words"), partition="low"))
    for change in ("dynamig.io/partition=all", "dynamig.io/qos=high", "dynamig.io/partition-", "dynamig.io/gres=gpu:1"):
        done, said = slurm_editor("annotate", "--overwrite", "pod", "words", change)
        assert not done, change
        assert "Make a new pod" in said, said
    done, said = slurm_editor("annotate", "pod", "words", "team.io/note=mine")
    assert done, said


def test_an_editor_allocates_nothing_even_with_all_rights_on_claims(lab: Lab, slurm_editor: As, bridge: Client) -> None:
    accepted(slurm_editor, claim("free"))
    allocation = {"devices": {"results": [_result("n1/gpu-0")]}, "allocationTimestamp": "2026-01-01T00:00:00Z"}
    args = ("patch", "resourceclaim", "free", "--subresource=status", "--type=merge")
    given = {"status": {"allocation": allocation}}
    done, said = slurm_editor(*args, "-p", json.dumps(given))
    assert not done
    assert "forbidden" in said.lower(), said
    admin = As(lab, lab.admin_kubeconfig, "-n", SLURM_NAMESPACE)
    done, said = admin(*args, "-p", json.dumps(given))
    assert not done
    assert "allocated by dynamig's bridge here" in said, said
    merge = partial(bridge.patch, name="free", namespace=SLURM_NAMESPACE, patch_type=PatchType.MERGE)
    finalizers = [names.HELD, "resource.kubernetes.io/delete-protection"]
    merge(ResourceClaim, obj={"metadata": {"finalizers": finalizers}})
    merge(ResourceClaim.Status, obj=given)
    moved = {"status": {"allocation": {"devices": {"results": [_result("n1/gpu-1")]}}}}
    done, said = admin(*args, "-p", json.dumps(moved))
    assert not done, "nobody moves an allocation"
    merge(ResourceClaim.Status, obj={"status": {"allocation": None}})
    merge(ResourceClaim, obj={"metadata": {"finalizers": None}})


def _result(pool: str) -> dict[str, str]:
    return {"request": "mig", "driver": names.DRIVER_NAME, "pool": pool, "device": "gpu-0-mig-1g10gb-19-0"}


# -- what the bridge may do --------------------------------------------------------------------------------------------


def test_the_bridge_is_no_administrator(lab: Lab, bridge_kubeconfig: Path) -> None:
    bridge = As(lab, bridge_kubeconfig)
    for verb, what in (
        ("list", "secrets"),
        ("get", "configmaps"),
        ("create", "pods"),
        ("create", "pods/binding"),
        ("update", "pods"),
        ("patch", "nodes"),
        ("patch", "namespaces"),
        ("delete", "resourceclaims"),
        ("create", "resourceclaims"),
        ("create", "resourceslices"),
        ("patch", "leases"),
        ("create", "serviceaccounts/token"),
        ("patch", "validatingadmissionpolicies"),
    ):
        allowed, said = bridge("auth", "can-i", verb, what, "--all-namespaces")
        assert not allowed, f"{verb} {what}: {said}"


def test_the_bridge_only_reads_where_slurm_does_not_pay(cluster: Cluster, bridge: Client) -> None:
    cluster.apply(template("theirs"), pod("theirs", schedulingGates=[{"name": names.GATE}]))
    name = until(lambda: cluster.claim_of("theirs")["metadata"]["name"])
    about = {"kind": "Pod", "name": "theirs", "namespace": NAMESPACE}
    event: dict[str, Any] = {"metadata": {"name": "theirs.1", "namespace": NAMESPACE}, "involvedObject": about}
    merge = partial(bridge.patch, namespace=NAMESPACE, patch_type=PatchType.MERGE)
    for attempt in (
        partial(merge, Pod, "theirs", {"spec": {"schedulingGates": None}}),
        partial(merge, Pod.Status, "theirs", {"status": {"reason": "x"}}),
        partial(bridge.delete, Pod, "theirs", namespace=NAMESPACE),
        partial(merge, ResourceClaim, name, {"metadata": {"finalizers": [names.HELD]}}),
        partial(merge, ResourceClaim.Status, name, {"status": {"allocation": {"devices": {}}}}),
        partial(bridge.create, Event(**event)),
    ):
        assert "labelled dynamig.io/scheduler=slurm only" in denied(attempt)
    assert bridge.get(Pod, "theirs", namespace=NAMESPACE)


def test_the_bridge_changes_of_pods_and_claims_only_what_is_its_own(slurm_editor: As, bridge: Client) -> None:
    plain = asking({})
    plain["metadata"]["name"] = "plain"
    accepted(slurm_editor, template("let-go"), pod("let-go"), claim("shared"), plain)
    seen = bridge.get(Pod, "let-go", namespace=SLURM_NAMESPACE)["spec"]
    merge = partial(bridge.patch, namespace=SLURM_NAMESPACE, patch_type=PatchType.MERGE)
    everything = {"operator": "Exists"}
    for attempt in (
        partial(merge, Pod, "let-go", {"spec": {"containers": [{**seen["containers"][0], "image": "evil"}]}}),
        partial(merge, Pod, "let-go", {"metadata": {"labels": {"a": "b"}}}),
        partial(merge, Pod, "let-go", {"metadata": {"annotations": {"a": "b"}}}),
        partial(merge, Pod, "let-go", {"spec": {"nodeSelector": {"a": "b"}}}),
        partial(merge, Pod, "let-go", {"spec": {"tolerations": [*seen["tolerations"], everything]}}),
        partial(merge, ResourceClaim, "shared", {"metadata": {"finalizers": ["other.io/mine"]}}),
        partial(merge, ResourceClaim, "shared", {"metadata": {"labels": {"a": "b"}}}),
        partial(merge, ResourceClaim, "shared", {"metadata": {"annotations": {"a": "b"}}}),
        partial(bridge.delete, Pod, "plain", namespace=SLURM_NAMESPACE),
    ):
        assert "dynamig's bridge" in denied(attempt)
    ours = {"key": names.MANAGED_TAINT, "operator": "Exists"}
    merge(Pod, "let-go", {"spec": {"schedulingGates": None, "tolerations": [*seen["tolerations"], ours]}})
    bridge.delete(Pod, "let-go", namespace=SLURM_NAMESPACE)


def test_a_namespace_does_not_leave_slurm_by_the_way(lab: Lab) -> None:
    admin = As(lab, lab.admin_kubeconfig)
    confirm, slurms = "dynamig.io/confirm-empty", f"{names.SCHEDULER_LABEL}=slurm"
    admin("create", "namespace", "e2e-leaving")
    try:
        for _ in range(2):
            assert admin("label", "namespace", "e2e-leaving", slurms)[0]
            for change in (f"{names.SCHEDULER_LABEL}-", f"{names.SCHEDULER_LABEL}=other"):
                done, said = admin("label", "--overwrite", "namespace", "e2e-leaving", change)
                assert not done
                assert f"{confirm}=e2e-leaving" in said, said
            assert admin("annotate", "namespace", "e2e-leaving", f"{confirm}=e2e-leaving")[0]
            done, said = admin("label", "namespace", "e2e-leaving", f"{names.SCHEDULER_LABEL}-")
            assert done, said
            done, said = admin("label", "namespace", "e2e-leaving", slurms)
            assert not done, "what was said of the pods of then says nothing of those to come"
            assert f"kubectl annotate namespace e2e-leaving {confirm}-" in said, said
            assert admin("annotate", "namespace", "e2e-leaving", f"{confirm}-")[0]
    finally:
        lab.kubectl("delete", "namespace", "e2e-leaving", "--wait=false")


# -- the map -----------------------------------------------------------------------------------------------------------


def test_the_driver_reads_the_gpu_map_and_no_other_config_map(lab: Lab, driver_n1: As) -> None:
    in_namespace = ("-n", names.NAMESPACE)
    field = f"--field-selector=metadata.name={names.GPU_MAP}"
    done, said = driver_n1(*in_namespace, "get", "configmaps", field)
    assert done, said
    for args in (
        ("get", "configmaps"),
        ("get", "configmaps", "--field-selector=metadata.name=kube-root-ca.crt"),
        ("get", "configmap", "kube-root-ca.crt"),
        ("create", "configmap", names.GPU_MAP, "--from-literal=n1=x"),
    ):
        done, said = driver_n1(*in_namespace, *args)
        assert not done, f"{args}: {said}"
        assert "forbidden" in said.lower(), said
