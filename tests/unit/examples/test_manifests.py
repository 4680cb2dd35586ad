"""The manifests that users copy say what the cast of the demo expects of them, and need nothing but themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.demo import cast

FOLDER = Path(__file__).parents[3] / "examples/manifests"
FILES = sorted(FOLDER.glob("*.yaml"))
ACTS = {act.manifest: act for act in (*cast.ACTS, cast.WAITING)}


def objects(path: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def requests(path: Path) -> dict[str, str]:
    """Request name -> CEL expression, empty where there is none, of all claims of the file."""
    found = {}
    for item in objects(path):
        spec = item["spec"]["spec"] if item["kind"] == "ResourceClaimTemplate" else item["spec"]
        for request in spec.get("devices", {}).get("requests", ()):
            selectors = request["exactly"].get("selectors", ())
            found[request["name"]] = "".join(s["cel"]["expression"] for s in selectors)
    return found


def test_every_manifest_is_in_the_story() -> None:
    assert {path.name for path in FILES} == set(ACTS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_pods_and_containers_are_those_of_the_cast(path: Path) -> None:
    pods = {
        p["metadata"]["name"]: [c["name"] for c in p["spec"]["containers"]] for p in objects(path) if p["kind"] == "Pod"
    }
    assert pods == {role.pod: list(role.sees) for role in ACTS[path.name].roles}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_container_expects_the_profile_it_asks_for(path: Path) -> None:
    asked = requests(path)
    for pod in (p for p in objects(path) if p["kind"] == "Pod"):
        (role,) = (r for r in ACTS[path.name].roles if r.pod == pod["metadata"]["name"])
        for container in pod["spec"]["containers"]:
            (claim,) = container["resources"]["claims"]
            expression = asked[claim["request"]] if "request" in claim else "".join(asked.values())
            profile = re.search(r"profile == '([^']+)'", expression)
            if profile:
                assert role.sees[container["name"]] == profile[1]
            else:
                assert expression == "" or "compareTo(quantity('30Gi'))" in expression


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_manifest_names_only_claims_that_it_brings(path: Path) -> None:
    brought = {item["metadata"]["name"] for item in objects(path) if item["kind"].startswith("ResourceClaim")}
    for pod in (p for p in objects(path) if p["kind"] == "Pod"):
        for claim in pod["spec"]["resourceClaims"]:
            assert claim.get("resourceClaimTemplateName", claim.get("resourceClaimName")) in brought


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_manifest_says_what_it_shows(path: Path) -> None:
    assert path.read_text().startswith("# ")
