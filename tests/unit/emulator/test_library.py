"""Which calls there are is read from the shared object: compared with what the linker's own tool says."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from dynamig.errors import Refused
from dynamig.testing.emulator.library import known_call, symbols_of

SOURCE = """
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(void) { return 0; }
int nvmlDeviceGetName(void) { return 0; }
static int nvmlHidden(void) { return 0; }
int other(void) { return nvmlHidden(); }
extern int nvmlElsewhere(void);
int more(void) { return nvmlElsewhere(); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    compiler = shutil.which("cc")
    assert compiler, f"a C compiler is needed, as for the emulator itself ({sysconfig.get_platform()})"
    (folder / "l.c").write_text(SOURCE)
    path = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-g", "-o", str(path), str(folder / "l.c")], check=True)
    return path


def test_symbols_are_those_that_are_exported_and_defined(library: Path) -> None:
    assert symbols_of(library) == ["nvmlDeviceGetCount_v2", "nvmlDeviceGetName", "nvmlInit_v2"]


@pytest.mark.parametrize("call", ["nvmlInit_v2", "nvmlInit", "nvmlDevice*", "nvml?nit_v[0-9]"])
def test_calls_and_patterns_that_hit_something_are_taken(library: Path, call: str) -> None:
    known_call(call, library)


@pytest.mark.parametrize(
    ("call", "near"), [("nvmlDeviceGetNam", "nvmlDeviceGetName"), ("nvmlInitv2", "nvmlInit_v2"), ("nvmlFoo*", "nvml.h")]
)
def test_a_misspelt_call_is_refused_with_what_is_near(library: Path, call: str, near: str) -> None:
    with pytest.raises(Refused, match="UNKNOWN_CALL") as told:
        known_call(call, library)
    assert near in told.value.next_step


def test_a_symbol_that_answers_no_code_is_refused(library: Path) -> None:
    with pytest.raises(Refused, match="nvmlErrorString answers a text"):
        known_call("nvmlErrorString", library)
    with pytest.raises(Refused, match="no call of NVML fits"):
        known_call("nvmlErrorStrin?", library)


def test_a_pattern_of_nothing_is_told_what_begins_as_it_does(library: Path) -> None:
    with pytest.raises(Refused, match=r"no call of NVML fits 'nvmlDeviceZ\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\*'") as told:
        known_call("nvmlDeviceZ???????????????*", library)
    assert told.value.next_step.startswith("with nvmlDevice begin nvmlDeviceGetCount_v2, nvmlDeviceGetName; ")
    with pytest.raises(Refused, match=r"no call of NVML fits 'foo\*'") as told:
        known_call("foo*", library)
    assert told.value.next_step.startswith("name one as nvmlDeviceGetCount_v2, or a pattern as nvmlDevice*; ")
