"""Images: well formed, the same for the same content."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from dynamig.errors import Refused
from lab import notebook
from lab.blueprint import parse_images
from lab.images import LIBRARY_FOLDER, tool_images
from lab.oci import Entry, Image, layer_tar


def image(env: tuple[str, ...] = ("A=1",)) -> Image:
    entries = (Entry("bin"), Entry("bin/tool", b"code", mode=0o755), Entry("bin/sh", to="tool"))
    return Image("lab.local/x:1", entries, entrypoint=("/bin/tool",), env=env)


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = {info.name: tar.extractfile(info) for info in tar.getmembers() if info.isfile()}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_every_digest_in_the_archive_is_right() -> None:
    files = members(image().archive())
    for name, data in files.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(data).hexdigest() == name.rpartition("/")[2]
    descriptor = json.loads(files["index.json"])["manifests"][0]
    assert descriptor["digest"] == image().manifest_digest
    assert descriptor["annotations"]["io.containerd.image.name"] == "lab.local/x:1"
    manifest = json.loads(files[f"blobs/sha256/{descriptor['digest'].partition(':')[2]}"])
    for part in (manifest["config"], *manifest["layers"]):
        assert len(files[f"blobs/sha256/{part['digest'].partition(':')[2]}"]) == part["size"]
    config = json.loads(files[f"blobs/sha256/{manifest['config']['digest'].partition(':')[2]}"])
    assert config["config"] == {"Entrypoint": ["/bin/tool"], "Cmd": [], "Env": ["A=1"]}
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]


def test_the_same_content_is_the_same_image_and_another_is_not() -> None:
    assert image().archive() == image().archive()
    assert image().manifest_digest != image(env=("A=2",)).manifest_digest


def test_kinds_and_modes_of_entries() -> None:
    entries = [Entry("d", mode=0o1777), Entry("d/f", b"x", mode=0o640), Entry("d/l", to="f")]
    with tarfile.open(fileobj=io.BytesIO(layer_tar(entries))) as tar:
        folder, file, link = tar.getmembers()
        assert (folder.isdir(), folder.mode) == (True, 0o1777)
        assert (file.isfile(), file.mode, file.uid) == (True, 0o640, 0)
        assert (link.issym(), link.linkname) == (True, "f")


@pytest.fixture
def debian(tmp_path: Path) -> Path:
    """A root with a busybox that lists two applets, and a glibc of empty files."""
    libraries = tmp_path / LIBRARY_FOLDER
    for folder in (tmp_path / "usr/bin", tmp_path / "usr/lib64", libraries):
        folder.mkdir(parents=True)
    (tmp_path / "usr/bin/busybox").write_text("#!/bin/sh\nprintf 'busybox\\nsh\\nls\\n'\n")
    (tmp_path / "usr/bin/busybox").chmod(0o755)
    (tmp_path / "usr/lib64/ld-linux-x86-64.so.2").write_text("loader")
    for name in ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"):
        (libraries / name).write_text(name)
    return tmp_path


def test_the_hostile_image_differs_by_its_environment_only(debian: Path, tmp_path: Path) -> None:
    program = tmp_path / "nvml-list"
    program.write_text("v1")
    tool, hostile = tool_images(debian, program)
    assert tool.entries == hostile.entries
    assert set(hostile.env) - set(tool.env) == {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"}
    by_path = {entry.path: entry for entry in tool.entries}
    assert (by_path["usr/bin/sh"].to, by_path["usr/bin/nvml-list"].data) == ("busybox", b"v1")


def test_another_nvml_list_is_another_image(debian: Path, tmp_path: Path) -> None:
    program = tmp_path / "nvml-list"
    program.write_text("v1")
    before = tool_images(debian, program)[0].manifest_digest
    program.write_text("v2")
    assert tool_images(debian, program)[0].manifest_digest != before
    assert tool_images(debian, None)[0].manifest_digest != before


def test_a_root_without_glibc_is_refused_by_name(debian: Path) -> None:
    (debian / LIBRARY_FOLDER / "libm.so.6").unlink()
    with pytest.raises(Refused, match=r"lacks usr/lib/x86_64-linux-gnu/libm\.so\.6$|libm\.so\.6"):
        tool_images(debian, None)


def test_containerds_list_of_images() -> None:
    table = (
        "REF               TYPE                        DIGEST      SIZE    PLATFORMS   LABELS\n"
        "lab.local/pause:1 application/vnd.oci.image.m sha256:aaaa 1.2 MiB linux/amd64 io.cri=1\n"
    )
    assert parse_images(table) == {"lab.local/pause:1": "sha256:aaaa"}


def test_a_notebook_image_is_shell_tree_and_pynvml(debian: Path, tmp_path: Path) -> None:
    packages = tmp_path / "out/usr/lib/python3/dist-packages"
    packages.mkdir(parents=True)
    (packages / "jupyter.py").write_text("jupyter")
    (packages / "jupyter.py").chmod(0o640)
    (packages / "link").symlink_to("jupyter.py")
    shared = tmp_path / "out" / LIBRARY_FOLDER
    shared.mkdir(parents=True)
    (shared / "libc.so.6").write_text("the one that Python was linked against")
    found = notebook.notebook_image(debian, tmp_path / "out")
    by_path = {entry.path: entry for entry in found.entries}
    assert len(by_path) == len(found.entries), "no path twice"
    assert by_path["usr/bin/sh"].to == "busybox"
    assert by_path["usr/lib/python3/dist-packages/link"].to == "jupyter.py"
    assert by_path["usr/lib/python3/dist-packages/jupyter.py"].mode == 0o640
    assert by_path[f"{LIBRARY_FOLDER}/libc.so.6"].data == b"the one that Python was linked against"
    assert b"nvmlInit" in (by_path["usr/lib/python3/dist-packages/pynvml.py"].data or b"")
    paths = [entry.path for entry in found.entries]
    assert all(p.rpartition("/")[0] in ("", *paths[: paths.index(p)]) for p in paths), "folders before what is in them"


def test_another_root_is_another_notebook() -> None:
    assert notebook.recipe_digest("a") != notebook.recipe_digest("b")
