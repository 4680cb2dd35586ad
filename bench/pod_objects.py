"""Namespaces and pods of the benches on the lab."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightkube import Client
from lightkube.generic_resource import create_namespaced_resource

from dynamig.errors import Unavailable
from dynamig.kube.client import Namespace, Pod, plain, seen, translated
from dynamig.protocol.seen import Found

Template = create_namespaced_resource("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates")
ServiceAccount = create_namespaced_resource("", "v1", "ServiceAccount", "serviceaccounts")

TEMPLATE = "one-slice"
PROFILE = "1g.10gb"
ACCOUNT_S = 30.0
FOR_EVER = "sleep 100000"


@contextmanager
def namespace(client: Client, labels: Mapping[str, str] | None = None) -> Iterator[str]:
    """A namespace with the claim template, ready for pods; deleted afterwards."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    with translated(f"namespace {name}"):
        client.create(Namespace(**_named(name, labels or {})))
    try:
        with translated(f"template {TEMPLATE}"):
            client.create(Template(**_template(name)))
        _wait_for_account(client, name)
        yield name
    finally:
        with translated(f"namespace {name}"):
            client.delete(Namespace, name)


def _named(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": dict(labels)}}


def create_pod(client: Client, namespace: str, name: str, *, claim: bool, command: str = FOR_EVER) -> float:
    """When its creation was asked for, by the monotonic clock."""
    pod = Pod(**_pod(namespace, name, claim=claim, command=command))
    begun = time.monotonic()
    with translated(f"pod {name}"):
        client.create(pod)
    return begun


def delete_pod(client: Client, namespace: str, name: str) -> float:
    """When its deletion was asked for."""
    begun = time.monotonic()
    with translated(f"pod {name}"):
        client.delete(Pod, name, namespace=namespace, grace_period=1)
    return begun


def _wait_for_account(client: Client, namespace: str) -> None:
    """Pods may be made: the API server refuses them until the namespace has its default service account."""
    end = time.monotonic() + ACCOUNT_S
    while not isinstance(
        seen("service account", lambda: plain(client.get(ServiceAccount, "default", namespace=namespace))), Found
    ):
        if time.monotonic() > end:
            raise Unavailable(
                "NO_ACCOUNT", f"{namespace}: no default service account in {ACCOUNT_S:.0f} s", "make lab-status"
            )
        time.sleep(0.1)


def _template(namespace: str) -> dict[str, Any]:
    selector = {"cel": {"expression": f"device.attributes['gpu.nvidia.com'].profile == '{PROFILE}'"}}
    request = {"name": "mig", "exactly": {"deviceClassName": "mig.nvidia.com", "selectors": [selector]}}
    return {
        "metadata": {"name": TEMPLATE, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def _pod(namespace: str, name: str, *, claim: bool, command: str) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "main",
        "image": "lab.local/tool:1",
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command],
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    if claim:
        spec["resourceClaims"] = [{"name": "devices", "resourceClaimTemplateName": TEMPLATE}]
        container["resources"] = {"claims": [{"name": "devices"}]}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
