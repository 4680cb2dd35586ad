"""Errors of `dynamig gpus` and `ps` name the next step, with real files and a real closed port."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import yaml

from dynamig.cli import gpus
from dynamig.errors import Refused, Unavailable
from dynamig.kube.client import connect


def kubeconfig(path: Path, server: str) -> Path:
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [context],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.write_text(yaml.safe_dump(body))
    return path


def test_no_kubeconfig_names_the_file_and_the_ways_out(tmp_path: Path) -> None:
    with pytest.raises(Refused) as told:
        gpus._kubeconfig(None, home=lambda: tmp_path)
    assert str(tmp_path / ".kube/config") in told.value.what
    assert "KUBECONFIG" in told.value.next_step


def test_a_list_of_kubeconfigs_skips_missing_ones(tmp_path: Path) -> None:
    here = kubeconfig(tmp_path / "here", "http://127.0.0.1:1")
    assert gpus._kubeconfig(f"{tmp_path}/missing:{here}") == here


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
    for state in ("allocated", "ready", "failed", "leaving", "admin"):
        assert f"{state}: " in text
