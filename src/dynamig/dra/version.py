"""Versions in the one form that the API server takes for a version attribute."""

from __future__ import annotations

import re

from dynamig.errors import Refused


class Version(str):
    """A semantic version by semver.org 2.0.0, published as a version and not as a string."""

    __slots__ = ()


_NUMBERS = re.compile(r"[vV]?(\d+)(?:\.(\d+))?(?:\.(\d+))?(.*)")
MAX_LENGTH = 64
"""Bytes of an attribute's value. k8s.io/api v0.37.2 resource/v1: DeviceAttributeMaxValueLength."""


def semver(text: str) -> Version:
    """The version with three numbers and no leading zero: `580.82.07` becomes `580.82.7`, `13.0` `13.0.0`.

    Anything after the third number becomes build metadata, which comparisons ignore (`570.124.06.01` gives
    `570.124.6+01`); as a pre-release it would sort before the release.

    Raises: Refused BAD_VERSION for text that does not begin with a number, and for one that stays too long.
    The API server refuses the whole ResourceSlice for one such attribute, so this must not get that far.
    """
    found = _NUMBERS.fullmatch(text.strip())
    if not found:
        raise Refused("BAD_VERSION", f"{text!r} does not begin with a number", "expected like 580.82.07")
    major, minor, patch, rest = found.groups()
    plain = f"{int(major)}.{int(minor or 0)}.{int(patch or 0)}"
    build = ".".join(re.findall(r"[0-9A-Za-z]+", rest))
    version = f"{plain}+{build}" if build else plain
    if len(version) > MAX_LENGTH:
        raise Refused("BAD_VERSION", f"version {text!r} is longer than {MAX_LENGTH} characters")
    return Version(version)
