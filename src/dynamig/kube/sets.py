"""Pods and claims of Slurm namespaces over the API: implements `protocol.ports.SetObjects` for the bridge.

Allocation from outside the scheduler, as kube-scheduler 1.37.2 accepts it: delete-protection finalizer first, then
`status.allocation` with a time stamp and without reservation. Rights: `resourceclaims/binding` beside the status.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lightkube import Client
from lightkube.types import PatchType

from dynamig.errors import Conflict, Refused
from dynamig.kube.claims import every_claim, patch_metadata, remove_ours
from dynamig.kube.client import Pod, ResourceClaim, plain, translated
from dynamig.kube.events import write_event
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimView, read_claim
from dynamig.protocol.times import to_rfc3339

COMPONENT: Final = "dynamig-bridge"
"""Who events come from."""


class ApiSets:
    def __init__(self, client: Client, driver: str) -> None:
        self._client = client
        self._driver = driver

    def note(self, claim: ClaimView, annotations: Mapping[str, str | None]) -> ClaimView:
        finalizers = claim.finalizers | {names.HELD, names.DELETE_PROTECTION}
        return patch_metadata(self._client, self._driver, claim, finalizers, annotations)

    def allocate(self, claim: ClaimView, allocation: Mapping[str, Any]) -> ClaimView:
        return self._status(claim, {"allocation": dict(allocation)})

    def deallocate(self, claim: ClaimView) -> ClaimView:
        """The word goes before the allocation: what is not allocated must never look verified."""
        if claim.verified:
            claim = patch_metadata(self._client, self._driver, claim, claim.finalizers, {names.VERIFIED: None})
        return self._status(claim, {"allocation": None})

    def let_go(self, claim: ClaimView) -> None:
        remove_ours(self._client, self._driver, claim, {names.HELD, names.DELETE_PROTECTION})

    def all_held(self) -> Sequence[ClaimView]:
        found = every_claim(self._client, self._driver)
        return [c for c in found if c.held or c.devices_of(self._driver)]

    def ungate(self, namespace: str, name: str, uid: str, generation: int) -> None:
        """One merge patch on the pod as it was read: gate off, toleration for managed nodes on."""
        with translated(f"pod {namespace}/{name}"):
            pod = plain(self._client.get(Pod, name, namespace=namespace))
        if pod["metadata"]["uid"] != uid:
            return
        if pod["metadata"].get("generation", 0) != generation:
            raise Conflict("CONFLICT", f"pod {namespace}/{name} was changed meanwhile", "it is decided anew")
        gates = [g for g in pod["spec"].get("schedulingGates") or () if g["name"] != names.GATE]
        toleration = {"key": names.MANAGED_TAINT, "operator": "Exists"}
        tolerations = [t for t in pod["spec"].get("tolerations") or () if t != toleration]
        body = {
            "metadata": {"uid": uid, "resourceVersion": pod["metadata"]["resourceVersion"]},
            "spec": {"schedulingGates": gates or None, "tolerations": [*tolerations, toleration]},
        }
        with translated(f"pod {namespace}/{name}"):
            self._client.patch(Pod, name, body, namespace=namespace, patch_type=PatchType.MERGE)

    def tell(self, namespace: str, name: str, uid: str, reason: str, message: str) -> None:
        condition = {
            "type": names.CONDITION,
            "status": "True" if reason == names.PAID else "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": to_rfc3339(time.time()),
        }
        body = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        try:
            with translated(f"status of pod {namespace}/{name}"):
                self._client.patch(Pod.Status, name, body, namespace=namespace, patch_type=PatchType.STRATEGIC)
        except Refused as error:
            if error.code != "NOT_FOUND":
                raise
            return
        warning = reason not in names.NO_TROUBLE
        write_event(self._client, namespace, name, uid, reason, message, component=COMPONENT, warning=warning)

    def end(self, namespace: str, name: str, uid: str, reason: str, message: str, grace: int) -> None:
        self.tell(namespace, name, uid, reason, message)
        try:
            with translated(f"pod {namespace}/{name}"):
                self._client.delete(Pod, name, namespace=namespace, grace_period=grace)
        except Refused as error:
            if error.code != "NOT_FOUND":
                raise

    def _status(self, claim: ClaimView, status: Mapping[str, Any]) -> ClaimView:
        metadata = {"resourceVersion": claim.resource_version, "uid": claim.ref.uid}
        with translated(f"status of claim {claim.ref}"):
            answer = self._client.patch(
                ResourceClaim.Status,
                claim.ref.name,
                {"metadata": metadata, "status": dict(status)},
                namespace=claim.ref.namespace,
                patch_type=PatchType.MERGE,
            )
        return read_claim(plain(answer), self._driver)
