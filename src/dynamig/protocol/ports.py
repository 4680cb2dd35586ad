"""The small interfaces through which the driver reaches the API server, the disk and the container runtime.

Each has one set of checks in `dynamig.testing.checks` that runs on the fake and on the real adapter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dynamig.protocol.claims import ClaimRef, ClaimView
from dynamig.protocol.records import ClaimRecord
from dynamig.protocol.seen import Seen


class Claims(Protocol):
    """ResourceClaims. A write names the resourceVersion it was decided on and raises Conflict if that has passed."""

    def get(self, ref: ClaimRef) -> Seen[ClaimView]:
        """`Gone` also when the name now belongs to another UID."""
        ...

    def hold(self, claim: ClaimView, annotations: Mapping[str, str]) -> ClaimView:
        """Our finalizer and `annotations` are on the claim; the new view."""
        ...

    def let_go(self, claim: ClaimView) -> None:
        """Our finalizer and our annotations are off the claim. Nothing to do when the claim has gone."""
        ...

    def report(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> None:
        """`status.devices` entries of our driver are exactly `devices`. Gone or deallocated claims: no effect."""
        ...

    def held_on(self, node: str) -> Sequence[ClaimView]:
        """Every claim that carries our finalizer and names `node`. Costs one list of all claims: for start-up, and for
        people who ask."""
        ...


class SetObjects(Protocol):
    """Pods and claims of Slurm namespaces, as the bridge writes them. Every write names the resourceVersion that it was
    decided on and raises Conflict if that has passed."""

    def note(self, claim: ClaimView, annotations: Mapping[str, str | None]) -> ClaimView:
        """`held` and Kubernetes' delete-protection finalizer are on the claim, and so are `annotations`; those that are
        None are not."""
        ...

    def allocate(self, claim: ClaimView, allocation: Mapping[str, Any]) -> ClaimView: ...
    def deallocate(self, claim: ClaimView) -> ClaimView:
        """No allocation, and no word that it was verified."""
        ...

    def let_go(self, claim: ClaimView) -> None: ...
    def all_held(self) -> Sequence[ClaimView]:
        """Every claim that is allocated or carries our finalizer, read from the server now."""
        ...

    def ungate(self, namespace: str, name: str, uid: str, generation: int) -> None:
        """Toleration for managed nodes and the gate's removal, in one patch. Raises Conflict if the pod's spec is not
        that of this generation any more."""
        ...

    def tell(self, namespace: str, name: str, uid: str, reason: str, message: str) -> None:
        """The pod's condition `dynamig.io/Slurm` says this, and an event on the pod. Nothing for a pod that is gone."""
        ...

    def end(self, namespace: str, name: str, uid: str, reason: str, message: str, grace: int) -> None:
        """The same, and the pod is being deleted: it has `grace` seconds to end, also if somebody gave it more."""
        ...


class Slices(Protocol):
    """ResourceSlices of this driver on this node, as plain API objects."""

    def published(self) -> Sequence[dict[str, Any]]: ...
    def write(self, wanted: Mapping[str, Any], published: Mapping[str, Any] | None) -> None: ...
    def delete(self, name: str) -> None: ...


class NodeReport(Protocol):
    """The Lease of this node: renewed now, with `content` in its annotation."""

    def renew(self, content: str) -> None: ...


class LeaseObject(Protocol):
    """One Lease, as plain API objects. Its writes raise Conflict if somebody else's write came between."""

    def read(self) -> Mapping[str, Any] | None:
        """None: the server says that there is none."""
        ...

    def create(self, spec: Mapping[str, Any]) -> None: ...
    def replace(self, lease: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        """`lease`, as it was read, has this spec now."""
        ...


class Journal(Protocol):
    """Claim records on disk. `write`, `restore` and `forget` return after the disk has it, or raise Unavailable."""

    def records(self) -> Mapping[str, ClaimRecord]:
        """All records by claim UID, as last written."""
        ...

    def unreadable(self) -> Mapping[str, str]:
        """Claim UID to path, of records that could not be read. They are kept as they are, and a `write` for such a
        claim is Refused: nobody knows what it owns."""
        ...

    def write(self, record: ClaimRecord) -> None: ...
    def restore(self, record: ClaimRecord) -> str | None:
        """Like `write`, also for a claim whose record could not be read: that one is kept beside it, under the path
        returned. None where nothing was damaged."""
        ...

    def forget(self, uid: str) -> None: ...


class CdiFiles(Protocol):
    """CDI specification files of our kind, one a claim. Other vendors' files are never touched."""

    def write(self, uid: str, spec: Mapping[str, Any]) -> None: ...
    def remove(self, uid: str) -> None: ...
    def claims(self) -> Sequence[str]:
        """UIDs that have a file."""
        ...

    def read(self, uid: str) -> Mapping[str, Any] | None:
        """The specification as it is on disk; None if there is none or it is not readable as one."""
        ...
