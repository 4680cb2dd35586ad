"""How clients of the Kubernetes API are sent to a server of a test."""

from __future__ import annotations

from pathlib import Path

import yaml


def kubeconfig(path: Path, server: str, token_file: Path | None = None) -> Path:
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [context],
        "users": [{"name": "u", "user": {"token": "t"} if token_file is None else {"tokenFile": str(token_file)}}],
    }
    path.write_text(yaml.safe_dump(body))
    return path
