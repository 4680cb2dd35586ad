"""Versions: what NVML says, in the form the API server takes."""

from __future__ import annotations

import re

import pytest

from dynamig.dra import Version, semver
from dynamig.errors import Refused

# The expression of k8s.io/kubernetes v1.37.2 resource/validation, `semverRe`.
NUMBER, PRE, BUILD = r"(0|[1-9]\d*)", r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)", r"[0-9a-zA-Z-]+"
TAKEN = re.compile(rf"^{NUMBER}\.{NUMBER}\.{NUMBER}(-{PRE}(\.{PRE})*)?(\+{BUILD}(\.{BUILD})*)?$")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.82.07", "580.82.7"),
        ("550.54", "550.54.0"),
        ("9.0", "9.0.0"),
        ("13", "13.0.0"),
        ("570.124.06.01", "570.124.6+01"),
        ("580.82.07-open", "580.82.7+open"),
        (" v12.8 ", "12.8.0"),
        ("00.00.00", "0.0.0"),
        ("570.124.06 (beta_2)", "570.124.6+beta.2"),
    ],
)
def test_versions(text: str, version: str) -> None:
    assert semver(text) == version
    assert isinstance(semver(text), Version)
    assert TAKEN.match(semver(text))


def test_a_version_of_a_version_is_itself() -> None:
    assert semver(semver("570.124.06.01")) == semver("570.124.06.01")


@pytest.mark.parametrize("text", ["", "N/A", "Unknown Error", ".5", "1." + "2" * 70])
def test_what_is_no_version_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(Refused) as refusal:
        semver(text)
    assert refusal.value.code == "BAD_VERSION"
    assert repr(text) in refusal.value.what
