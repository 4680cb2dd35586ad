"""dynamig's parts in the lab: manifests, tokens, the driver's configuration."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from dynamig.errors import Refused
from lab import components
from lab.components import TOKEN_S, DriverFiles, driver_config, manifests, token_problem

NOW = 1_000_000.0


def token(**claims: Any) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"header.{payload}.signature"


def bound(uid: str, left_s: float) -> str:
    return token(exp=NOW + left_s, **{"kubernetes.io": {"node": {"name": "n1", "uid": uid}}})


def test_a_token_is_kept_while_it_is_good() -> None:
    assert token_problem(bound("u1", TOKEN_S), "u1", NOW) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (bound("u2", TOKEN_S), "another Node"),
        (bound("u1", TOKEN_S / 3), "expires soon"),
        (token(exp=NOW + TOKEN_S), "unreadable"),
        ("no token", "unreadable"),
        ("", "unreadable"),
    ],
)
def test_a_token_is_replaced_when_it_is_not(text: str, problem: str) -> None:
    assert problem in (token_problem(text, "u1", NOW) or "")


def test_namespaces_come_before_what_is_in_them_whatever_the_files_names(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: ServiceAccount\n---\n---\nkind: Role\n")
    (tmp_path / "z.yaml").write_text("kind: Namespace\n")
    found = manifests(components.manifest_files(tmp_path))
    assert [item["kind"] for item in found] == ["Namespace", "ServiceAccount", "Role"]


def test_a_template_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("kind: {{ .Values.kind }}\n")
    with pytest.raises(Refused, match=r"t\.yaml"):
        manifests([tmp_path / "t.yaml"])


def test_everything_that_the_driver_hands_to_containers_is_below_the_nodes_folder(tmp_path: Path) -> None:
    """The machine sees nothing else of the host, so another path would not exist where runc mounts it."""
    config = driver_config(DriverFiles(tmp_path), "n1")
    paths = [mount["hostPath"] for mount in config["containerEdits"]["mounts"]]
    paths += [config[key] for key in ("devRoot", "procRoot", "cdiDir", "kubeletDir", "stateDir", "socket")]
    assert all(Path(path).is_relative_to(tmp_path) for path in paths)


def test_older_code_of_the_driver_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    before = components.source_digest(tmp_path)
    (tmp_path / "a.py").write_text("2")
    assert components.source_digest(tmp_path) != before


def test_a_rebuilt_library_reaches_the_node_and_the_old_one_stays_with_its_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = tmp_path / "built.so"
    built.write_text("v1")
    monkeypatch.setattr(components, "LIBRARY", built)
    files = DriverFiles(tmp_path / "node")
    files.library.parent.mkdir(parents=True)
    components.copy_programs(files)
    with files.library.open() as in_use:
        built.write_text("v2")
        components.copy_programs(files)
        assert (in_use.read(), files.library.read_text()) == ("v1", "v2")
