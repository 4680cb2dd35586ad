"""The library's outside: exactly nvml.h's symbols, a real SONAME, and nothing that ties it to this machine."""

import importlib.util
import re
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
OLDEST_GLIBC = (2, 17)
"""RHEL 7's: the library is mounted into containers that nobody here has built."""


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def names() -> set[str]:
    """Every function name of nvml.h, taken from its text without the generator's help."""
    [header] = [Path(str(f.locate())) for f in files("nvidia-nvml-dev") or [] if f.name == "nvml.h"]
    text = run("cc", "-E", "-P", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", "-x", "c", str(header))
    return set(re.findall(r"\b(nvml[A-Z]\w*)\s*\(", text))


def test_every_name_of_the_header_is_exported_and_little_else(library: Path, names: set[str]) -> None:
    exported = {line.split()[-1] for line in run("nm", "-D", "--defined-only", str(library)).splitlines()}
    assert len(names) > 400
    assert names - exported == set()
    assert {name for name in exported - names if not name.startswith("dynamig_emulator_")} == set()


def test_the_soname_is_the_real_one_and_only_libc_is_needed(library: Path) -> None:
    dynamic = run("readelf", "-dW", str(library))
    assert re.findall(r"\(SONAME\).*\[(.*)\]", dynamic) == ["libnvidia-ml.so.1"]
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic) == ["libc.so.6"]


def test_an_old_libc_is_enough(library: Path) -> None:
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", run("readelf", "-VW", str(library)))
    assert versions
    assert max((int(major), int(minor)) for major, minor in versions) <= OLDEST_GLIBC


def test_the_generator_refuses_a_header_that_is_not_nvml(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "emulator/generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = generate
    spec.loader.exec_module(generate)
    (tmp_path / "x.h").write_text("nvmlReturn_t nvmlInit(void);\n")
    with pytest.raises(SystemExit, match="does not look like"):
        generate.symbols(tmp_path / "x.h", "cc")
