"""Why a prepare did not succeed (PROTOCOL P8). The same words are error codes, condition reasons and log fields.

RETRY: the kubelet's next attempt may succeed. FINAL: it cannot, until somebody changes something.
"""

from __future__ import annotations

from typing import Final

RETRY: Final = frozenset(
    {
        "PLACEMENT_BUSY",  # the claim before us has not left its placement yet
        "RETIRING",  # this very claim is being unprepared
        "HELD_ELSEWHERE",  # the claim is still held by another node
        "IN_USE",  # NVML: a client holds the instance or the GPU
        "DEVICE_NODE_MISSING",  # /dev/nvidia* not there yet
        "MIG_MODE_SWITCHING",
        "API_UNAVAILABLE",
        "NVML_UNAVAILABLE",
        "NVML_TIMEOUT",
        "NOT_AS_ASKED",  # read back something else than was asked for
        "JOURNAL_UNWRITABLE",
        "CONFLICT",
        "OVERLOADED",
    }
)

FINAL: Final = frozenset(
    {
        "CLAIM_GONE",
        "CLAIM_DELETED",
        "CLAIM_CHANGED",
        "NOT_ALLOCATED",
        "RELEASED",
        "UNKNOWN_DEVICE",
        "FOREIGN_INSTANCE",
        "MIG_MODE",
        "UNSUPPORTED_CONFIG",
        "ADMIN_ACCESS",
        "NO_ROOM",
        "NO_PERMISSION",
        "FORBIDDEN",
        "NOT_SUPPORTED",
        "INVALID",
    }
)
