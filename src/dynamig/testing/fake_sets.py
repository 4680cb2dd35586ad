"""Pods and claims of Slurm namespaces in memory, with the parts of kube-scheduler, kubelet and node driver that the
bridge's life depends on. Implements `protocol.ports.SetObjects`; keeps resourceVersions, finalizers and deletion."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dynamig.errors import Conflict, Refused
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef, ClaimView, read_claim
from dynamig.protocol.times import to_rfc3339
from dynamig.testing.fakes import Faults


class FakeSets:
    """`told` has what pods were told, latest last; `now` is the time at which they are, in seconds of the epoch;
    `unfit`: nodes on which kube-scheduler cannot place a pod, by its name."""

    def __init__(self, driver: str = names.DRIVER_NAME) -> None:
        self.faults = Faults()
        self.pods: dict[str, dict[str, Any]] = {}
        self.claims: dict[str, dict[str, Any]] = {}
        self.told: dict[str, list[tuple[str, str]]] = {}
        self.unfit: dict[str, Collection[str]] = {}
        self.driver = driver
        self.now = 0.0
        self._versions = itertools.count(1)

    # -- what users and Kubernetes do --------------------------------------------------------------------------

    def create_claim(
        self, name: str, spec: Mapping[str, Any], owner: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """A claim that somebody made by hand, or that Kubernetes made for the pod `owner`."""
        meta: dict[str, Any] = {"namespace": "ns", "name": name, "uid": f"claim-{name}", "finalizers": []}
        if owner is not None:
            meta["ownerReferences"] = [{"kind": "Pod", **owner, "controller": True}]
        self.claims[name] = {"metadata": meta, "spec": dict(spec), "status": {}}
        self._touch(self.claims[name])
        return self.claims[name]

    def create_pod(
        self, name: str, *claims: Mapping[str, Any], uses: Sequence[str] = (), unmade: str = "", cpu: str = "1"
    ) -> dict[str, Any]:
        """A gated pod with one claim per spec, generated as Kubernetes does; `uses`: claims made by hand; `unmade`: a
        template from which no claim is made."""
        uid = f"pod-{name}"
        entries, statuses = [], []
        for number, spec in enumerate(claims):
            claim_name = f"{name}-{number}"
            self.create_claim(claim_name, spec, {"name": name, "uid": uid})
            entries.append({"name": f"c{number}", "resourceClaimTemplateName": "t"})
            statuses.append({"name": f"c{number}", "resourceClaimName": claim_name})
        entries += [{"name": f"u{number}", "resourceClaimName": used} for number, used in enumerate(uses)]
        if unmade:
            entries.append({"name": "missing", "resourceClaimTemplateName": unmade})
        pod: dict[str, Any] = {
            "metadata": {
                "namespace": "ns",
                "name": name,
                "uid": uid,
                "creationTimestamp": to_rfc3339(self.now),
                "generation": 1,
            },
            "spec": {
                "resourceClaims": entries,
                "schedulingGates": [{"name": names.GATE}],
                "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}],
            },
            "status": {"phase": "Pending", "resourceClaimStatuses": statuses},
        }
        _say(pod, {"type": "PodScheduled", "reason": "SchedulingGated", "lastTransitionTime": to_rfc3339(self.now)})
        self._touch(pod)
        self.pods[name] = pod
        return pod

    def schedule(self) -> None:
        """kube-scheduler: an ungated pod whose claims are all allocated on one node that it may be on is bound, and
        reserves them; else its condition says Unschedulable, with the time at which it was gated (UpdatePodCondition,
        Kubernetes 1.37.2)."""
        for name, pod in self.pods.items():
            claims = self.claims_of(pod)
            if pod["spec"].get("schedulingGates") or pod["spec"].get("nodeName") or not claims:
                continue
            nodes = {_node_of(c) for c in claims}
            node = nodes.pop()
            if node is None or nodes or node in self.unfit.get(name, ()):
                why = {"reason": "Unschedulable", "message": "0/2 nodes are available"}
                _say(pod, {**_said(pod, "PodScheduled"), "status": "False", **why})
                continue
            pod["spec"]["nodeName"] = node
            pod["status"]["phase"] = "Running"
            self._touch(pod)
            for claim in claims:
                reserved = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
                claim["status"].setdefault("reservedFor", []).append(reserved)
                self._touch(claim)

    def narrow(self, name: str, selector: Mapping[str, str]) -> None:
        """Somebody narrows where a gated pod may be."""
        pod = self.pods[name]
        assert pod["spec"]["schedulingGates"]
        pod["spec"]["nodeSelector"] = {**pod["spec"].get("nodeSelector", {}), **selector}
        self._change(pod)

    def open_gate(self, name: str, gate: str) -> None:
        pod = self.pods[name]
        pod["spec"]["schedulingGates"] = [g for g in pod["spec"]["schedulingGates"] if g["name"] != gate]
        self._change(pod)

    def _change(self, pod: dict[str, Any]) -> None:
        pod["metadata"]["generation"] += 1
        self._touch(pod)

    def clear(self, claim: str) -> None:
        """kube-scheduler takes the allocation of a claim away, as it does where a pod fits nowhere."""
        self.claims[claim]["status"] = {}
        self._touch(self.claims[claim])

    def finish_pod(self, name: str) -> None:
        """The pod has succeeded. The claim controller takes its reservations away, deallocates what nobody reserves and
        deletes what was made for the pod."""
        pod = self.pods[name]
        pod["status"]["phase"] = "Succeeded"
        self._touch(pod)
        for claim in self.claims_of(pod):
            if claim["metadata"].get("ownerReferences"):
                claim["metadata"]["deletionTimestamp"] = to_rfc3339(self.now)
            self._unreserve(claim, name)

    def force_delete_pod(self, name: str) -> None:
        """The pod is gone at once; the garbage collector deletes what was made for it."""
        pod = self.pods.pop(name)
        for claim in self.claims_of(pod):
            if claim["metadata"].get("ownerReferences"):
                claim["metadata"]["deletionTimestamp"] = to_rfc3339(self.now)
            self._unreserve(claim, name)

    def _unreserve(self, claim: dict[str, Any], pod: str) -> None:
        """The claim controller takes the pod's reservation away, and deallocates a claim that nobody reserves: one that
        was reserved before, or that is being deleted."""
        before = claim["status"].get("reservedFor", [])
        reserved = [r for r in before if r["name"] != pod]
        if reserved:
            claim["status"]["reservedFor"] = reserved
        elif before or claim["metadata"].get("deletionTimestamp"):
            claim["status"] = {}
            claim["metadata"]["finalizers"] = [
                f for f in claim["metadata"]["finalizers"] if f != names.DELETE_PROTECTION
            ]
        self._touch(claim)

    def driver_lets_go(self, name: str) -> None:
        """The node's driver saw the hardware empty (PROTOCOL P3)."""
        for claim in self.claims_of(self.pods[name]):
            meta = claim["metadata"]
            if claim["status"].get("allocation"):
                continue  # another pod uses it
            assert meta.get("deletionTimestamp") or not claim["status"].get("allocation")
            meta["finalizers"] = [f for f in meta["finalizers"] if f != names.HELD]
            _forget_ours(meta)
            self._touch(claim)

    def drivers_let_go(self, nodes: Collection[str]) -> None:
        """What a driver does with claims of its node that are over: deleted, or deallocated and released (P3)."""
        for claim in list(self.claims.values()):
            meta = claim["metadata"]
            here = meta.get("annotations", {}).get(names.NODE) in nodes
            over = meta.get("deletionTimestamp") or names.RELEASE in meta.get("annotations", {})
            if here and over and not claim["status"].get("allocation") and names.HELD in meta["finalizers"]:
                meta["finalizers"] = [f for f in meta["finalizers"] if f != names.HELD]
                _forget_ours(meta)
                self._touch(claim)

    def claims_of(self, pod: Mapping[str, Any]) -> list[dict[str, Any]]:
        made = [s["resourceClaimName"] for s in pod["status"].get("resourceClaimStatuses", ())]
        made += [e["resourceClaimName"] for e in pod["spec"]["resourceClaims"] if "resourceClaimName" in e]
        return [self.claims[n] for n in made if n in self.claims]

    # -- the port ----------------------------------------------------------------------------------------------

    def note(self, claim: ClaimView, annotations: Mapping[str, str | None]) -> ClaimView:
        self.faults.check("note")
        obj = self._current(claim)
        meta = obj["metadata"]
        wanted = {*meta["finalizers"], names.HELD, names.DELETE_PROTECTION}
        if meta.get("deletionTimestamp") and wanted != set(meta["finalizers"]):
            raise Refused("INVALID", "no new finalizers can be added if the object is being deleted")
        meta["finalizers"] = sorted(wanted)
        merged = {**meta.get("annotations", {}), **annotations}
        meta["annotations"] = {key: value for key, value in merged.items() if value is not None}
        return self._touch(obj)

    def allocate(self, claim: ClaimView, allocation: Mapping[str, Any]) -> ClaimView:
        self.faults.check("allocate")
        obj = self._current(claim)
        assert names.DELETE_PROTECTION in obj["metadata"]["finalizers"]
        assert "allocationTimestamp" in allocation
        obj["status"] = {"allocation": copy.deepcopy(dict(allocation))}
        return self._touch(obj)

    def deallocate(self, claim: ClaimView) -> ClaimView:
        self.faults.check("deallocate")
        obj = self._current(claim)
        if obj["status"].get("reservedFor"):
            raise Conflict("CONFLICT", "reserved meanwhile")
        obj["metadata"].get("annotations", {}).pop(names.VERIFIED, None)
        obj["status"] = {}
        return self._touch(obj)

    def let_go(self, claim: ClaimView) -> None:
        self.faults.check("let_go")
        obj = self._current(claim)
        meta = obj["metadata"]
        meta["finalizers"] = [f for f in meta["finalizers"] if f not in (names.HELD, names.DELETE_PROTECTION)]
        _forget_ours(meta)
        self._touch(obj)

    def all_held(self) -> Sequence[ClaimView]:
        views = [read_claim(c, self.driver) for c in self.claims.values()]
        return [v for v in views if v.held or v.allocated]

    def ungate(self, namespace: str, name: str, uid: str, generation: int) -> None:
        self.faults.check("ungate")
        pod = self.pods[name]
        if pod["metadata"]["generation"] != generation:
            raise Conflict("CONFLICT", f"pod {name} was changed meanwhile")
        self.open_gate(name, names.GATE)

    def tell(self, namespace: str, name: str, uid: str, reason: str, message: str) -> None:
        story = self.told.setdefault(name, [])
        story.append((reason, message))
        if name in self.pods:
            condition = {"type": names.CONDITION, "reason": reason, "message": message}
            condition["lastTransitionTime"] = to_rfc3339(self.now)
            _say(self.pods[name], condition)

    def end(self, namespace: str, name: str, uid: str, reason: str, message: str, grace: int) -> None:
        self.tell(namespace, name, uid, reason, message)
        if name in self.pods:
            self.delete_pod(name, grace)

    def delete_pod(self, name: str, grace: float) -> None:
        """It has `grace` seconds to end; what it had is never made longer."""
        meta = self.pods[name]["metadata"]
        ends_by = to_rfc3339(self.now + grace)
        meta["deletionTimestamp"] = min(ends_by, meta.get("deletionTimestamp") or ends_by)

    def _current(self, claim: ClaimView) -> dict[str, Any]:
        obj = self.claims.get(claim.ref.name)
        if obj is None or obj["metadata"]["uid"] != claim.ref.uid:
            raise Refused("NOT_FOUND", f"claim {claim.ref}")
        if obj["metadata"]["resourceVersion"] != claim.resource_version:
            raise Conflict("CONFLICT", f"claim {claim.ref} was changed meanwhile")
        return obj

    def _touch(self, obj: dict[str, Any]) -> ClaimView:
        meta = obj["metadata"]
        meta["resourceVersion"] = str(next(self._versions))
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and meta["name"] in self.claims:
            del self.claims[meta["name"]]
        return _nothing() if "resourceClaims" in obj["spec"] else read_claim(obj, self.driver)


def _forget_ours(meta: dict[str, Any]) -> None:
    ours = (names.NODE, names.HOLD, names.RELEASE, names.VERIFIED)
    meta["annotations"] = {k: v for k, v in meta.get("annotations", {}).items() if k not in ours}


def _say(pod: dict[str, Any], condition: Mapping[str, Any]) -> None:
    """In place of what the pod's condition of that type said before."""
    others = [c for c in pod["status"].get("conditions", ()) if c["type"] != condition["type"]]
    pod["status"]["conditions"] = [*others, dict(condition)]


def _said(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(c for c in pod["status"]["conditions"] if c["type"] == kind)
    return found


def _node_of(claim: Mapping[str, Any]) -> str | None:
    """Where the claim's allocation lets pods be; None without one."""
    allocation = claim["status"].get("allocation")
    if not allocation:
        return None
    return str(allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def _nothing() -> ClaimView:
    return ClaimView(ClaimRef("", "", ""), "", False, frozenset(), {}, ())
