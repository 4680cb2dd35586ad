"""Why a prepare did not succeed (PROTOCOL P8). The same words are error codes, condition reasons and log fields.

RETRY: the kubelet's next attempt may succeed. FINAL: it cannot, until somebody changes something.
"""

from __future__ import annotations

from typing import Final

from dynamig.errors import Conflict, DynamigError, Unavailable

RETRY: Final = frozenset(
    {
        "API_UNAVAILABLE",
        "CLAIM_CHANGED",  # what it was allocated before is still prepared
        "CONFLICT",
        "DEVICE_NODE_MISSING",  # /dev/nvidia* not there yet
        "GPU_LOST",
        "HELD_ELSEWHERE",  # the claim is still held by another node
        "LENT",  # to a native Slurm job, until its epilog
        "LOAN_UNREADABLE",  # lent, and the record does not say to whom: an administrator has to look
        "IN_USE",  # NVML: a client holds the instance or the GPU
        "JOURNAL_UNWRITABLE",
        "MIG_MODE_SWITCHING",
        "NODE_REBOOTED",  # what the pod had is gone; the kubelet prepares it again
        "NOT_AS_ASKED",  # read back something else than was asked for
        "NOT_FOUND",  # NVML: gone between two calls
        "NOT_LOGGED_IN",  # the API server: the driver's token is to be renewed, as when its Node was made anew
        "NVML_TIMEOUT",
        "NVML_UNAVAILABLE",
        "OVERLOADED",
        "PLACEMENT_BUSY",  # the claim before us has not left its placement yet
    }
)

FINAL: Final = frozenset(
    {
        "ADMIN_ACCESS",
        "CLAIM_DELETED",
        "CLAIM_GONE",
        "FORBIDDEN",
        "FOREIGN_INSTANCE",
        "INSTANCE_LOST",  # of a pod that runs: no kubelet prepares it again
        "INVALID",
        "JOURNAL_DAMAGED",
        "MIG_MODE",
        "NOT_ALLOCATED",
        "NOT_SUPPORTED",
        "NO_PERMISSION",
        "NOT_HELD",  # on a node with Slurm: the bridge does not pay for this claim
        "NO_ROOM",
        "RELEASED",
        "STILL_ALLOCATED",  # of a release by hand
        "UNKNOWN_CLAIM",
        "UNKNOWN_DEVICE",
        "UNKNOWN_PROFILE",
        "UNSUPPORTED_CONFIG",
    }
)


def is_final(error: DynamigError) -> bool:
    """Whether trying again cannot help. A code that is in neither list goes by its family."""
    if error.code in RETRY:
        return False
    return error.code in FINAL or not isinstance(error, (Unavailable, Conflict))
