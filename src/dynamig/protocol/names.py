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

UNHEALTHY_TAINT: Final = "dynamig.io/unhealthy"
"""Device taint: the GPU did not answer when it was last looked at, or not for long enough since."""

WITHDRAWN_TAINT: Final = "dynamig.io/withdrawn"
"""Device taint: policy or MIG mode no longer offer the device; it is published while a claim has it."""

EXTRA_KEY: Final = "dynamig"
"""Key of ours in the JSON object of a Slurm node's Extra: what pods hold there."""

DRAINED: Final = "dynamig: "
"""Beginning of the reasons for which we drain Slurm nodes: a drain that begins otherwise is somebody else's."""

CONDITION: Final = "dynamig.io/Slurm"
"""Pod condition type: why the pod waits in Slurm; True once a job pays for it."""

PAID: Final = "Paid"
"""Reason of that condition when it is True."""

SLURM_REFUSED: Final = "SlurmRefused"
"""Reason of that condition: Slurm refused the job, in its own words; it is submitted again after a while."""

NODE_NOT_READY: Final = "NodeNotReady"
"""Reason of that condition: the pod's Slurm job runs where no driver can make its devices now."""

HOLD_SUSPENDED: Final = "HoldSuspended"
"""Reason of that condition: the pod's Slurm job is suspended."""

HOLD_HELD: Final = "HoldHeld"
"""Reason of that condition: somebody lets the pod's Slurm job wait (`scontrol hold`)."""

HOLD_CHANGED: Final = "HoldChanged"
"""Reason of that condition: somebody changed what the pod's Slurm job asks for."""

OTHER_GATES: Final = "OtherGates"
"""Reason of that condition: somebody else's scheduling gates keep the pod from being scheduled, too."""

GPU_UNHEALTHY: Final = "GpuUnhealthy"
"""Reason of that condition: the pod's GPU does not answer."""

INSTANCE_LOST: Final = "InstanceLost"
"""Reason of a device's condition, and for which its pod is ended: the instance it was given is gone (reasons.py)."""

NO_TROUBLE: Final = frozenset({PAID, HOLD_HELD, OTHER_GATES, "SlurmPending", "WaitingForClaims"})
"""Reasons of that condition whose events are of type Normal. All others are warnings."""

PARTITION: Final = "dynamig.io/partition"
"""Pod annotation: Slurm partition, one that the administrator's map allows."""

QOS: Final = "dynamig.io/qos"
"""Pod annotation: QOS, one that the map allows."""

TIME_LIMIT: Final = "dynamig.io/time-limit"
"""Pod annotation: time limit of the job as sbatch takes it, at most the map's maximum."""

NICE: Final = "dynamig.io/nice"
"""Pod annotation: by how much the job's priority is lowered, as sbatch's --nice; never negative."""

POD_WORDS: Final = (NICE, PARTITION, QOS, TIME_LIMIT)
"""All annotations under dynamig.io/ that a pod may have. Others are refused at admission, and by the bridge."""

GPU_MAP: Final = "dynamig-gpu-map"
"""ConfigMap in the driver's namespace: per Kubernetes node its Slurm name, and which GPU each Slurm index is (P6)."""

PREPARED: Final = "Prepared"
"""Condition type on `status.devices[]` of a claim."""

BRIDGE_LEASE: Final = "dynamig-bridge"
"""Lease of the bridge that acts; the others stand by."""

LEASE_PREFIX: Final = "dynamig-node-"
REPORT: Final = "dynamig.io/report"
"""Lease annotation, JSON: boot id, sequence, registered, UIDs of claims that live or are intended."""

FIELD_MANAGER: Final = "dynamig-driver"


def lease_name(node: str) -> str:
    return LEASE_PREFIX + node


def cdi_kind(driver_name: str) -> str:
    """CDI vendor/class of the claims of one driver name: two drivers on one cluster never share a kind."""
    return f"k8s.{driver_name}/claim"
