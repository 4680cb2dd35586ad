"""The image of a notebook, for labs that ask for it: Jupyter with a Python kernel from Debian, and NVIDIA's `pynvml`.

Made once (a minute or two and 36 MB of packages) and kept in the cache as an OCI archive of 210 MB with its digest
beside it, because packing that for every `up` would take longer than the rest of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pynvml

from lab import images, oci
from lab.cache import digest
from lab.commands import clean_env, run_long
from lab.execute import Cancel
from lab.oci import Entry, Image
from lab.progress import Task

REFERENCE = "lab.local/notebook:1"
PACKAGES = ("python3-jupyter-server", "python3-ipykernel")
BUILD_S = 90.0
SCRIPT = Path(__file__).parent / "images/notebook.sh"
PYNVML = Path(pynvml.__file__)
"""A module of one file."""

ARCHIVE, DIGEST = "image.tar", "digest"


def recipe_digest(debian: str) -> str:
    """`debian`: the recipe of the root below."""
    code = (SCRIPT, PYNVML, Path(__file__), Path(images.__file__))
    return digest(debian, *PACKAGES, *(path.read_text() for path in code))


def build(debian: Path, folder: Path, task: Task, cancel: Cancel, log: Path) -> None:
    """`folder` has the archive and the digest of its manifest."""
    isolate = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    script = ["sh", str(SCRIPT), str(debian), str(folder), *PACKAGES]
    run_long([*isolate, *script], task.tell, cancel, env=clean_env(), log=log)
    image = notebook_image(debian, folder)
    oci.write(image, folder / ARCHIVE)
    (folder / DIGEST).write_text(image.manifest_digest)
    shutil.rmtree(folder / "usr")
    (folder / "work").rmdir()


def notebook_image(debian: Path, tree: Path) -> Image:
    """The shell of the tool image, what is below `tree`/usr, and pynvml."""
    module = Entry("usr/lib/python3/dist-packages/pynvml.py", PYNVML.read_bytes(), mode=0o644)
    entries = {e.path: e for e in (*images.shell_entries(debian), *_tree(tree, "usr"), module)}
    return Image(REFERENCE, tuple(entries.values()), command=("/bin/sh",))


def _tree(root: Path, path: str) -> Iterator[Entry]:
    """Everything below root/path, by name, folders before what is in them."""
    with os.scandir(root / path) as found:
        for one in sorted(found, key=lambda e: e.name):
            inner = f"{path}/{one.name}"
            if one.is_symlink():
                yield Entry(inner, to=os.readlink(one.path))
            elif one.is_dir():
                yield Entry(inner)
                yield from _tree(root, inner)
            else:
                yield Entry(inner, Path(one.path).read_bytes(), mode=one.stat().st_mode & 0o777)
