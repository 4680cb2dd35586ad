"""Every string that other programs read or write: finalizers, annotations, taints, conditions, object names."""

from __future__ import annotations

from typing import Final

DRIVER_NAME: Final = "gpu.nvidia.com"
"""Default DRA driver name; NVIDIA's, so that manifests written for its driver run unchanged."""

NAMESPACE: Final = "dynamig-system"

HELD: Final = "dynamig.io/held"
"""Claim finalizer: something of ours may live, or be accounted, for this claim."""

DELETE_PROTECTION: Final = "resource.kubernetes.io/delete-protection"
"""Kubernetes' own finalizer of allocated claims: whoever allocates puts it on, the claim controller takes it off."""

NODE: Final = "dynamig.io/node"
"""Claim annotation: plain name of the node that holds it. Admission compares it with the driver's token."""

HOLD: Final = "dynamig.io/hold"
"""Claim annotation, JSON: devices (and, with Slurm, set UID, attempt, job ids) that are held for the claim."""

RELEASE: Final = "dynamig.io/release"
"""Claim annotation: the bridge has let go of this allocation."""

VERIFIED: Final = "dynamig.io/verified"
"""Claim annotation: when the bridge re-checked the allocation and found it alone on its memory slices."""

GATE: Final = "dynamig.io/slurm"
"""Pod scheduling gate, put by admission in Slurm namespaces and removed by the bridge."""

SCHEDULER_LABEL: Final = "dynamig.io/scheduler"
"""Namespace label; the value `slurm` makes every pod with claims of ours pay in Slurm."""

MANAGED_TAINT: Final = "dynamig.io/slurm"
"""Device taint `managed:NoSchedule`: kube-scheduler never allocates the device behind the bridge's back."""

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Kubernetes' own node taint: an administrator's word that the node is powered off."""

FOREIGN_TAINT: Final = "dynamig.io/foreign"
"""Device taint: an instance that we cannot prove to be ours sits on memory slices of this device."""

WITHDRAWN_TAINT: Final = "dynamig.io/withdrawn"
"""Device taint: policy or MIG mode no longer offer the device; it is published while a claim has it."""

EXTRA_KEY: Final = "dynamig"
"""Key of ours in the JSON object of a Slurm node's Extra: what pods hold there."""

CONDITION: Final = "dynamig.io/Slurm"
"""Pod condition type: why the pod waits in Slurm."""

PREPARED: Final = "Prepared"
"""Condition type on `status.devices[]` of a claim."""

LEASE_PREFIX: Final = "dynamig-node-"
REPORT: Final = "dynamig.io/report"
"""Lease annotation, JSON: boot id, sequence, registered, UIDs of claims that live or are intended."""

FIELD_MANAGER: Final = "dynamig-driver"


def lease_name(node: str) -> str:
    return LEASE_PREFIX + node


def cdi_kind(driver_name: str) -> str:
    """CDI vendor/class of the claims of one driver name: two drivers on one cluster never share a kind."""
    return f"k8s.{driver_name}/claim"
