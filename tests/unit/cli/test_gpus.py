"""What `dynamig gpus` and `ps` read, with which rights; errors name the next step. Real files, a real closed port."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from dynamig.cli import app, cluster, gpus
from dynamig.errors import Refused, Unavailable
from dynamig.kube.client import connect
from tests.unit.cli.cluster import claim, device, pool, slices
from tests.unit.kube.server import kubeconfig


def test_no_kubeconfig_names_the_file_and_the_ways_out(tmp_path: Path) -> None:
    with pytest.raises(Refused) as told:
        cluster._kubeconfig(None, home=lambda: tmp_path)
    assert str(tmp_path / ".kube/config") in told.value.what
    assert "KUBECONFIG" in told.value.next_step


def test_a_list_of_kubeconfigs_skips_missing_ones(tmp_path: Path) -> None:
    here = kubeconfig(tmp_path / "here", "http://127.0.0.1:1")
    assert cluster._kubeconfig(f"{tmp_path}/missing:{here}") == here


@pytest.mark.parametrize("content", ["clusters: [", "just words", "{}", "- a\n- b"])
def test_a_file_that_is_no_kubeconfig_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(Refused, match=str(path)) as told:
        connect(path)
    assert told.value.code == "BAD_KUBECONFIG"


def test_an_api_server_that_is_down_is_told_with_a_command_to_try(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}")  # bound, not listening: refused
        with pytest.raises(Unavailable) as told:
            gpus.gpus(kubeconfig=str(config))
    assert told.value.code == "API_UNAVAILABLE"
    assert "kubectl" in told.value.next_step


def test_the_help_of_ps_explains_every_state() -> None:
    text = gpus.ps.__doc__ or ""
    for state in ("waiting", "allocated", "ready", "failed", "leaving", "admin"):
        assert f"{state}: " in text


def answering(answers: dict[str, Any], asked: list[str]) -> ThreadingHTTPServer:
    """An API server that lists what it is given, by the path or its last part, or answers with the status that
    stands there, and refuses the rest; `asked`: paths."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            asked.append(path)
            found = answers.get(path, answers.get(path.rsplit("/", 1)[1]))
            status = {"kind": "Status", "status": "Failure", "code": 403, "message": "no", "reason": "Forbidden"}
            answer: dict[str, Any] = {"metadata": {}, "items": found} if isinstance(found, list) else found or status
            body = json.dumps(answer).encode()
            self.send_response(answer.get("code", 200))
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


Api = Callable[..., str]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    running: list[ThreadingHTTPServer] = []

    def start(answers: dict[str, Any], asked: list[str] | None = None) -> str:
        running.append(server := answering(answers, [] if asked is None else asked))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return str(kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.server_port}"))

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


VIEWER = Path(__file__).parents[3] / "deploy/chart/templates/viewer-rbac.yaml"
GPU = pool()
PUBLISHED = {"resourceslices": slices(GPU), "resourceclaims": [claim("c", [(GPU, device("1g10gb-19-6", GPU))])]}


