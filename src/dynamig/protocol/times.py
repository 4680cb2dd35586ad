"""Times as the Kubernetes API has them: RFC 3339, UTC. Pure: nobody here asks for the present."""

from __future__ import annotations

from datetime import UTC, datetime


def to_rfc3339(seconds: float) -> str:
    """`seconds` of the epoch as metav1.Time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_micro_time(seconds: float) -> str:
    """`seconds` of the epoch as metav1.MicroTime, which Leases have."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_rfc3339(text: str) -> float:
    """Seconds of the epoch. Raises ValueError for anything else."""
    return datetime.fromisoformat(text).timestamp()
