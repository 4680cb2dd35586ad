"""How clients of the Kubernetes API are sent to a server of a test."""

from __future__ import annotations

from pathlib import Path

import yaml


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
