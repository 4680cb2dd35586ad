"""ResourceClaims over the API: implements `protocol.ports.Claims`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from lightkube import Client
from lightkube.types import PatchType

from dynamig.errors import Conflict, Refused
from dynamig.kube.client import ResourceClaim, plain, seen, translated
from dynamig.protocol import names
from dynamig.protocol.claims import ClaimRef, ClaimView, read_claim
from dynamig.protocol.seen import Found, Gone, Seen

OURS = (names.NODE, names.HOLD, names.RELEASE, names.VERIFIED)


class ApiClaims:
    def __init__(self, client: Client, driver: str, node: str) -> None:
        self._client = client
        self._driver = driver
        self._manager = f"{names.FIELD_MANAGER}-{node}"

    def get(self, ref: ClaimRef) -> Seen[ClaimView]:
        found = seen(f"claim {ref}", lambda: plain(self._client.get(ResourceClaim, ref.name, namespace=ref.namespace)))
        if not isinstance(found, Found):
            return found
        claim = read_claim(found.value, self._driver)
        if claim.ref.uid != ref.uid:
            return Gone(f"the name {ref.namespace}/{ref.name} now belongs to claim {claim.ref.uid}")
        return Found(claim)

    def hold(self, claim: ClaimView, annotations: Mapping[str, str]) -> ClaimView:
        return patch_metadata(self._client, self._driver, claim, claim.finalizers | {names.HELD}, annotations)

    def let_go(self, claim: ClaimView) -> None:
        remove_ours(self._client, self._driver, claim, {names.HELD})

    def report(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> None:
        """Server-side apply with a manager of this node: other drivers' entries in the same claim stay."""
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
            "status": {"devices": list(devices)},
        }
        try:
            with translated(f"status of claim {ref}"):
                self._client.patch(
                    ResourceClaim.Status,
                    ref.name,
                    body,
                    namespace=ref.namespace,
                    patch_type=PatchType.APPLY,
                    field_manager=self._manager,
                    force=True,
                )
        except (Refused, Conflict) as error:
            if error.code not in ("NOT_FOUND", "CONFLICT", "INVALID"):
                raise  # those three: the claim went, belongs to another UID, or is not allocated any more

    def held_on(self, node: str) -> Sequence[ClaimView]:
        claims = every_claim(self._client, self._driver)
        return [c for c in claims if c.held and c.held_by_node == node]


def every_claim(client: Client, driver: str) -> Sequence[ClaimView]:
    """Claims of all namespaces, as `driver` reads them."""
    with translated("listing claims"):
        return [read_claim(plain(c), driver) for c in client.list(ResourceClaim, namespace="*")]


def patch_metadata(
    client: Client, driver: str, claim: ClaimView, finalizers: Iterable[str], annotations: Mapping[str, str | None]
) -> ClaimView:
    """Finalizers replaced, annotations merged (None removes one); only on the claim as it was read."""
    metadata = {
        "resourceVersion": claim.resource_version,
        "uid": claim.ref.uid,
        "finalizers": sorted(finalizers),
        "annotations": dict(annotations),
    }
    with translated(f"claim {claim.ref}"):
        answer = client.patch(
            ResourceClaim,
            claim.ref.name,
            {"metadata": metadata},
            namespace=claim.ref.namespace,
            patch_type=PatchType.MERGE,
        )
    return read_claim(plain(answer), driver)


def remove_ours(client: Client, driver: str, claim: ClaimView, finalizers: Set[str]) -> None:
    """Takes `finalizers` and our annotations off; a claim that is gone has neither."""
    removed = {key: None for key in OURS if key in claim.annotations}
    try:
        patch_metadata(client, driver, claim, claim.finalizers - finalizers, removed)
    except Refused as error:
        if error.code != "NOT_FOUND":
            raise
