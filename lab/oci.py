"""Container images as OCI archives, without a registry or a build tool: pure but for the last function.

The archive is the same, byte for byte, for the same content, so its manifest's digest is known before containerd
imports it and tells whether a node has this very image. Source: OCI image-spec 1.1, image-layout.md, layer.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True, slots=True)
class Entry:
    """A path of the image: a file with `data`, a symbolic link `to` something, or (neither) a folder."""

    path: str
    data: bytes | None = None
    to: str | None = None
    mode: int = 0o755

    def header(self) -> tarfile.TarInfo:
        info = tarfile.TarInfo(self.path)
        info.mode = self.mode
        if self.data is not None:
            info.size = len(self.data)
        elif self.to is not None:
            info.type, info.linkname = tarfile.SYMTYPE, self.to
        else:
            info.type = tarfile.DIRTYPE
        return info


@dataclass(frozen=True, slots=True)
class Image:
    """`reference` is name:tag; `env` as NAME=value."""

    reference: str
    entries: tuple[Entry, ...]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ("PATH=/usr/bin:/bin",)
    blobs: Mapping[str, bytes] = field(default_factory=dict, init=False, repr=False)
    manifest_digest: str = field(default="", init=False)

    def __post_init__(self) -> None:
        blobs: dict[str, bytes] = {}
        layer = _store(blobs, LAYER_TYPE, layer_tar(self.entries))
        config = _store(blobs, CONFIG_TYPE, _json(self._config(layer["digest"])))
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": [layer]}
        descriptor = _store(blobs, MANIFEST_TYPE, _json(manifest))
        object.__setattr__(self, "blobs", blobs)
        object.__setattr__(self, "manifest_digest", descriptor["digest"])

    def _config(self, layer_digest: str) -> dict[str, Any]:
        run = {"Entrypoint": list(self.entrypoint), "Cmd": list(self.command), "Env": list(self.env)}
        layers = {"type": "layers", "diff_ids": [layer_digest]}
        return {"architecture": "amd64", "os": "linux", "config": run, "rootfs": layers}

    def archive(self) -> bytes:
        """The whole image layout as a tar."""
        size = len(self.blobs[self.manifest_digest])
        names = {"io.containerd.image.name": self.reference}
        descriptor = {"mediaType": MANIFEST_TYPE, "digest": self.manifest_digest, "size": size, "annotations": names}
        index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [descriptor]}
        files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
        files |= {f"blobs/sha256/{digest.partition(':')[2]}": data for digest, data in self.blobs.items()}
        return layer_tar([Entry(path, data, mode=0o644) for path, data in files.items()])


def layer_tar(entries: Sequence[Entry]) -> bytes:
    """Entries in the given order; no times, all owned by root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            tar.addfile(entry.header(), io.BytesIO(entry.data) if entry.data is not None else None)
    return buffer.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _store(blobs: dict[str, bytes], media_type: str, data: bytes) -> dict[str, Any]:
    """The descriptor of a blob that is now among `blobs`."""
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    blobs[digest] = data
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def write(image: Image, path: Path) -> None:
    """The image's archive is at `path`, whole."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(image.archive())
    temporary.rename(path)
