"""The manifests that users copy say what the cast of the demo expects of them, and need nothing but themselves."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.demo import cast, desk
from lab import notebook

FOLDER = Path(__file__).parents[3] / "examples/manifests"
FILES = sorted(FOLDER.glob("*.yaml"))
ROLES = {role.manifest: role for role in cast.ROLES}


def objects(path: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def requests(path: Path) -> dict[str, str]:
    """Request name -> CEL expression, empty where there is none, of all claims of the file."""
    found = {}
    for item in (o for o in objects(path) if o["kind"] == "ResourceClaimTemplate"):
        for request in item["spec"]["spec"]["devices"]["requests"]:
            selectors = request["exactly"].get("selectors", ())
            found[request["name"]] = "".join(s["cel"]["expression"] for s in selectors)
    return found


def test_every_manifest_is_in_the_story() -> None:
    assert [path.name for path in FILES] == list(ROLES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_pods_and_containers_are_those_of_the_cast(path: Path) -> None:
    pods = {
        p["metadata"]["name"]: [c["name"] for c in p["spec"]["containers"]] for p in objects(path) if p["kind"] == "Pod"
    }
    role = ROLES[path.name]
    assert pods == {role.pod: list(role.sees)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_container_expects_the_profile_it_asks_for(path: Path) -> None:
    asked, role = requests(path), ROLES[path.name]
    for pod in (p for p in objects(path) if p["kind"] == "Pod"):
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
    brought = {(item["kind"], item["metadata"]["name"]) for item in objects(path)}
    for pod in (p for p in objects(path) if p["kind"] == "Pod"):
        for claim in pod["spec"]["resourceClaims"]:
            assert ("ResourceClaimTemplate", claim["resourceClaimTemplateName"]) in brought
        for volume in pod["spec"].get("volumes", ()):
            assert ("ConfigMap", volume["configMap"]["name"]) in brought


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_manifest_says_what_it_shows(path: Path) -> None:
    assert path.read_text().startswith("# ")


def test_the_notebook_is_one_cell_of_python_and_served_where_the_demo_asks() -> None:
    pod, config = ({o["kind"]: o for o in objects(FOLDER / cast.NOTEBOOK.manifest)}[k] for k in ("Pod", "ConfigMap"))
    (container,) = pod["spec"]["containers"]
    assert container["image"] == notebook.REFERENCE
    assert container["ports"] == [{"containerPort": cast.HOME_PAGE[1]}]
    command = " ".join(container["command"])
    path, _, token = desk.PATH.partition("?")
    assert f"--port={cast.HOME_PAGE[1]}" in command
    assert f"--IdentityProvider.{token}" in command
    ((name, text),) = config["data"].items()
    assert path.endswith(f"/{name}")
    (cell,) = json.loads(text)["cells"]
    ast.parse("".join(cell["source"]))