@pytest.mark.parametrize("command", [gpus.gpus, gpus.ps])
def test_whoever_may_read_slices_and_claims_only_gets_an_answer(
    api: Api, command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(kubeconfig=api(PUBLISHED))
    assert "n1/gpu-0" in capsys.readouterr().out


@pytest.mark.parametrize("command", [gpus.gpus, gpus.ps])
@pytest.mark.parametrize("allowed", [[], ["resourceslices"], ["resourceclaims"]])
def test_whoever_may_not_read_the_whole_cluster_is_told_what_to_do(
    api: Api, command: Callable[..., None], allowed: list[str]
) -> None:
    with pytest.raises(Refused) as told:
        command(kubeconfig=api({kind: PUBLISHED[kind] for kind in allowed}))
    assert told.value.code == "FORBIDDEN"
    for way_out in ("dynamig ps -n NAMESPACE", "dynamig-viewer"):
        assert way_out in told.value.next_step


RESOURCE, CORE = "/apis/resource.k8s.io/v1/namespaces/ml/", "/api/v1/namespaces/ml/"
POD = {
    "metadata": {"namespace": "ml", "name": "p", "uid": "p"},
    "spec": {"resourceClaims": [{"name": "x", "resourceClaimTemplateName": "t"}]},
}
COMPLAINT = {
    "metadata": {"namespace": "ml", "name": "e"},
    "reason": "FailedPrepareDynamicResources",
    "message": "the driver is not registered",
    "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "q", "uid": "q"},
}
OWN = {
    RESOURCE + "resourceclaims": [claim("c", [(GPU, device("1g10gb-19-6", GPU))], pods=["q"])],
    RESOURCE + "resourceclaimtemplates": [],
    CORE + "pods": [POD, {"metadata": {"namespace": "ml", "name": "q", "uid": "q"}, "spec": {"nodeName": "n1"}}],
    CORE + "events": [COMPLAINT],
}
"""What the ClusterRole `view` lets somebody read in the namespace ml."""


def test_rights_in_a_namespace_are_enough_for_what_is_in_it(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    gpus.ps(kubeconfig=api(OWN), namespace="ml", json=True)
    has, waits = json.loads(capsys.readouterr().out)
    assert (has["claim"], has["pool"], has["profile"], has["reason"]) == (
        "c",
        "n1/gpu-0",
        "unknown",
        "the driver is not registered",
    )
    assert (waits["pods"], waits["claim"], waits["state"]) == (["p"], "", "waiting")
    assert waits["reason"] == "there is no ResourceClaimTemplate t in its namespace"


def test_more_rights_tell_more_of_a_namespace(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    gpus.ps(kubeconfig=api({**OWN, "resourceslices": slices(GPU)}), namespace="ml", json=True)
    assert json.loads(capsys.readouterr().out)[0]["profile"] == "1g.10gb"


def test_a_namespace_may_have_nothing(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    gpus.ps(kubeconfig=api({RESOURCE + "resourceclaims": []}), namespace="ml")
    assert capsys.readouterr().out == "no claim in namespace ml has a device, and none waits\n"


def test_a_namespace_that_is_not_there_is_named(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    gone = {"kind": "Status", "status": "Failure", "code": 404, "message": "not found", "reason": "NotFound"}
    with pytest.raises(Refused, match="there is no namespace nl") as told:
        gpus.ps(kubeconfig=api({RESOURCE.replace("/ml/", "/nl/") + "resourceclaims": [], "nl": gone}), namespace="nl")
    assert told.value.code == "NO_NAMESPACE"
    assert capsys.readouterr().out == ""


def test_a_namespace_of_others_is_refused_with_the_right_that_is_missing(api: Api) -> None:
    with pytest.raises(Refused, match="reading ResourceClaims") as told:
        gpus.ps(kubeconfig=api(OWN), namespace="others")
    assert "view" in told.value.next_step


def test_the_viewers_role_has_all_that_is_read_and_no_more(api: Api) -> None:
    asked: list[str] = []
    held = claim("c", [(GPU, device("1g10gb-19-6", GPU))], pods=["q"])
    lists = ("pods", "nodes", "deviceclasses", "resourceclaimtemplates", "leases", "events", "devicetaintrules")
    gpus.gpus(kubeconfig=api({**{kind: [] for kind in lists}, **PUBLISHED, "resourceclaims": [held]}, asked))
    granted = set()
    for role in yaml.safe_load_all(VIEWER.read_text()):
        for rule in role["rules"]:
            assert set(rule["verbs"]) == {"get", "list"}
            granted |= {(group, kind) for group in rule["apiGroups"] for kind in rule["resources"]}
    assert {_kind(path) for path in asked} == granted


def _kind(path: str) -> tuple[str, str]:
    """API group and resource of a path."""
    parts = path.strip("/").split("/")
    return ("" if parts[0] == "api" else parts[1], parts[-1])


def test_silence_is_told_to_whoever_may_read_leases(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    report = {"v": 1, "bootId": "b", "sequence": 1, "registered": True, "claims": []}
    meta = {"name": "dynamig-node-n1", "annotations": {"dynamig.io/report": json.dumps(report)}}
    lease = {"metadata": meta, "spec": {"renewTime": "2026-01-01T00:00:00Z"}}
    gpus.gpus(kubeconfig=api({**PUBLISHED, "leases": [lease]}), json=True)
    (found,) = json.loads(capsys.readouterr().out)
    assert found["driver_silent_since"] == "2026-01-01T00:00:00+00:00"
    assert found["problem"].startswith("driver silent since 2026-01-01 ")


@pytest.mark.parametrize("command", [gpus.gpus, gpus.ps])
@pytest.mark.parametrize(("asked", "next_step"), [({"driver_name": "x.io"}, "kubectl"), ({"node": "nx"}, "n1")])
def test_nothing_found_is_an_error_with_the_empty_list_for_programs(
    api: Api,
    command: Callable[..., None],
    asked: dict[str, str],
    next_step: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(Refused, match="no GPU is published by") as told:
        command(kubeconfig=api(PUBLISHED), json=True, **asked)
    assert json.loads(capsys.readouterr().out) == []
    assert next_step in told.value.next_step


def test_the_version_is_told() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout.split()[0]) == (0, "dynamig")
